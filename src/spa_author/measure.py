"""Measurements of `spa env measure --model`, within a time limit: reference policies, the accuracy
of a move model after a short SFT on random play, and planning with its predictions."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from spa.api.settings import value_text
from spa.config.load import load_config
from spa.config.schema import Config, EnvSpec
from spa.config.schema_play import EnvConfigs, GroupsConfig
from spa.engines.local import local_engine
from spa.envs.base import StateText, TextEnv
from spa.envs.cards import card_with
from spa.envs.limits import boundary
from spa.envs.pool import EpisodeSpec
from spa.envs.reference import policy_success
from spa.examples.moves import moves_config
from spa.examples.source import Puzzles, source_of
from spa.formats.base import ResponseFormat
from spa.formats.registry import format_of
from spa.formats.search import GOAL, Successor, breadth_first, explore, state_of
from spa.models.build import is_tiny
from spa.models.precision import precision_of, with_precision
from spa.planning.dynamics import LearnedMoves, Puzzle
from spa.planning.moves import PREFILL, leaves_out_actions, readable_modes
from spa.policies.scripted import random_engine
from spa.recipes import setup
from spa.recipes.selfplay import nothing_usable
from spa.recipes.sft import Learner
from spa.recipes.sft_run import load_model, make_learner
from spa.recipes.sft_updates import teacher_forced_accuracy, token_batch, update
from spa.rollout.worker import ResetPreview
from spa.seeds import stream
from spa.training.update import score_logprobs
from spa.types import Metrics, SamplingParams, SFTExample
from spa.worldmodel.examples import split_by_puzzle, write_parquet
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE
from spa.worldmodel.sequences import training_sequences
from spa.worldmodel.sft_data import make_data
from spa_author import cards
from spa_author.verdict import Measured

log = logging.getLogger("spa.author")

FIRST_PUZZLES = 10
REFERENCE_PUZZLES = 300
PLANNED_PUZZLES = 64
PLAYED_TOGETHER = 16
READ_STATES = 50
MOST_EXAMPLES = 8_000
HELD_OUT = 256
SCHEDULE = 1_000
"""Number of steps of the learning-rate schedule. The position in the schedule follows from the
elapsed time, because the training speed is not known in advance."""
CHUNK = 16
# Share of the remaining time, measured at the start of each part, that the part may use.
REFERENCES, PLAY, SFT, ACCURACY = 0.1, 0.1, 0.65, 0.3
MOST_LINES = 256
"""Maximum number of states that one search expands."""


class TimeUp(Exception):
    """Raised when the time limit of the measurement has been reached."""


class MoveParts(ResponseFormat):
    """Format of a single move (`spa.planning.moves`). Its only scored part is the state to which
    the action leads. The action is not scored, because it is random."""

    def __init__(self, actions: Sequence[str]) -> None:
        self.actions = actions

    def parts(self, text: str) -> list[tuple[str, int, int]]:
        """Return the state as the only part: ("state", start, end)."""
        begin = len(PREFILL) if text.startswith(PREFILL) else 0
        names = [name for name in self.actions if text.startswith(name, begin)]
        return [("state", begin + max(map(len, names), default=0), len(text))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained move model, the configuration of its training, and held-out examples."""

    cfg: Config
    learner: Learner
    held_out: Sequence[SFTExample]


def measure(
    found: Measured, spec: EnvSpec, folder: Path, told: Callable[[], None], *, begin: float
) -> None:
    """Run all measurements, store the results in `found`, and call `told` after each part.

    `folder` is for temporary files. `begin` is the value of `monotonic` from which the time limit
    counts. Raises SpaError, or EnvFault if the environment fails.
    """
    end = begin + 60 * found.minutes

    def until(share: float) -> float:
        return monotonic() + share * (end - monotonic())

    try:
        measure_references(found, spec, until(REFERENCES))
        told()
        cfg = settings(found, spec, folder)
        trained = train(found, cfg, folder, until)
        measure_accuracy(found, trained, until(1.0 if found.full_states else ACCURACY))
        told()
        if not found.full_states:
            measure_planning(found, trained, end)
    finally:
        found.seconds = round(monotonic() - begin, 1)


