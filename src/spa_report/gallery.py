"""Select, by fixed rules, episodes that help to explain the result of a report."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from spa.run.console import printable
from spa_report.curves import RunArm
from spa_report.facts import ENDINGS
from spa_report.index import Place, read_episode
from spa_report.reading import StageFolder, TrajectoryFile, heads, last_validation
from spa_report.replay import any_wrong, replay

Head = dict[str, Any]
_SAMPLE = 2000
"""Maximum number of a method's episodes from which to choose. That many suffice for every rule."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An episode of the gallery. `why` is the reason for choosing it, and `replay` the result of
    `replay.replay`."""

    title: str
    why: str
    method: str
    link: str
    """Fragment of the viewer's URL (after `#`) that shows this episode."""
    replay: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Found:
    """An episode and its location."""

    head: Head
    place: Place
    link: str


def choose(
    methods: Sequence[RunArm], order: Sequence[str], steps: dict[str, int | None]
) -> Iterator[Picture]:
    """Yield pictures of the first two methods in `order`, from the last validation of each. `steps`
    limits the step of that validation per method.

    The pictures show a puzzle that one method won and the other lost, correct and wrong
    predictions, failures and malformed responses. No episode is shown twice.
    """
    by_label = {method.label: method for method in methods}
    leading = [by_label[label] for label in order[:2]]
    episodes_of = {method.label: _episodes(method, steps[method.label]) for method in leading}
    shown: set[Place] = set()

    def picture(
        method: RunArm, title: str, why: str, candidates: Sequence[_Found]
    ) -> Iterator[Picture]:
        for episode in candidates:
            whole = None if episode.place in shown else read_episode(episode.place)
            if whole is not None:
                shown.add(episode.place)
                # The gallery does not show tokens; keeping them would only enlarge the page.
                whole.pop("token_ids", None)
                yield Picture(title, why, method.label, episode.link, replay(whole))
                return

    if len(leading) == 2:
        first, second = leading
        won, lost = _same_puzzle(episodes_of[first.label], episodes_of[second.label])
        same = "The same puzzle, played by both methods."
        yield from picture(first, f"Won by {first.label}", same, won)
        yield from picture(second, f"The same puzzle, not solved by {second.label}", same, lost)
    for method in leading:
        yield from _of_method(method, episodes_of[method.label], picture)


def _of_method(
    method: RunArm,
    episodes: list[_Found],
    picture: Callable[[RunArm, str, str, Sequence[_Found]], Iterator[Picture]],
) -> Iterator[Picture]:
    def matching(test: Callable[[Head], bool]) -> list[_Found]:
        return [episode for episode in episodes if test(episode.head)]

    # A puzzle that is solved in one turn shows little of a world model.
    good = matching(
        lambda head: head["success"] and any_wrong(head) is False and len(head["turns"]) > 1
    )
    yield from picture(
        method,
        "Success with correct predictions",
        "The episode succeeded, and every predicted state is correct.",
        good,
    )
    if not good:
        won = matching(lambda head: head["success"])
        # One-turn successes come last but are not dropped, because there may be no others.
        won.sort(key=lambda episode: len(episode.head["turns"]) < 2)
        yield from picture(
            method, "A success", "The episode succeeded. Predicted states may be wrong.", won
        )
    wrong = matching(lambda head: any_wrong(head) is True)
    yield from picture(
        method,
        "A wrong prediction",
        "In the marked cells, the predicted state differs from the true next state.",
        wrong,
    )
    ending = _most_common_failure(episodes)
    if ending:
        why = f"The most common failure of {method.label}: {ENDINGS.get(ending, ending)}."
        yield from picture(
            method, "A typical failure", why, matching(lambda head: head["stop"] == ending)
        )
    broken = matching(
        lambda head: not all(turn["response"]["well_formed"] for turn in head["turns"])
    )
    yield from picture(
        method, "A malformed response", "The response did not follow the requested format.", broken
    )


def _episodes(method: RunArm, step: int | None) -> list[_Found]:
    """Episodes of the last validation up to `step`, shortest first, because short ones are easier
    to read."""
    heads_of = (
        _Found(head, Place(file.path, start), _link(method, stage, file, head))
        for stage in method.of("ppo") or method.of("eval")
        if (file := last_validation(stage, step))
        for start, head in heads(file.path)
        if head.get("turns")
    )
    return sorted(islice(heads_of, _SAMPLE), key=lambda episode: len(episode.head["turns"]))


def _link(method: RunArm, stage: StageFolder, file: TrajectoryFile, head: Head) -> str:
    where = {
        "run": method.folder,
        "tab": "episodes",
        "arm": stage.arm,
        "seed": "" if stage.seed is None else stage.seed,
        "stage": stage.name,
        "split": file.split,
    }
    return urlencode({**where, "step": file.step, "q": printable(str(head.get("episode_id")))})


def _same_puzzle(first: list[_Found], second: list[_Found]) -> tuple[list[_Found], list[_Found]]:
    """Find an episode that `first` won and an episode of the same puzzle that `second` lost. Prefer
    wins of at least two turns. Both lists are empty if there is no such pair."""
    lost: dict[tuple[str, Any], _Found] = {}
    for episode in second:
        if not episode.head["success"]:
            lost.setdefault(_puzzle(episode), episode)
    pairs = [
        (episode, lost[_puzzle(episode)])
        for episode in first
        if episode.head["success"] and _puzzle(episode) in lost
    ]
    pairs.sort(key=lambda pair: len(pair[0].head["turns"]) < 2)
    return [won for won, _ in pairs[:1]], [lost for _, lost in pairs[:1]]


def _puzzle(episode: _Found) -> tuple[str, Any]:
    # Compare puzzles by content hash, because two runs may give the same puzzle different seeds.
    return str(episode.head.get("tag")), episode.head.get("puzzle_hash")


def _most_common_failure(episodes: list[_Found]) -> str:
    counts = Counter(episode.head["stop"] for episode in episodes if not episode.head["success"])
    return counts.most_common(1)[0][0] if counts else ""
