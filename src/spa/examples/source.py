"""The interface of a source of examples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spa.config.problems import Problems
from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.plugins import example_source
from spa.types import Episode, Metrics, PromptMode, SFTExample

if TYPE_CHECKING:
    from spa.rollout.worker import RolloutWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzles:
    """The puzzles that examples are made from. worker: makes the games of the run. held_out: hashes
    of the validation puzzles."""

    worker: "RolloutWorker"
    held_out: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples of a source. dropped: number of turns or puzzles without an example, by reason."""

    examples: list[SFTExample]
    dropped: Counter[str]
    # Number of leading examples for training, the others being for validation; None: split by
    # puzzle.
    training: int | None = None
    summary: dict[str, Any] = field(default_factory=dict)  # more lines of summary.json
    metrics: Metrics = field(default_factory=dict)


class ExampleSource:
    """One way to make examples. Self-play, its rounds, the pipeline, the checks and the comparison
    use this interface and know no source by name.

    policies: values of `generate.policy` that select this source. plays: whether episodes are
    played first, to make the examples from. mode: the prompt mode of its examples. has_states:
    whether responses contain states. checks_puzzles: whether `require` needs a puzzle. order:
    sources with a smaller number are asked first whether a configuration is theirs.
    """

    policies: tuple[str, ...] = ()
    plays: bool = True
    mode: PromptMode = "add_worldmodel"
    has_states: bool = True
    checks_puzzles: bool = False
    order: int = 0

    def makes(self, cfg: Config) -> bool:
        """Return whether the configuration selects this source."""
        raise NotImplementedError

    def check(self, cfg: Config, problems: Problems) -> None:
        """Add a problem for every setting that cannot be combined with this source."""

    def require(self, cfg: Config, env: TextEnv, tag: str) -> None:
        """Raise ConfigError if this source cannot use the game `env`, which has been reset."""

    def first_round(self, cfg: Config) -> Config:
        """The configuration of the first round alone."""
        return cfg

    def rounds(self, cfg: Config) -> list[Config]:
        """The configuration of each round of self-play and SFT."""
        return [self.first_round(cfg)]

    def fine_tuned_alone(self, cfg: Config) -> Config:
        """The configuration for a command that runs only SFT on the examples of the first of
        several rounds."""
        return cfg

    def make(self, cfg: Config, puzzles: Puzzles, episodes: Sequence[Episode]) -> Examples:
        """Make the examples from `episodes`, or from `puzzles` alone if the source does not play.

        Raises ConfigError for a game that cannot be used, DataError if there are too few examples.
        """
        raise NotImplementedError


def source_of(cfg: Config) -> ExampleSource:
    """The source of the examples that a configuration asks for."""
    return example_source(cfg)