def measure_references(found: Measured, spec: EnvSpec, until: float) -> None:
    """Store the success rates of the reference policies in `found`. Uses the shipped reference
    scores if their settings match. Otherwise the policies play at least `FIRST_PUZZLES` puzzles,
    and more if `until` allows it."""
    known = (found.game, spec.env_type, spec.env_config, found.max_actions)
    card = card_with(*known)
    found.reference_puzzles = cards.PUZZLES
    if card is None:
        with boundary("playing the reference policies"):
            began = monotonic()
            card = cards.measure(*known, puzzles=FIRST_PUZZLES)
            each = (monotonic() - began) / FIRST_PUZZLES
            count = min(REFERENCE_PUZZLES, int((until - monotonic()) / each))
            found.reference_puzzles = max(FIRST_PUZZLES, count)
            if count > FIRST_PUZZLES:
                card = cards.measure(*known, puzzles=count)
    found.random, found.walk = card.random_success, card.walk_success
    found.look_ahead, found.optimum = card.look_ahead_success, card.optimum


def settings(found: Measured, spec: EnvSpec, folder: Path) -> Config:
    """Make the configuration for random play with one action per turn, and for SFT on these turns.

    SFT examples are single moves if the game can read state keys from its state texts, otherwise
    full next states. If planning is not available, stores the reason in `found`.
    """
    cfg = load_config(
        "tiny" if is_tiny(found.model) else "smol",
        [
            f"model_path={value_text(found.model)}",
            f"trainer.run_dir={value_text(str(folder))}",
            "trainer.logger=[]",
        ],
    )

    def groups(count: int) -> GroupsConfig:
        tags = EnvConfigs(tags=(found.game,), n_groups=(count,))
        return GroupsConfig(env_groups=count, group_size=1, env_configs=tags)

    own = replace(spec, max_actions_per_traj=found.max_actions)
    cfg = replace(
        cfg,
        custom_envs={found.game: own},
        es_manager=replace(
            cfg.es_manager, train=groups(PLAYED_TOGETHER), val=groups(PLANNED_PUZZLES)
        ),
        sft=replace(cfg.sft, data=replace(cfg.sft.data, max_length=2048)),
    )
    with setup.first_puzzle(cfg, own) as env:
        shown, found.no_planning = names_of_states(env, cfg.state_text)
    cfg = moves_config(replace(cfg, state_text=shown))
    cfg = with_precision(cfg, precision_of(cfg))
    found.full_states = bool(found.no_planning)
    if found.full_states:
        return replace(cfg, generate=replace(cfg.generate, example_format="world_model"))
    return cfg


def names_of_states(env: TextEnv, preferred: StateText) -> tuple[StateText, str]:
    """Choose a state rendering from which the game can read state keys. Returns the rendering and
    "". If there is none, returns `preferred` and the reason."""
    if env.state_key() is None:
        return preferred, (
            "TextEnv.state_key returns None: define it and the other methods for written search, or "
            "turn chance off"
        )
    try:
        true, copies = explore(env)
    except (ValueError, NotImplementedError) as error:
        return preferred, str(error)
    if leaves_out_actions(copies.values()):
        return (
            preferred,
            "legal_actions leaves out actions, and which ones is unknown in predicted states",
        )
    # Reading every state of a large game takes minutes. A few states are enough to choose the
    # rendering.
    some = dict(islice(copies.items(), READ_STATES))
    modes = readable_modes(env, {key: true[key] for key in some}, some)
    if not modes:
        return preferred, "define TextEnv.key_of_text, text_of_key and outcome_of_text"
    return preferred if preferred in modes else modes[0], ""


def train(found: Measured, cfg: Config, folder: Path, until: Callable[[float], float]) -> Trained:
    """Train a move model by SFT on random play. The function `until` returns the time at which a
    given share of the remaining time has passed."""
    device = setup.pick_device(cfg)
    log.info("loading %s", found.model)
    model, template = load_model(cfg, None, device)
    examples = play(cfg, until(PLAY))
    learned, held_out = split(examples, seed=cfg.generate.split_seed)
    found.examples = len(learned)
    write_parquet(folder / TRAIN_FILE, learned)
    write_parquet(folder / VAL_FILE, held_out)
    data = make_data(cfg, template, folder)
    learner = make_learner(cfg, model, template, SCHEDULE, None, device)
    batches = data.batches(seed=cfg.sft.trainer.seed, skip=0)
    begin, end = monotonic(), until(SFT)
    log.info("SFT on %d moves of random play for %.0f s", len(learned), max(0.0, end - begin))
    while not found.sft_steps or monotonic() < end:
        done = min(1.0, (monotonic() - begin) / max(end - begin, 1.0))
        learner.policy.optimizer.at(int(SCHEDULE * done))
        update(learner.policy, next(batches), learner.micro, device, template.images)
        found.sft_steps += 1
    return Trained(cfg=cfg, learner=learner, held_out=held_out[:HELD_OUT])


