"""The base classes of response formats, with the behaviour that most world-model formats share."""

import logging
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spa.config.problems import Problems
from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.formats.blocks import (
    Span,
    base_blocks,
    cut,
    find_block,
    leaf,
    observes_first,
    replace_block,
    replace_state,
    split_actions,
    states_inside,
    thinks_first,
    thoughts_of,
    without_markers,
)
from spa.formats.plans import Option, plan_sentence
from spa.types import Episode, Metrics, ParsedResponse, Turn

log = logging.getLogger(__name__)

MODES = ("base", "add_worldmodel")
CONTROLS = ("vanilla_wm", "spa_shuffled")
"""The methods that `spa compare --controls` adds."""

MALFORMED = "malformed"
NO_STATE_BLOCKS = "no_state_blocks"
NOTHING_EXECUTED = "nothing_executed"
NO_NEXT_STATE = "no_next_state"
UNWRITABLE = "state_or_action_holds_format_tags"


@dataclass(frozen=True, slots=True)
class Relabelled:
    """Result of correcting a response. `text` is the corrected response, or None if it could not be
    corrected. In this case, `reason` gives the cause; otherwise it is ""."""

    text: str | None
    reason: str = ""


FAILURES = (
    "skipped",  # expands an open state that is not the next one
    "never_found",  # expands a state that no earlier line has found
    "expanded_again",  # expands a state twice
    "wrong_path",  # gives a wrong path to a state, or to the goal at the end
    "wrong_move",  # gives a wrong next state for an action, or leaves an action out
    "wrong_status",
    "wrong_open",  # gives a wrong list of open states
    "no_goal",  # ends before a goal is found
    "over_limit",  # correct up to the length limit, which cut it off
    "unreadable",
)
"""Kinds of the first error in a written search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScore:
    """Counts of correct parts in a written search. Each line is scored given the lines before it.
    `failure` is the kind of the first error (see `FAILURES`), or "" if the whole text is
    correct."""

    moves: int = 0
    moves_right: int = 0
    status_right: int = 0
    lines: int = 0
    next_right: int = 0  # lines that expand the correct next state
    # Scored paths: the paths in lines that expand a known state, and the path at the end.
    paths: int = 0
    paths_right: int = 0
    failure: str = ""
    # Other kinds of token -> (number of correct ones, number of all).
    kinds: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class ResponseFormat:
    """Base class of response formats. Without overrides, it behaves like `prediction_first`.

    `name` is the value of `agent_proxy.response_format`. `predicts` is true if a world-model
    response contains a predicted state. `begins_with_plan` is true if the plan precedes the
    prediction, so that a planner can write any plan and let the model predict its outcome.
    `last_block` is the tag of the last block. Except for `name`, only format modules read these
    attributes; all other code calls methods.
    """

    name: str
    predicts: bool = True
    begins_with_plan: bool = False
    last_block: str = "answer"

    # Settings and methods

    def check(self, cfg: Config, problems: Problems) -> None:
        """Add a problem for every setting that cannot be combined with this format."""
        for path, own in (("imagine", cfg.imagine), ("generate.imagine", cfg.generate.imagine)):
            if own.proposals == "exhaustive" and not self.begins_with_plan:
                problems.add(
                    f"{path}.proposals",
                    "exhaustive needs agent_proxy.response_format=plan_first, which predicts the result of a "
                    "given plan",
                )
        listed = self.plans(cfg.agent_proxy.imagined_plans)
        if cfg.algorithm.imagined_advantage > 0 and (
            not listed or cfg.ctx_manager.mode != "add_worldmodel"
        ):
            problems.add(
                "algorithm.imagined_advantage",
                "an imagined advantage needs agent_proxy.response_format=choose_plan and "
                "ctx_manager.mode=add_worldmodel",
            )

    def controls(self) -> tuple[str, ...]:
        """Return the names of the control methods that `spa compare --controls` adds."""
        return CONTROLS

    def warn_untrained(self, method: str) -> None:
        """Log a warning if `method` asks a base model for responses that it was never trained
        on."""

    def plans(self, asked: int) -> int:
        """Return the number of plans that a response lists with their predicted states if the
        prompt asks for `asked` plans; 0 for formats that list none. Examples of formats that list
        plans must also contain plans that were not executed."""
        return 0

    # Prompts

    def asks(self, env: TextEnv, blank: Callable[[str], str]) -> str:
        """Return the description of this format that the rules of a base prompt contain. It
        replaces the format reminder in every turn's message; "" keeps the reminder. `blank` marks
        the parts to fill in."""
        return ""

    def asked_thoughts(self, blank: Callable[[str], str], plans: int) -> str:
        """Return the part of a prompt that describes the thoughts of a world-model response.
        `blank` marks the parts to fill in; `plans` is the number of plans to list."""
        return f" {blank('your plan')} "

    # Responses that a program writes

    def write(
        self, observation: str, thoughts: str, prediction: str, answer: str, *, on: str = "\n"
    ) -> str:
        """Write a world-model response, prefill included. `on` separates the states from the tags;
        the default puts the states on their own lines."""
        foreseen = f"<prediction>{on}{prediction}{on}</prediction>"
        return f"{written_thoughts(observation, thoughts, on)}{foreseen}</think><answer>{answer}</answer>"

    def scripted_thoughts(self, answer: str, prediction: str, *, action_sep: str) -> str:
        """Return the thoughts of a scripted policy's response with this answer and prediction."""
        return ""

    def sample_thoughts(self, actions: Sequence[str], after: str) -> str:
        """Return the thoughts of the sample response in a prompt, whose actions lead to the state
        `after`."""
        return f" {plan_sentence(actions)} "

    def asked_plan(self, actions: Sequence[str]) -> str | None:
        """Return the thoughts to prefill, which state the plan `actions`, before the model writes
        its prediction. None if such thoughts would already contain the prediction."""
        return ""

    # Parsing

    def parse(
        self,
        text: str,
        *,
        mode: str,
        enable_think: bool = True,
        action_sep: str = "||",
        max_actions: int = 5,
    ) -> ParsedResponse:
        """Parse a response (prefill included). Never raises because of the text.

        Mode "base" expects `<think>..</think><answer>..</answer>` and reads it as the original
        does: it takes the first think block that only white space separates from an answer block.
        Text around the two is ignored. Tags of these two blocks and chat markers inside them are
        removed. A response without this pattern has no actions. With `enable_think=False`, mode
        "base" expects only the answer block and reads the first one; mode "add_worldmodel" ignores
        the setting, because the states need the think block.

        Mode "add_worldmodel" expects the same blocks with `<observation>..</observation> thoughts
        <prediction>..</prediction>` inside the think block (a subclass may place these blocks
        elsewhere, see `_in_order`). Each block must occur exactly once. Apart from the thoughts,
        only white space may be between blocks; text before the first and after the last block is
        tolerated. Observation, prediction and answer must not contain tags of the format.

        If the format of "add_worldmodel" is broken but one answer block can be read, its actions
        count and `well_formed` is False. `think` contains the thoughts: the think block without the
        two state blocks.

        Raises ValueError for an unknown mode.
        """
        if mode not in MODES:
            raise ValueError(f"The prompt mode must be one of {MODES}, got {mode!r}")
        think = find_block(text, "think")
        # `leaf` rejects blocks that contain tags, because a tag in a state would shift the
        # boundaries of other blocks.
        observation, prediction, answer = (
            leaf(text, tag) for tag in ("observation", "prediction", "answer")
        )
        answer_text = "" if answer is None else cut(text, answer)
        if mode == "base":
            think, answer = base_blocks(text, think, enable_think)
            answer_text = "" if answer is None else without_markers(cut(text, answer))
        actions = split_actions(answer_text, action_sep=action_sep, max_actions=max_actions)
        in_order = True
        options: tuple[Option, ...] = ()
        if mode == "add_worldmodel":
            in_order = thinks_first(text, think, answer) and self._in_order(
                text, think, observation, prediction, answer
            )
            options = self._options(text, observation, prediction) if in_order else ()
            in_order = in_order and self._chosen(options, actions)
        thoughts = None if think is None else thoughts_of(text, think, observation, prediction)
        if mode == "base" and thoughts and answer:
            thoughts = without_markers(thoughts)
        return ParsedResponse(
            options=options,
            think=thoughts,
            observation=None if observation is None else cut(text, observation).strip(),
            prediction=None if prediction is None else cut(text, prediction).strip(),
            actions=actions,
            well_formed=bool(actions) and in_order,
        )

    def _in_order(
        self,
        text: str,
        think: Span | None,
        observation: Span | None,
        prediction: Span | None,
        answer: Span | None,
    ) -> bool:
        """Return whether the state blocks are where this format puts them. Called only if the
        answer directly follows the think block."""
        return states_inside(text, think, observation, prediction)

    def _options(
        self, text: str, observation: Span | None, prediction: Span | None
    ) -> tuple[Option, ...]:
        """Return the plans that a response lists, each with its predicted state."""
        return ()

    def _chosen(self, options: Sequence[Option], actions: Sequence[str]) -> bool:
        """Return whether the answer is one of the plans that the response lists; always True for
        formats that list no plans."""
        return True

    # Correction with true states

    def relabel(self, turn: Turn, *, action_sep: str, options: Sequence[Option] = ()) -> Relabelled:
        """Return the turn's response with true states and executed actions (stage 1 of arXiv
        2510.15047).

        The observation is replaced by `turn.target`, the prediction by `turn.next_target` (the
        state after all executed actions), and the answer by the executed actions. Thoughts are
        unchanged, except for plans that the format puts in them. Text outside the blocks is
        removed. If the format lists plans, `options` are the plans to list, with their true states;
        by default only the executed plan.

        The result is parsed again, and discarded unless it contains exactly the true states and
        executed actions. If a response cannot be corrected, `Relabelled.reason` gives the cause.
        """
        text = turn.response_text
        if not turn.response.well_formed:
            return Relabelled(None, MALFORMED)
        if find_block(text, "observation") is None or (
            self.predicts and find_block(text, "prediction") is None
        ):
            return Relabelled(None, NO_STATE_BLOCKS)
        most = len(turn.response.actions)
        if not self.parse(
            text, mode="add_worldmodel", action_sep=action_sep, max_actions=most
        ).well_formed:
            # The response is well formed in the format or mode that produced it, but not in this
            # one.
            return Relabelled(None, MALFORMED)
        if not turn.executed:
            return Relabelled(None, NOTHING_EXECUTED)
        if self.predicts and not turn.next_target.strip():
            return Relabelled(None, NO_NEXT_STATE)
        if self.predicts:
            text = replace_state(text, "prediction", turn.next_target)
        options = options or [(turn.executed, turn.next_target)]
        text = self._with_plans(text, turn, options)
        text = replace_state(text, "observation", turn.target)
        text = replace_block(text, "answer", f" {action_sep} ".join(turn.executed))
        last = f"</{self.last_block}>"
        text = text[text.find("<think>") : text.rfind(last) + len(last)]
        # This check fails, for example, if a state contains a tag of the format, which ends its
        # block early.
        if not self._has_true_states(text, turn, action_sep, options):
            return Relabelled(None, UNWRITABLE)
        return Relabelled(text)

    def _with_plans(self, text: str, turn: Turn, options: Sequence[Option]) -> str:
        """Return the response with the executed plan (and the other `options`) written into its
        thoughts, in formats whose thoughts contain plans."""
        return text

    def _has_true_states(
        self, text: str, turn: Turn, action_sep: str, options: Sequence[Option]
    ) -> bool:
        # Allow one action more than was executed, so that parsing reveals a surplus action.
        limit = len(turn.executed) + 1
        response = self.parse(text, mode="add_worldmodel", action_sep=action_sep, max_actions=limit)
        foretold = not self.predicts or response.prediction == turn.next_target.strip()
        return (
            response.well_formed
            and response.observation == turn.target.strip()
            and foretold
            and response.actions == turn.executed
            and self._says_options(response, options)
        )

    def _says_options(self, response: ParsedResponse, options: Sequence[Option]) -> bool:
        return True

    def correction_obstacle(self) -> str:
        """Return the reason why responses cannot be corrected from their turn alone; "" if they
        can."""
        return ""

    def base_thoughts(self, thoughts: str, actions: Sequence[str], said: Sequence[str]) -> str:
        """Convert the thoughts of a world-model response to thoughts of a base response, which has
        no states. `actions` are the executed actions, `said` the actions in the model's answer."""
        return thoughts

    # Scores and the viewer

    def require_predictions(self) -> None:
        """Raise ConfigError if responses of this format contain no predictions, whose accuracy
        could be measured."""

    def measured(self, figures: dict[str, Any]) -> dict[str, Any]:
        """Return the world-model accuracy metrics in `figures` that are defined for this format; by
        default all."""
        return figures

    def scored(self, episode: Episode) -> bool:
        """Return whether the thoughts of the episode's responses can be scored."""
        return False

    def reference(self, env: TextEnv) -> Any:
        """Return the reference with which `score` compares the thoughts of an episode's base
        responses, computed from the episode's first state; None if this format scores no thoughts.
        """
        return None

    def score(
        self, thoughts: str, reference: Any, env: TextEnv, *, complete: bool
    ) -> SearchScore | None:
        """Score the thoughts of a base response, written in the state of `env`, by kind of token.
        `complete` is False if the thoughts were cut off. Returns None if they cannot be scored."""
        return None

    def parts(self, text: str) -> list[tuple[str, int, int]]:
        """Return the parts of a response for which SFT reports separate metrics, each as (kind,
        begin, end). `text` may lack the prefill."""
        blocks = {tag: find_block(text, tag) for tag in ("observation", "prediction", "answer")}
        return [(tag, *span) for tag, span in blocks.items() if span is not None]

    def show(self, thoughts: str, actions: Sequence[str]) -> list[dict[str, Any]]:
        """Return the thoughts as the viewer shows them, one dict per line; empty if the viewer does
        not show this format line by line."""
        return []


