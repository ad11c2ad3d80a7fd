"""Interface of the example sources."""

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
    """The puzzles from which examples are made."""

    worker: "RolloutWorker"  # creates the environments of the run
    held_out: frozenset[str]  # hashes of the validation puzzles


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The examples that a source has made."""

    examples: list[SFTExample]
    dropped: Counter[str]  # number of turns or puzzles without an example, by reason
    # The first `training` examples are for training, the others for validation. None: the examples
    # are split by puzzle.
    training: int | None = None
    summary: dict[str, Any] = field(default_factory=dict)  # additional entries of summary.json
    metrics: Metrics = field(default_factory=dict)


class ExampleSource:
    """One way to make examples. All other code uses only this interface and depends on no
    particular source.

    Sources are tried in ascending `order`. The first source whose `makes` returns True makes the
    examples.
    """

    policies: tuple[str, ...] = ()  # values of `generate.policy` that this source adds
    plays: bool = True  # whether the examples are made from episodes, which are played first
    mode: PromptMode = "add_worldmodel"  # prompt mode of the examples
    has_states: bool = True  # whether responses contain states
    checks_puzzles: bool = False  # whether `require` needs an environment that has been reset
    order: int = 0

    def makes(self, cfg: Config) -> bool:
        """Return whether the configuration selects this source."""
        raise NotImplementedError

    def check(self, cfg: Config, problems: Problems) -> None:
        """Add a problem for every setting that cannot be combined with this source."""

    def require(self, cfg: Config, env: TextEnv, tag: str) -> None:
        """Raise ConfigError if this source cannot use the game `env`, which has been reset."""

    def first_round(self, cfg: Config) -> Config:
        """Return the configuration of the first round."""
        return cfg

    def rounds(self, cfg: Config) -> list[Config]:
        """Return the configuration of each round of self-play and SFT."""
        return [self.first_round(cfg)]

    def fine_tuned_alone(self, cfg: Config) -> Config:
        """Return the configuration for a command that runs only SFT, on the examples of the first
        round."""
        return cfg

    def make(self, cfg: Config, puzzles: Puzzles, episodes: Sequence[Episode]) -> Examples:
        """Make the examples from `episodes`, or from `puzzles` alone if the source does not play.

        Raises ConfigError for a game that cannot be used, DataError if there are too few examples.
        """
        raise NotImplementedError


def source_of(cfg: Config) -> ExampleSource:
    """Return the source that makes the examples of a configuration."""
    return example_source(cfg)