def split(
    examples: Sequence[SFTExample], *, seed: int
) -> tuple[Sequence[SFTExample], Sequence[SFTExample]]:
    """Hold out the examples of a tenth of the puzzles. If the game has one puzzle, hold out a tenth
    of its examples."""
    learned, held_out = split_by_puzzle(examples, val_fraction=0.1, seed=seed)
    if held_out:
        return learned, held_out
    return [each for number, each in enumerate(examples) if number % 10], examples[::10]


def play(cfg: Config, until: float) -> list[SFTExample]:
    """Make examples from random play, until there are at least `MOST_EXAMPLES` or the time is
    up."""
    worker = setup.make_worker(cfg, None, mode="add_worldmodel")
    puzzles = Puzzles(worker=worker, held_out=setup.validation_hashes(cfg, worker))
    engine = random_engine(max_actions=1)
    examples = list[SFTExample]()
    batch = 0
    while len(examples) < MOST_EXAMPLES and (batch == 0 or monotonic() < until):
        specs = setup.training_specs(cfg, worker, "selfplay", step=batch, held_out=puzzles.held_out)
        episodes = worker.rollout(engine, specs, setup.selfplay_sampling(cfg))
        made = source_of(cfg).make(cfg, puzzles, episodes)
        if not made.examples:
            raise nothing_usable(cfg, episodes, made.dropped)
        examples += map(alone, made.examples)
        batch += 1
    return examples


def alone(example: SFTExample) -> SFTExample:
    """Return the example without earlier turns. Its prompt keeps only the system message and the
    last message, which shows the state."""
    system = [message for message in example.prompt if message["role"] == "system"]
    return replace(example, prompt=(*system, example.prompt[-1]))


def measure_accuracy(found: Measured, trained: Trained, until: float) -> None:
    """Measure how many next states of held-out moves the model predicts correctly, and store the
    shares in `found`. Stops when the time is up."""
    (spec,) = trained.cfg.custom_envs.values()
    with setup.first_puzzle(trained.cfg, spec) as env:
        actions = env.action_names()
    form = (
        format_of(trained.cfg.agent_proxy.response_format)
        if found.full_states
        else MoveParts(actions)
    )
    right = dict[str, float]()
    changed = unchanged = 0
    changed_right = 0.0
    for start in range(0, len(trained.held_out), CHUNK):
        if start and monotonic() > until:
            break
        chunk = trained.held_out[start : start + CHUNK]
        for moved in (True, False):
            part = [each for each in chunk if (each.state != each.next_state) == moved]
            if not part:
                continue
            for kind, share in forced_accuracy(trained, part, form).items():
                right[kind] = right.get(kind, 0.0) + share * len(part)
                if moved and kind in ("state", "prediction"):
                    changed_right += share * len(part)
            changed, unchanged = changed + moved * len(part), unchanged + (not moved) * len(part)
    found.held_out = changed + unchanged
    found.accuracy = {kind: round(count / found.held_out, 4) for kind, count in right.items()}
    found.right = found.accuracy.get("prediction" if found.full_states else "state")
    found.copy = round(unchanged / found.held_out, 4)
    found.right_if_changed = round(changed_right / changed, 4) if changed else None


def forced_accuracy(
    trained: Trained, examples: Sequence[SFTExample], form: ResponseFormat
) -> Metrics:
    """Compute teacher-forced accuracy, and return kind of part -> share of correct parts. A part is
    correct if each of its tokens is the most likely one after the true text before it."""
    learner = trained.learner
    sequences, _ = training_sequences(
        examples,
        learner.template,
        max_length=trained.cfg.sft.data.max_length,
        merge_turns=False,
    )
    # With top_k=1, a token has log-prob 0 if and only if it is the most likely one.
    logprobs = score_logprobs(
        learner.policy,
        token_batch(sequences, learner.template.images),
        learner.micro,
        learner.device,
        SamplingParams(top_k=1),
    )
    shares = teacher_forced_accuracy((logprobs > -0.1).numpy(), sequences, form, learner.template)
    return {name.rpartition("/")[2]: share for name, share in shares.items()}