class WrittenFormat(ResponseFormat):
    """Format of base responses whose thoughts a program can write, such as a search or a
    derivation. Each subclass has its own notation and order. `spa.examples.search` writes training
    examples in it, from copies of the game or from a model's predicted moves.

    The argument `view` of its methods is the game as a prompt shows it in one state: a `TextEnv`,
    or a `PredictedView` of a predicted state. `unsolved` is the reason recorded for a puzzle that
    is dropped because its search found no path.
    """

    unsolved: str = "no_goal"
    reads_puzzle: bool = False  # whether it calls `push_puzzle` or `constraint_problem`

    def check(self, cfg: Config, problems: Problems) -> None:
        """Also add a problem unless `ctx_manager.mode` is `base`, and for puzzles in other processes
        that the format reads."""
        super().check(cfg, problems)
        if cfg.ctx_manager.mode != "base":
            problems.add(
                "agent_proxy.response_format",
                f"{self.name} needs ctx_manager.mode=base, because its responses contain no state blocks",
            )
        # The processes of environments send plain values alone.
        if self.reads_puzzle and cfg.es_manager.env_workers > 0:
            problems.add(
                "es_manager.env_workers",
                f"must be 0 with agent_proxy.response_format={self.name}, which reads whole puzzles",
            )

    def controls(self) -> tuple[str, ...]:
        """Return no names. Formats for which control methods are defined override this."""
        return ()

    def warn_untrained(self, method: str) -> None:
        """Warn that a base model cannot write these thoughts."""
        log.warning(
            "method %s asks the base model for responses of the format %s, which it has never learned. The baseline "
            "of this configuration is random_format, which learns from as many examples of random play",
            method,
            self.name,
        )

    def scored(self, episode: Episode) -> bool:
        """Return whether the episode has base responses that begin with thoughts."""
        return (
            episode.mode == "base"
            and bool(episode.turns)
            and episode.turns[0].response_text.startswith("<think>")
        )

    def explore(
        self, env: TextEnv
    ) -> tuple[dict[str, tuple[tuple[str, str, str], ...]], dict[str, TextEnv]]:
        """Return the states that examples can use: by default, all states that are reachable from
        the current one.

        The first dict maps state keys to true successors, beginning with the current state. The
        second one maps each non-terminal state to a copy of the game in that state.

        Raises ValueError or NotImplementedError for a game that cannot be used.
        """
        from spa.formats.search import explore

        return explore(env)

    def dealt(self, true: Any, start: str, view: Any, rng: np.random.Generator) -> Any:
        """Return the search for a control method. It starts at `start`, in a world where each
        state's outcomes are permuted at random among its actions.

        The permutation keeps each state's distance from the start. The order of states at one
        distance changes, so in a large game the line limit may end the search before the goal.
        """
        from spa.formats.search import dealt, run_search

        world = dealt(true, rng)
        return run_search(self.searching(start, view), world.__getitem__)

    def parts(self, text: str) -> list[tuple[str, int, int]]:
        """Return the parts of every line of the thoughts, and the answer, each as (kind, begin,
        end)."""
        found = list[tuple[str, int, int]]()
        begin = len("<think>") if text.startswith("<think>") else 0
        # Without thoughts, the response begins with its answer.
        last = re.search("</think>|<answer>", text)
        for line in re.compile(r"[^\n]+").finditer(
            text, begin, last.start() if last else len(text)
        ):
            found += [
                (kind, line.start() + start, line.start() + stop)
                for kind, start, stop in self.line_parts(line[0])
            ]
        return [*found, *(part for part in super().parts(text) if part[0] == "answer")]

    def line_parts(self, line: str) -> Iterator[tuple[str, int, int]]:
        """Yield (kind, begin, end) for each word of a line. By default, all words are of one
        kind."""
        yield from (("word", *word.span()) for word in re.finditer(r"\S+", line))

    def searching(
        self, start: str, view: Any
    ) -> Generator[str, Sequence[tuple[str, str, str]], Any]:
        """Search from a state. This is a generator: it yields the key of the state to expand,
        receives that state's successors (action, target, outcome), and returns the finished search.

        The search has the attributes `path` (None if no goal was found) and `lines`. Each line has
        the `key` of the expanded state and its `moves`.
        """
        raise NotImplementedError

    def written(self, search: Any, view: Any) -> str:
        """Write a search as the thoughts of a response."""
        raise NotImplementedError


