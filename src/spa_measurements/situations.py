"""Sample states from the middle of held-out games, and query an engine in each of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spa.envs.base import StateText, TextEnv, look_as_mover
from spa.envs.branch import execute
from spa.envs.shown import Shown
from spa.formats.registry import parse_response
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate
from spa.rollout.loop import puzzle_hash
from spa.seeds import stream, stream_seed
from spa.types import Engine, Message, ParsedResponse, Prompt, SamplingParams

MakeEnv = Callable[[str], TextEnv]
NOISES = 16  # number of random outcomes in each half of the sample that `ceiling` uses
_NO_IDS = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A state that random play reached, and the next transition of random play."""

    index: int
    tag: str
    puzzle: str  # content hash of the puzzle
    puzzle_seed: int
    noise_seed: int
    prefix: tuple[str, ...]  # actions that led to the state
    state: str
    known: str  # the correct observation; `next_state` is the correct prediction
    actions: tuple[str, ...]  # the next actions of random play
    next_state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A player's response to a shown state, and the state to which its answer led."""

    messages: tuple[Message, ...]
    parsed: ParsedResponse
    executed: tuple[str, ...]
    next_state: str
    over: bool


def replay(env: TextEnv, situation: Situation, noise_seed: int | None = None) -> TextEnv:
    """Put the environment into the situation's state. Random outcomes come from the situation's own
    noise seed, or from `noise_seed`."""
    noise = situation.noise_seed if noise_seed is None else noise_seed
    return _play(env, situation.puzzle_seed, noise, situation.prefix)


def _play(env: TextEnv, puzzle_seed: int, noise_seed: int, actions: Sequence[str]) -> TextEnv:
    # A state is reached by replaying its actions, since games need not be serializable.
    env.reset(seed=puzzle_seed, options={"noise_seed": noise_seed, "validation": True})
    execute(env, actions, len(actions))
    look_as_mover(env)
    return env


def random_situation(
    env: TextEnv, prompter: Prompter, *, tag: str, index: int, base_seed: int, from_start: bool
) -> Situation | None:
    """Sample situation number `index`. Up to `max_turn - 1` random turns lead from the start of its
    puzzle to its state (none with `from_start`), and one more turn leads to `next_state`. Returns
    None if this last turn executes no action.

    The puzzle has seed `base_seed + index`; the actions are sampled from the situation's own
    stream.
    """
    rng = stream(base_seed, "world_model/play", index)
    puzzle_seed = base_seed + index
    noise_seed = stream_seed(base_seed, "world_model/noise", index)
    # At most max_turn - 1 turns, so that the turn limit allows one more turn.
    turns = 0 if from_start else int(rng.integers(prompter.max_turn))
    env.reset(seed=puzzle_seed, options={"noise_seed": noise_seed, "validation": True})
    content = puzzle_hash(env)
    prefix: list[str] = []
    for _ in range(turns):
        look_as_mover(env)
        move = _random_turn(env, prompter, rng)
        taken, over = execute(env, move, len(move), own_turn=True)
        # A turn that ends the game is dropped, because no question could follow it.
        if over:
            break
        prefix += taken
    # The prefix is replayed, because the environment has already executed the dropped turn.
    _play(env, puzzle_seed, noise_seed, prefix)
    state = env.state_text(prompter.state_text)
    known = env.world_state_text(prompter.state_text)
    move = _random_turn(env, prompter, rng)
    taken, _ = execute(env, move, prompter.max_actions_per_traj, own_turn=True)
    if not taken:
        return None
    return Situation(
        index=index,
        tag=tag,
        puzzle=content,
        puzzle_seed=puzzle_seed,
        noise_seed=noise_seed,
        prefix=tuple(prefix),
        state=state,
        known=known,
        actions=taken,
        next_state=env.world_state_text(prompter.state_text),
    )


def _random_turn(env: TextEnv, prompter: Prompter, rng: np.random.Generator) -> tuple[str, ...]:
    count = int(rng.integers(1, prompter.max_actions_per_turn + 1))
    return env.random_plan(rng, count)


