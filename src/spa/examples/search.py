"""Examples of responses that write a search, made from new puzzles without playing
(`generate.policy: search`).

Each example has its own puzzle. It shows the start state or, as a later turn, a random state to
which earlier turns may have led. Validation puzzles are left out. Examples without a path to the
goal, or with a response of more than `generate.sampling.response_length` tokens, are dropped and
replaced by others.

`generate.search.dynamics` selects where searches and the states of later turns come from: copies of
the game, or a model's predictions of single moves together with the text of the first prompt. In
the second case, copies of the game only measure the predictions, and a first round teaches the
moves. Every value of `generate.search.thoughts` gives the same puzzles, states and prompts.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from spa.config.problems import Problems
from spa.config.schema import Config
from spa.envs.limits import EnvFault, boundary, making_s
from spa.envs.pool import EpisodeSpec
from spa.errors import ConfigError, DataError
from spa.examples.base import SOURCE as BASE_FORMAT
from spa.examples.moves import moves_config
from spa.examples.source import Examples, ExampleSource, Puzzles
from spa.formats.base import WrittenFormat
from spa.formats.registry import format_of
from spa.prompts.render import Prompter
from spa.run import watchdog
from spa.seeds import stream, stream_seed
from spa.types import Episode, SFTExample

if TYPE_CHECKING:
    from spa.planning.dynamics import Dynamics, Puzzle, Question
    from spa.rollout.worker import RolloutWorker

log = logging.getLogger(__name__)

MAX_PUZZLES_PER_EXAMPLE = 20
"""Largest number of puzzles sampled per requested example. If they yield too few examples,
DataError is raised."""
SEARCH_BATCH_SIZE = 256
"""Number of searches that run at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A state with its prompt, and the search that starts there."""

    question: "Question"  # the state and its prompt
    search: Any
    text: str  # the search as text
    # text and path of the control's search with permuted outcomes; None if a model predicts the
    # outcomes
    dealt: tuple[str, tuple[str, ...]] | None


class WrittenSearch(ExampleSource):
    """Source of responses that write a search, with one example per puzzle."""

    policies = ("search",)
    plays = False
    mode = "base"
    has_states = False

    def makes(self, cfg: Config) -> bool:
        """Return whether the policy is search."""
        return cfg.generate.policy in self.policies

    def check(self, cfg: Config, problems: Problems) -> None:
        """Add a problem for every setting that written searches or their format do not allow."""
        BASE_FORMAT.check(cfg, problems)
        form = format_of(cfg.agent_proxy.response_format)
        own = cfg.generate.search
        # Each entry: key, whether its value is wrong, and the value that it must have.
        for path, wrong, wanted in (
            (
                "agent_proxy.response_format",
                not isinstance(form, WrittenFormat),
                "search",
            ),
            ("ctx_manager.history", cfg.ctx_manager.history, "false"),
            ("generate.example_format", cfg.generate.example_format != "base", "base"),
            ("generate.mixture", bool(cfg.generate.mixture), "null"),
            (
                "generate.rounds",
                cfg.generate.rounds > (1 if own.dynamics == "simulator" else 2),
                "1" if own.dynamics == "simulator" else "at most 2",
            ),
            (
                "generate.search.thoughts",
                own.dynamics == "model" and own.thoughts != "search",
                "search",
            ),
        ):
            if wrong:
                told = " and generate.search.dynamics=model" if own.dynamics == "model" else ""
                problems.add(path, f"must be {wanted} with generate.policy=search{told}")
        if cfg.agent_proxy.enable_think != (own.thoughts != "none"):
            problems.add(
                "agent_proxy.enable_think",
                "must be false if generate.search.thoughts is none, and true otherwise",
            )

    def first_round(self, cfg: Config) -> Config:
        """Return the configuration that trains on single moves if there are two rounds, otherwise
        the one that trains on searches."""
        if cfg.generate.rounds > 1:
            return moves_config(cfg)
        return replace(cfg, generate=replace(cfg.generate, train_on="all_rounds"))

    def rounds(self, cfg: Config) -> list[Config]:
        """Return the configurations of two rounds (single moves, then searches), or of one round of
        searches."""
        if cfg.generate.rounds == 1:
            return [self.first_round(cfg)]
        # `resume_path` names a checkpoint of the first round.
        trainer = replace(cfg.sft.trainer, resume_path=None)
        search = replace(
            cfg,
            generate=replace(cfg.generate, rounds=1),
            sft=replace(cfg.sft, trainer=trainer),
        )
        return [moves_config(cfg), search]

    def fine_tuned_alone(self, cfg: Config) -> Config:
        """Return the configuration of the first round, since SFT on single moves has its own batch
        size and number of steps."""
        return self.first_round(cfg)

    def make(self, cfg: Config, puzzles: Puzzles, episodes: Sequence[Episode]) -> Examples:
        """Make the training examples, followed by the validation examples."""
        dynamics = make_dynamics(cfg)
        try:
            examples, lines, dropped, explored = make_examples(cfg, puzzles, dynamics)
        finally:
            dynamics.close()
        own = cfg.generate.search
        summary = {
            "actions_elsewhere": explored,
            "search": {
                "thoughts": own.thoughts,
                "dynamics": own.dynamics,
                "lines": dict(sorted(Counter(lines).items())),
                **dynamics.counts,
            },
        }
        metrics = {
            "search/examples": float(len(examples)),
            "search/dropped": float(sum(dropped.values())),
            **{f"search/{name}": float(value) for name, value in dynamics.counts.items()},
        }
        # No puzzle occurs twice, so any split of the list separates the puzzles of training and
        # validation.
        return Examples(
            examples=examples,
            dropped=dropped,
            training=own.examples,
            summary=summary,
            metrics=metrics,
        )


def make_dynamics(cfg: Config) -> "Dynamics":
    """Return the source of successor states: copies of the game, or the model in `model_path`."""
    from spa.engines.factory import make_engine
    from spa.models.build import pick_device
    from spa.planning.dynamics import LearnedMoves, Simulator

    if cfg.generate.search.dynamics == "simulator":
        return Simulator()
    engine = make_engine(cfg, cfg.model_path, device=pick_device(cfg))
    return LearnedMoves(engine, engine.template)


def make_examples(
    cfg: Config, puzzles: Puzzles, dynamics: "Dynamics"
) -> tuple[list[SFTExample], list[int], Counter[str], int]:
    """Make the training examples, followed by the validation examples. Returns the examples, the
    number of lines of each search, the number of dropped states by reason, and the number of
    actions taken in copies of the game. Raises DataError if there are too few examples."""
    from spa.models.build import load_template
    from spa.worldmodel.examples import by_reason

    own = cfg.generate.search
    worker = puzzles.worker
    share = cfg.generate.val_fraction
    wanted = own.examples + max(1, round(own.examples * share / (1 - share)))
    template = load_template(cfg, cfg.model_path)
    dropped: Counter[str] = Counter()
    chosen = list[Searched]()
    form = format_of(cfg.agent_proxy.response_format)
    assert isinstance(form, WrittenFormat)  # see `WrittenSearch.check`
    fresh = fresh_puzzles(cfg, puzzles, dropped, most=MAX_PUZZLES_PER_EXAMPLE * wanted)
    explored = 0

    def too_long(thoughts: str, path: tuple[str, ...], question: "Question") -> bool:
        # Measure the response with the whole search as its thoughts, regardless of
        # generate.search.thoughts. So all values of that setting train on the same puzzles.
        prompter = replace(worker.prompters[question.puzzle.spec.tag], enable_think=True)
        text = response(thoughts, taken(path, question, prompter), prompter)
        most = cfg.generate.sampling.response_length
        return len(template.response_ids(text, prompter.prefill)) > most

    # Searches run in batches until there are enough examples or no puzzles left.
    while part := list(islice(fresh, min(SEARCH_BATCH_SIZE, wanted - len(chosen)))):
        explored += sum(map(dynamics.actions, part))
        asked = questions(part, worker, dynamics)
        for question, search in zip(asked, dynamics.search(asked, form), strict=True):
            if search is None or search.path is None:
                dropped["unreadable_state" if search is None else form.unsolved] += 1
                continue
            text = form.written(search, question.view)
            if too_long(text, search.path, question):
                dropped["too_long"] += 1
                continue
            dealt = None
            # The control's search must also find the goal and fit into the response, so that every
            # value of generate.search.thoughts trains on the same puzzles.
            if own.dynamics == "simulator":
                number = question.puzzle.number
                rng = stream(cfg.seed.train, "search/dealt", number)
                false = form.dealt(question.puzzle.true, question.start, question.view, rng)
                if false.path is None:
                    dropped["no_goal_when_dealt"] += 1
                    continue
                dealt = (form.written(false, question.view), false.path)
                if too_long(*dealt, question):
                    dropped["too_long_when_dealt"] += 1
                    continue
            chosen.append(Searched(question=question, search=search, text=text, dealt=dealt))
        log.info("selfplay: %d of %d examples", len(chosen), wanted)
    if len(chosen) < wanted:
        ((reason, _),) = dropped.most_common(1)
        raise DataError(
            f"spa made only {len(chosen)} of {wanted} search examples from {MAX_PUZZLES_PER_EXAMPLE * wanted} "
            f"puzzles (dropped: {by_reason(dropped)}). {too_few(reason, own.dynamics)}"
        )
    examples = [
        row_of(each.question, thoughts, path, worker, dynamics)
        for each, (thoughts, path) in zip(chosen, thoughts_of(own.thoughts, chosen), strict=True)
    ]
    return examples, [len(each.search.lines) for each in chosen], dropped, explored


def too_few(reason: str, dynamics: str) -> str:
    """Return advice for the case that too few puzzles yield an example. `reason` is the most
    frequent reason for dropping one."""
    if reason in ("too_long", "too_long_when_dealt"):
        return "Raise generate.sampling.response_length, or use a smaller board."
    if dynamics == "model" and reason in ("unreadable_state", "no_goal"):
        return (
            "The model does not predict single moves well: fine-tune on more of them (generate.search.moves). To "
            "test the stages alone, set generate.search.dynamics=simulator and generate.rounds=1."
        )
    if reason == "no_goal":
        return "The game has no way to its goal there. Lower generate.search.examples, or use other puzzles."
    if reason == "stalled":
        return "Too few puzzles follow from single candidates alone: use others, with more clues."
    return (
        "The game has too few puzzles. Lower generate.search.examples; where many are too long, raise "
        "generate.sampling.response_length."
    )


def fresh_puzzles(
    cfg: Config, puzzles: Puzzles, dropped: Counter[str], *, most: int
) -> "Iterator[Puzzle]":
    """Sample `most` puzzles, and yield the new ones. Skips validation puzzles, duplicates and
    puzzles that cannot be made, and counts them by reason in `dropped`."""
    envs = cfg.es_manager.train.env_configs
    # Each tag occurs once per group, so that tags are sampled in proportion to their groups.
    tags = [
        tag for tag, count in zip(envs.tags, envs.n_groups or (), strict=True) for _ in range(count)
    ]
    from spa.planning.dynamics import Puzzle

    form = format_of(cfg.agent_proxy.response_format)
    assert isinstance(form, WrittenFormat)  # see `WrittenSearch.check`
    worker = puzzles.worker
    known = set[str]()
    for number in range(most):
        watchdog.beat()
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
        look = worker.peek_reset(spec)
        reason = (
            "unmakeable"
            if look is None
            else "validation_puzzle"
            if look.hash in puzzles.held_out
            else "duplicate"
        )
        if look is None or look.hash in puzzles.held_out or look.hash in known:
            dropped[reason] += 1
            continue
        known.add(look.hash)
        prompter = worker.prompters[spec.tag]
        try:
            with boundary("searching the game's states", making_s(cfg.es_manager.env_timeout_s)):
                true, copies = form.explore(look.env)
        except EnvFault as error:
            why = f"{error}. Check it with: spa env check {spec.tag}"
            # `explore` raises these two exceptions itself, with a message for the user.
            if isinstance(error.__cause__, ValueError | NotImplementedError):
                why = str(error.__cause__)
            raise ConfigError(
                f"generate.policy=search cannot search the states of {spec.tag}: {why}"
            ) from error
        # Number of the last turn that can have actions left.
        last = min(
            prompter.max_turn, -(-prompter.max_actions_per_traj // prompter.max_actions_per_turn)
        )
        turn = 1
        if last > 1 and rng.random() >= cfg.generate.search.start_share:
            turn = int(rng.integers(2, last + 1))
        yield Puzzle(
            number=number,
            spec=spec,
            puzzle_hash=look.hash,
            env=look.env,
            true=true,
            copies=copies,
            text=look.env.state_text(prompter.state_text),
            turn=turn,
            rng=rng,
        )


def questions(
    part: "Sequence[Puzzle]", worker: "RolloutWorker", dynamics: "Dynamics"
) -> "list[Question]":
    """Choose a state of each puzzle: the start state or, for a later turn, a random state to which
    earlier turns may have led. If there is no such state, choose the start state."""
    from spa.planning.dynamics import Question, reachable

    asked = list[Question]()
    per_turn = {tag: each.max_actions_per_turn for tag, each in worker.prompters.items()}
    most = [(each.turn - 1) * per_turn[each.spec.tag] for each in part]
    for puzzle, reached in zip(part, reachable(part, most, dynamics), strict=True):
        prompter = worker.prompters[puzzle.spec.tag]
        # Each earlier turn has taken at least one action. If different numbers of actions lead to a
        # state, the largest number is used, because most turns use their full allowance of actions.
        actions_to = {
            key: count for count in range(puzzle.turn - 1, len(reached)) for key in reached[count]
        }
        actions_to.pop(puzzle.start, None)
        start = puzzle.start
        turn = 1
        count = 0
        if puzzle.turn > 1 and actions_to:
            start, count = list(actions_to.items())[int(puzzle.rng.integers(len(actions_to)))]
            turn = puzzle.turn
        view = dynamics.view(puzzle, start)
        left = prompter.max_actions_per_traj - count
        asked.append(
            Question(
                puzzle=puzzle,
                start=start,
                view=view,
                turn=turn,
                actions_left=left,
                messages=prompter.first_messages(view, turn=turn, actions_left=left),
            )
        )
    return asked


def thoughts_of(kind: str, chosen: Sequence[Searched]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the thoughts of each response, and the path from which the answer takes its
    actions."""
    texts = [each.text for each in chosen]
    if kind == "other_puzzle":
        texts = of_other_puzzles(texts)
    found = list[tuple[str, tuple[str, ...]]]()
    for each, text in zip(chosen, texts, strict=True):
        assert each.search.path is not None  # searches without a path were dropped
        if kind == "dealt":
            assert each.dealt is not None
            found.append(each.dealt)
        elif kind == "path":
            found.append((" ".join(each.search.path), each.search.path))
        else:
            found.append(("" if kind == "none" else text, each.search.path))
    return found


