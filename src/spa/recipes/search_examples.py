"""Stage 1 without play: examples of responses that write a breadth-first search (`generate.policy: search`).

Each example is a puzzle of its own, at its start or, as a later turn, in a random state that can be reached from it.
Validation puzzles are left out. The search runs in copies of the game. Examples without a path to the goal, or with a
response of more than `generate.sampling.response_length` tokens, are dropped and replaced by others.

Every kind of `generate.search.thoughts` has the same puzzles, states and prompts.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from spa import heartbeat
from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.envs.base import TextEnv
from spa.envs.pool import EpisodeSpec
from spa.errors import ConfigError, DataError
from spa.models.choose import load_template
from spa.planning.written_search import Search, Transitions, breadth_first, dealt, explore, write_search
from spa.prompts.render import Prompter
from spa.recipes import setup
from spa.recipes.resume import recorder
from spa.seeds import stream, stream_seed
from spa.tracking.encoding import write_atomic
from spa.types import Message, WorldModelRow
from spa.worldmodel.rows import by_reason, write_parquet

log = logging.getLogger(__name__)

DRAWS = 20
"""Puzzles that are drawn for each example that is wanted, before a game is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A state that a response is to be written for: a copy of the game there, and what the prompt shows."""

    number: int
    spec: EpisodeSpec
    puzzle_hash: str
    env: TextEnv
    true: Transitions
    turn: int  # from 1
    actions_left: int
    messages: tuple[Message, ...]

    @property
    def start(self) -> str:
        """The key of the state."""
        key = self.env.state_key()
        assert key is not None
        return key


def write_examples(cfg: Config, out: Path, *, files: tuple[str, str, str]) -> None:
    """Write the training and validation examples and a summary to `files` in `out`.

    Raises ConfigError for a game that does not name its states, DataError if too few puzzles give an example.
    """
    world = current_world()
    with recorder(cfg, out, "generate", first=0, total=1) as rec:
        if world.is_main:
            player = setup.make_player(cfg, None, mode="base")
            with rec.timer("examples"):
                rows, lines, dropped = make_examples(cfg, player)
            train = rows[: cfg.generate.search.examples]
            write_parquet(out / files[0], train)
            write_parquet(out / files[1], rows[len(train) :])
            summary = {
                "episodes": 0,
                "played": {"episodes": 0.0, "num_actions": 0.0},
                "rows_train": len(train),
                "rows_val": len(rows) - len(train),
                "puzzles": len(rows),
                "dropped": dict(sorted(dropped.items())),
                "search": {
                    "thoughts": cfg.generate.search.thoughts,
                    "dynamics": "simulator",
                    "lines": dict(sorted(Counter(lines).items())),
                },
            }
            write_atomic(out / files[2], [json.dumps(summary, indent=1)])
            rec.log(1, {"search/rows": float(len(rows)), "search/dropped": float(sum(dropped.values()))})
            rec.message(
                f"{len(train)} training and {len(rows) - len(train)} validation examples of written searches; "
                f"dropped: {by_reason(dropped)}"
            )
        world.barrier()


def make_examples(cfg: Config, player: setup.Player) -> tuple[list[WorldModelRow], list[int], Counter[str]]:
    """Examples of training and then of validation, the number of lines of each true search, and how many states were
    dropped for which reason."""
    own, share = cfg.generate.search, cfg.generate.val_fraction
    wanted = own.examples + max(1, round(own.examples * share / (1 - share)))
    template = load_template(cfg, cfg.model_path)
    dropped: Counter[str] = Counter()
    chosen: list[tuple[Question, Search]] = []
    for question in questions(cfg, player, dropped, most=DRAWS * wanted):
        search = breadth_first(question.start, lambda key, true=question.true: true[key])
        prompter = replace(player.prompters[question.spec.tag], enable_think=True)
        if search.path is None:
            dropped["no_goal"] += 1
            continue
        text = response(write_search(search), search.path, question, prompter)
        if len(template.reply_ids(text, prompter.opener)) > cfg.generate.sampling.response_length:
            dropped["too_long"] += 1
            continue
        chosen.append((question, search))
        if len(chosen) == wanted:
            break
    else:
        raise DataError(
            f"only {len(chosen)} of {wanted} examples could be made of {DRAWS * wanted} puzzles (dropped: "
            f"{by_reason(dropped)}). Lower generate.search.examples, or raise generate.sampling.response_length."
        )
    thoughts = thoughts_of(cfg, chosen)
    rows = [
        row_of(question, response(text, path, question, player.prompters[question.spec.tag]), player)
        for (question, _), (text, path) in zip(chosen, thoughts, strict=True)
    ]
    return rows, [len(search.lines) for _, search in chosen], dropped


def questions(cfg: Config, player: setup.Player, dropped: Counter[str], *, most: int) -> Iterator[Question]:
    """States of fresh puzzles, one of each; none of validation, and none twice."""
    own, tags = cfg.generate.search, cfg.es_manager.train.env_configs.tags
    held_out, known = setup.validation_hashes(cfg, player), set[str]()
    for number in range(most):
        heartbeat.beat()
        rng = stream(cfg.seed.train, "search/state", number)
        spec = EpisodeSpec(
            episode_id=f"search/{number}",
            tag=tags[number % len(tags)],
            group=number,
            member=0,
            puzzle_seed=stream_seed(cfg.seed.train, "search/puzzle", number) % 2**31,
            noise_seed=stream_seed(cfg.seed.train, "search/noise", number),
            sample_seed=0,
        )
        look = player.look_at(spec)
        reason = "unmakeable" if look is None else "validation_puzzle" if look.hash in held_out else "duplicate"
        if look is None or look.hash in held_out or look.hash in known:
            dropped[reason] += 1
            continue
        known.add(look.hash)
        prompter = player.prompters[spec.tag]
        try:
            true, copies = explore(look.env)
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(f"generate.policy=search: {spec.tag} cannot be searched: {error}") from error
        env, turn = look.env, 1
        later = [key for key in true if key != next(iter(true))]
        if later and prompter.max_turn > 1 and rng.random() >= own.start_share:
            env = copies[later[int(rng.integers(len(later)))]]
            turn = int(rng.integers(2, prompter.max_turn + 1))
        left = prompter.max_actions_per_traj - (turn - 1) * prompter.max_actions_per_turn
        yield Question(
            number=number,
            spec=spec,
            puzzle_hash=look.hash,
            env=env,
            true=true,
            turn=turn,
            actions_left=left,
            messages=prompter.first_messages(env, turn=turn, actions_left=left),
        )


def thoughts_of(cfg: Config, chosen: list[tuple[Question, Search]]) -> list[tuple[str, tuple[str, ...]]]:
    """What each response thinks, and the path that its answer begins."""
    kind, seed = cfg.generate.search.thoughts, cfg.seed.train
    found: list[tuple[str, tuple[str, ...]]] = []
    if kind == "dealt":
        for question, _ in chosen:
            world = dealt(question.true, stream(seed, "search/dealt", question.number))
            search = breadth_first(question.start, lambda key, world=world: world[key])
            assert search.path is not None  # every state is as far as it was
            found.append((write_search(search), search.path))
        return found
    others = of_other_puzzles([search for _, search in chosen]) if kind == "other_puzzle" else [s for _, s in chosen]
    for (_, search), other in zip(chosen, others, strict=True):
        assert search.path is not None
        found.append(("" if kind == "none" else write_search(other), search.path))
    return found


def of_other_puzzles(searches: list[Search]) -> list[Search]:
    """For each search another one with as many lines, and another text where there is one: within each length, the
    next of its length in their order. A search that is the only one of its length takes one of the nearest length."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, search in enumerate(searches):
        by_length[len(search.lines)].append(number)
    found = list(searches)
    for length, numbers in by_length.items():
        for place, number in enumerate(numbers):
            later = [numbers[(place + step) % len(numbers)] for step in range(1, len(numbers))]
            if not later:
                nearest = min((n for n in by_length if n != length), key=lambda n: abs(n - length), default=length)
                later = by_length[nearest]
            other = next((searches[n] for n in later if searches[n] != searches[number]), searches[later[0]])
            found[number] = other
    return found