def has_chance(env: TextEnv, prompter: Prompter, *, base_seed: int, puzzles: int = 24) -> bool:
    """Return whether, in one of the first `puzzles` puzzles, the same actions from the same start
    led to different states."""
    for index in range(puzzles):
        situation = random_situation(
            env, prompter, tag="", index=index, base_seed=base_seed, from_start=True
        )
        if situation is None:
            continue
        # If none of `puzzles` x 4 replays differs, the game counts as deterministic.
        for noise in range(4):
            replay(env, situation, noise)
            execute(env, situation.actions, len(situation.actions))
            if env.world_state_text(prompter.state_text) != situation.next_state:
                return True
    return False


def ceiling(env: TextEnv, situation: Situation, actions: Sequence[str], mode: StateText) -> float:
    """Estimate the probability of the most likely state after `actions`, for a situation at the
    start of a puzzle.

    The most likely state is chosen from one half of `2 * NOISES` sampled outcomes, and its
    probability is estimated from the other half, so that the estimate is not too high.
    """

    def after(noise: int) -> str:
        replay(env, situation, stream_seed(situation.noise_seed, "world_model/ceiling", noise))
        execute(env, actions, len(actions), own_turn=True)
        return env.world_state_text(mode)

    likeliest = Counter(after(noise) for noise in range(NOISES)).most_common(1)[0][0]
    return sum(after(noise) == likeliest for noise in range(NOISES, 2 * NOISES)) / NOISES


def ask(
    engine: Engine,
    sampling: SamplingParams,
    envs: Sequence[TextEnv],
    shown: Sequence[str],
    prompters: Sequence[Prompter],
    template: ChatTemplate | None,
    seeds: Sequence[int],
) -> list[Response | None]:
    """Show each state as the first turn of a conversation, and play the answer in the corresponding
    environment. In open-loop rollouts, the environment may be in another state than the shown one.
    An entry of the result is None if the engine returned no response.
    """
    views: list[Any] = [Shown(env, text) for env, text in zip(envs, shown, strict=True)]
    conversations = [
        prompter.first_messages(view) for prompter, view in zip(prompters, views, strict=True)
    ]
    prompts = [
        Prompt(
            episode_id=f"world_model/{seed}",
            messages=messages,
            token_ids=_NO_IDS
            if template is None
            else np.asarray(template.start(messages, p.prefill), dtype=np.int32),
            prefill=p.prefill,
            seed=seed,
            mode=p.mode,
            action_sep=p.action_sep,
            response_format=p.response_format,
            continued=False,
            max_actions=p.max_actions_per_turn,
            context=env,
        )
        for messages, p, env, seed in zip(conversations, prompters, envs, seeds, strict=True)
    ]
    completions = engine.generate(prompts, sampling)
    # No conversation continues, so the engine may drop the cached prefixes.
    engine.forget([prompt.episode_id for prompt in prompts])
    return [
        None
        if completion.finish_reason == "error"
        else _response(env, prompter, messages, prompt.prefill + completion.text)
        for env, prompter, messages, prompt, completion in zip(
            envs, prompters, conversations, prompts, completions, strict=True
        )
    ]


def _response(
    env: TextEnv, prompter: Prompter, messages: tuple[Message, ...], text: str
) -> Response:
    parsed = parse_response(
        text,
        mode="add_worldmodel",
        action_sep=prompter.action_sep,
        max_actions=prompter.max_actions_per_turn,
        order=prompter.response_format,
    )
    # The model's own actions are played, because its prediction refers to them and not to those of
    # random play.
    taken, over = execute(env, parsed.actions, prompter.max_actions_per_traj, own_turn=True)
    return Response(
        messages=messages,
        parsed=parsed,
        executed=taken,
        next_state=env.world_state_text(prompter.state_text),
        over=over,
    )


def question_seed(base_seed: int, index: int, step: int) -> int:
    """Return the sampling seed of question `index` at `step` of an open-loop rollout."""
    return stream_seed(base_seed, "world_model/ask", index, step)