def of_other_puzzles(texts: Sequence[str]) -> list[str]:
    """Return, for each search, the text of another search whose text differs: the next search with
    the same number of lines, or else a search with a similar number. Raises DataError if all texts
    are the same."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        by_length[text.count("\n")].append(number)
    found = list[str]()
    for number, text in enumerate(texts):
        own = by_length[text.count("\n")]
        place = own.index(number)
        order = sorted(by_length, key=lambda length: abs(length - text.count("\n")))
        candidates = [
            *own[place + 1 :],
            *own[:place],
            *(other for length in order[1:] for other in by_length[length]),
        ]
        other = next((texts[each] for each in candidates if texts[each] != text), None)
        if other is None:
            raise DataError(
                f"generate.search.thoughts=other_puzzle: all {len(texts)} puzzles have the same search, so none can "
                "take that of another. Raise generate.search.examples, or use other puzzles."
            )
        found.append(other)
    return found


def taken(path: tuple[str, ...], question: "Question", prompter: Prompter) -> tuple[str, ...]:
    """Return the first actions of the path, up to the number that the turn allows."""
    return path[: min(prompter.max_actions_per_turn, question.actions_left)]


def response(thoughts: str, actions: Sequence[str], prompter: Prompter) -> str:
    """Write the response: thoughts, if enabled, and actions."""
    answer = f"<answer>{f' {prompter.action_sep} '.join(actions)}</answer>"
    return f"<think>{thoughts}</think>{answer}" if prompter.enable_think else answer


def row_of(
    question: "Question",
    thoughts: str,
    path: tuple[str, ...],
    worker: "RolloutWorker",
    dynamics: "Dynamics",
) -> SFTExample:
    """Make the example whose response has these thoughts and the first actions of `path`. The
    actions are played to get the reward and the next state."""
    spec = question.puzzle.spec
    prompter = worker.prompters[spec.tag]
    actions = taken(path, question, prompter)
    played = dynamics.play(question, actions, prompter.state_text)
    return SFTExample(
        prompt=question.messages,
        response=response(thoughts, actions, prompter),
        tag=spec.tag,
        episode_id=spec.episode_id,
        turn=question.turn - 1,
        puzzle_seed=spec.puzzle_seed,
        puzzle_hash=question.puzzle.puzzle_hash,
        success=played.success,
        reward=played.reward,
        state=question.view.world_state_text(prompter.state_text),
        next_state=played.next_state,
        executed=played.executed,
    )


SOURCE = WrittenSearch()
