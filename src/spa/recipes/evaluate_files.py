"""Files of an evaluation: finished groups, episodes, responses of an API, and the result."""

import glob
import json
import logging
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from spa.evaluation.outcomes import Group
from spa.recipes.evaluate_puzzles import Puzzle
from spa.run.files import archive_files, dump_line, end_last_line, read_lines, write_atomic
from spa.types import Episode

log = logging.getLogger(__name__)


def write_result(output: Path, result: dict[str, Any]) -> None:
    """Write a result. An earlier result in the same file is moved to `previous/<n>/` if it differs,
    because it may have cost money."""
    text = json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if output.is_file() and output.read_bytes() != text.encode():
        log.warning(
            "spa moved the earlier evaluation result to %s",
            archive_files(output.parent, [output]) / output.name,
        )
    write_atomic(output, [text])


class Store:
    """Finished groups of an evaluation, in a JSON Lines file whose first line is the settings key.

    A file with another key is archived when the first group is added.
    """

    def __init__(self, path: Path, settings: str) -> None:
        self.path, self._settings = path, settings
        self._groups = dict[tuple[str, str, int], Group]()
        self._ours = path.is_file() and self._read()  # whether the file has these settings

    def __bool__(self) -> bool:
        """Return whether any group is finished."""
        return bool(self._groups)

    def find(self, chunk: Sequence[Puzzle]) -> list[Group] | None:
        """Return the groups of a chunk if all of them are finished, otherwise None."""
        stored = [self._groups.get((p.specs[0].tag, p.hash, p.specs[0].group)) for p in chunk]
        groups = [group for group in stored if group is not None and group.complete]
        return groups if len(groups) == len(chunk) else None

    def add(self, groups: Iterable[Group]) -> None:
        """Save finished groups."""
        if not self._ours:
            self._begin()
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(dump_line(group.to_json()) for group in groups)

    def _begin(self) -> None:
        if self.path.is_file():
            log.warning(
                "%s was written with other settings or another model; spa moved it to %s",
                self.path,
                archive_files(self.path.parent, [self.path]) / self.path.name,
            )
        write_atomic(self.path, [dump_line({"settings": self._settings})])
        self._ours = True

    def _read(self) -> bool:
        lines = read_lines(self.path)
        _, head = next(lines, ("", {}))
        if head.get("settings") != self._settings:
            return False
        for _, row in lines:
            try:
                group = Group.from_json(row)
            # A group in the format of another version is played again.
            except (TypeError, KeyError):
                continue
            self._groups[group.tag, group.puzzle_hash, group.group] = group
        # If a killed process left the last line incomplete, end it, so that the next group starts a
        # new line.
        end_last_line(self.path)
        return True


class EpisodeFile:
    """The episodes of an evaluation in the JSON Lines file `path`. The configuration, which the
    viewer and the report need, is written to config.yaml in the parent of the file's folder."""

    def __init__(self, path: Path, config: str, *, continued: bool) -> None:
        self.path, self._config = path, config
        self._begun = False  # whether episodes were added by this command
        self._continued = continued
        self._names = set[str]()

    def add(self, episodes: Sequence[Episode]) -> None:
        """Append episodes, and remove earlier ones with the same ids.

        Such episodes remain from a killed evaluation, or failed and were played again. The first
        call archives a file that was written with different settings.
        """
        if not self._begun:
            self._begin()
        names = {episode.episode_id for episode in episodes}
        if not self._names.isdisjoint(names):
            self._keep(lambda name: name not in names)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(dump_line(episode.to_json()) for episode in episodes)
        self._names |= names

    def _begin(self) -> None:
        folder = self.path.parent.parent
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_file() and not self._continued:
            archive_files(folder, [self.path])
        if self.path.is_file():
            self._keep(lambda name: True)  # drops an incomplete last line, as after a kill
        write_atomic(folder / "config.yaml", [self._config])
        self._begun = True

    def _keep(self, wanted: Callable[[str], bool]) -> None:
        """Rewrite the file with only the episodes for whose id `wanted` returns True. Incomplete
        lines are dropped."""
        kept = [
            (line, name)
            for line, row in read_lines(self.path)
            if wanted(name := str(row.get("episode_id")))
        ]
        write_atomic(self.path, [line for line, _ in kept])
        self._names = {name for _, name in kept}


def kept_responses(output: Path) -> int:
    """Count the API responses that are stored for the result file `output`, from all
    evaluations."""
    files = output.parent.glob(f"{glob.escape(output.stem)}.responses-*.jsonl")
    return sum(1 for path in files for _ in read_lines(path))


def usage(
    responses: Path, prices: tuple[float, float] | None, episodes: Set[str]
) -> dict[str, float]:
    """Sum the API usage of `episodes` (ids): requests, retries, empty responses, tokens, and the
    cost if `prices` are given, per million input and output tokens.

    The file `responses` may also contain other episodes, from an earlier evaluation of more
    puzzles.
    """
    kept = [row for _, row in read_lines(responses)] if responses.is_file() else []
    # A planner's prompts have the id of their episode, followed by # and a suffix.
    rows = [row for row in kept if str(row.get("episode")).partition("#")[0] in episodes]
    read, written = (
        sum(row.get(name, 0) for row in rows) for name in ("prompt_tokens", "completion_tokens")
    )
    used: dict[str, float] = {
        "requests": len(rows),
        "retries": sum(row.get("retries", 0) for row in rows),
        "empty_responses": sum(not row.get("text") for row in rows),
        "prompt_tokens": read,
        "completion_tokens": written,
    }
    if prices is not None:
        used["cost"] = round((read * prices[0] + written * prices[1]) / 1e6, 6)
    return used