def response(thoughts: str, path: tuple[str, ...], question: Question, prompter: Prompter) -> str:
    """The response: thoughts, and as much of the path as a turn takes."""
    taken = path[: min(prompter.max_actions_per_turn, question.actions_left)]
    answer = f"<answer>{f' {prompter.action_sep} '.join(taken)}</answer>"
    return f"<think>{thoughts}</think>{answer}" if prompter.enable_think else answer


def row_of(question: Question, text: str, player: setup.Player) -> WorldModelRow:
    """The row of a response, with what its actions lead to in a copy of the game."""
    spec, prompter = question.spec, player.prompters[question.spec.tag]
    env, reward, success = question.env.clone(), 0.0, False
    answer = text[text.index("<answer>") + len("<answer>") : text.index("</answer>")]
    taken = tuple(action.strip() for action in answer.split(prompter.action_sep))
    for name in taken:
        action = env.to_action(name)
        assert action is not None
        _, gain, ended, _, info = env.step(action)
        reward, success = reward + float(gain), success or bool(info["success"])
        if ended:
            break
    return WorldModelRow(
        prompt=question.messages,
        response=text,
        tag=spec.tag,
        episode_id=spec.episode_id,
        turn=question.turn - 1,
        puzzle_seed=spec.puzzle_seed,
        puzzle_hash=question.puzzle_hash,
        success=success,
        reward=reward,
        state=question.env.world_state_text(prompter.state_text),
        next_state=env.world_state_text(prompter.state_text),
        executed=taken,
    )