def measure_planning(found: Measured, trained: Trained, until: float) -> None:
    """Measure the success rates of breadth-first search and one-step look-ahead with the model's
    predictions, on as many puzzles as the time allows. Results are stored in `found`."""
    cfg, learner = trained.cfg, trained.learner
    engine = local_engine(cfg, learner.policy.full_model(), learner.template, learner.device)
    moves = LearnedMoves(engine, learner.template)
    worker = setup.make_worker(cfg, None, mode="base")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
    log.info("planning on at most %d puzzles for %.0f s", len(specs), max(0.0, until - monotonic()))
    won = list[list[bool | None]]()
    reason = "no puzzle was finished in time; raise --minutes"
    with suppress(TimeUp):
        for number, spec in enumerate(specs):
            look = worker.peek_reset(spec)
            if look is None:
                continue
            try:
                puzzle = puzzle_at_start(cfg, number, spec, look)
            except ValueError as error:  # such as too many states in this puzzle alone
                reason = str(error)
                continue
            plans = Plans(moves, puzzle, until)
            game = partial(policy_success, limit=found.max_actions, rng=puzzle.rng)
            wins = [game(look.env.clone(), plans.search)]
            if look.env.goal_distance() is not None:
                wins.append(game(look.env.clone(), plans.look_ahead))
            # Puzzles that the time limit interrupts do not count, so the result is biased towards
            # puzzles that are planned quickly.
            won.append(wins)
    if not won:
        found.no_planning = reason
        return
    found.puzzles = len(won)
    # Puzzles without a distance to the goal have one result. Then look-ahead has none.
    results = min(map(len, won))
    means = [sum(bool(wins[index]) for wins in won) / len(won) for index in range(results)]
    found.search, found.search_ahead = [*means, None][:2]


def puzzle_at_start(cfg: Config, number: int, spec: EpisodeSpec, look: ResetPreview) -> Puzzle:
    """Return the puzzle of a validation episode, in its start state. Raises ValueError if its
    states cannot be explored."""
    true, copies = explore(look.env)
    return Puzzle(
        number=number,
        spec=spec,
        puzzle_hash=look.hash,
        env=look.env,
        true=true,
        copies=copies,
        text=look.env.state_text(cfg.state_text),
        turn=1,
        rng=stream(cfg.seed.val, "measure/state", number),
    )


@dataclass(frozen=True, slots=True)
class Plans:
    """Planning policies that use the model's predictions instead of the game's true transitions.

    They stop at the time `until`. The distance of a predicted state to the goal is read from a copy
    of the game in that state.
    """

    moves: LearnedMoves
    puzzle: Puzzle
    until: float

    def successors(self, key: str) -> Sequence[Successor]:
        """Return the predicted successors of the state `key`. Empty if a prediction is not the key
        of a state. Raises TimeUp."""
        if monotonic() > self.until:
            raise TimeUp
        return self.moves.expand([(self.puzzle, key)])[0] or ()

    def search(self, env: TextEnv, rng: Any) -> str | None:
        """Return the first action of the shortest predicted path to the goal, or None if no path is
        found."""
        key = env.state_key()
        assert key is not None  # `explore` has checked it
        path = breadth_first(key, self.successors, max_lines=MOST_LINES).path
        return path[0] if path else None

    def look_ahead(self, env: TextEnv, rng: Any) -> str | None:
        """Return the action whose predicted successor is closest to the goal; ties are broken at
        random. Returns None without a prediction."""
        key = env.state_key()
        assert key is not None
        costs = {
            name: self._cost(state_of(target), outcome)
            for name, target, outcome in self.successors(key)
        }
        best = [name for name, cost in costs.items() if cost == min(costs.values())]
        return best[int(rng.integers(len(best)))] if best else None

    def _cost(self, key: str, outcome: str) -> float:
        if outcome == GOAL:
            return -1.0
        known = self.puzzle.copies.get(key)
        return inf if outcome or known is None else known.goal_distance() or 0.0