class AfterThoughts(ResponseFormat):
    """Base class of formats whose think block contains no prediction."""

    def _in_order(
        self,
        text: str,
        think: Span | None,
        observation: Span | None,
        prediction: Span | None,
        answer: Span | None,
    ) -> bool:
        return observes_first(text, think, observation) and self._ends_well(
            text, answer, prediction
        )

    def _ends_well(self, text: str, answer: Span | None, prediction: Span | None) -> bool:
        raise NotImplementedError


def written_thoughts(observation: str, thoughts: str, on: str) -> str:
    """Return the beginning of a world-model response: the opening of the think block, the
    observation and the thoughts."""
    return f"<think><observation>{on}{observation}{on}</observation>{thoughts}"


def search_metrics(scores: Sequence[SearchScore]) -> Metrics:
    """Compute the metrics of written searches; empty without scores.

    The metrics of moves, statuses, expansions, paths and other tokens are shares of correct ones,
    pooled over all responses. `search/exact` is the share of responses without an error.
    `search/KIND`, with a kind from `FAILURES`, is the share of responses whose first error is of
    this kind.
    """
    if not scores:
        return {}

    # Counts are pooled over responses, so long searches weigh more than short ones.
    def share(right: str, of: str) -> float:
        return sum(getattr(each, right) for each in scores) / max(
            1, sum(getattr(each, of) for each in scores)
        )

    metrics = {
        "search/move": share("moves_right", "moves"),
        "search/status": share("status_right", "moves"),
        "search/next": share("next_right", "lines"),
        "search/path": share("paths_right", "paths"),
        "search/exact": sum(not each.failure for each in scores) / len(scores),
    }
    for kind in dict.fromkeys(kind for score in scores for kind in score.kinds):
        known = [score.kinds[kind] for score in scores if kind in score.kinds]
        right, total = (sum(part) for part in zip(*known, strict=True))
        metrics[f"search/{kind}"] = right / max(1, total)
    own = (score.failure for score in scores if score.failure)
    for name in dict.fromkeys((*FAILURES, *own)):
        metrics[f"search/{name}"] = sum(each.failure == name for each in scores) / len(scores)
    return metrics
