"""Sections on self-play, and on the examples made from it."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from spa.config.fields import Invalid, Key, OutputFolder, section
from spa.config.schema_rollout import Sampling


@section
class SamplingConfig(Sampling):
    """Sampling settings of self-play."""

    # In the original code, self-play uses the sampling settings of validation. Here it has its own.
    response_length: Annotated[
        int, Key("largest number of new tokens per turn", affects="semantics", ge=1)
    ] = 400


@section
class ImagineConfig:
    """Model-based planning: sample several responses, and play the one whose predicted state has
    the highest value.

    The section `imagine` applies to evaluation (`spa eval --plan`), and `generate.imagine` to
    self-play. With several rounds of self-play, planning begins in the second round.
    """

    n: Annotated[
        int,
        Key(
            "number of responses sampled in each state; 1 turns planning off",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    proposals: Annotated[
        Literal["sampled", "exhaustive"],
        Key(
            "what the planner expands: the actions of sampled responses (`sampled`), or every action of "
            "the game (`exhaustive`)",
            affects="semantics",
        ),
    ] = "sampled"
    depth: Annotated[
        int,
        Key(
            "number of turns to predict ahead; with proposals=exhaustive, the number of actions",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    width: Annotated[
        int,
        Key(
            "number of predicted states that the planner expands at each depth",
            affects="semantics",
            ge=1,
        ),
    ] = 8
    keep: Annotated[
        bool,
        Key(
            "follow a planned path to the goal while its predictions are correct; `false` replans in "
            "each turn",
            affects="semantics",
        ),
    ] = False
    dynamics: Annotated[
        Literal["model", "simulator", "shuffled"],
        Key(
            "source of next states: predictions in the responses (`model`), a copy of the game "
            "(`simulator`), or predictions of other responses (`shuffled`, a control)",
            affects="semantics",
        ),
    ] = "model"
    noise_prob: Annotated[
        float,
        Key(
            "probability that the simulator returns the next state of a random plan instead of the true "
            "next state",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.noise_prob > 0 and self.dynamics != "simulator":
            raise Invalid(
                "noise_prob",
                "noise_prob above 0 needs dynamics=simulator, because only the simulator's states can be "
                "corrupted",
            )
        if self.keep and self.depth == 1:
            raise Invalid(
                "keep",
                "keep=true needs a depth of at least 2, because a path of one turn leaves no turn to follow",
            )
        if self.proposals == "exhaustive" and self.n > 1:
            raise Invalid("n", "must be 1 with proposals=exhaustive, which samples no responses")
        if self.proposals == "exhaustive" and self.dynamics == "simulator":
            raise Invalid(
                "dynamics",
                "cannot be simulator with proposals=exhaustive, which uses the model's predictions",
            )
        return self

    @property
    def on(self) -> bool:
        """True if planning is on."""
        return self.n > 1 or self.proposals == "exhaustive"

    @property
    def reads_predictions(self) -> bool:
        """True if the planner reads predictions in responses."""
        return self.on and self.dynamics != "simulator"

    @property
    def rows(self) -> int:
        """Approximate number of responses that are sampled in parallel for each episode."""
        # 8 is an estimate for the number of actions of a game. It only affects the batch sizes of
        # evaluations.
        return 8 if self.proposals == "exhaustive" else self.n


@section
class SearchExamplesConfig:
    """Settings of `generate.policy: search`, which makes examples whose responses write out a
    breadth-first search."""

    examples: Annotated[
        int,
        Key("number of training examples, each from a different puzzle", affects="semantics", ge=1),
    ] = 800
    start_share: Annotated[
        float,
        Key(
            "share of examples that show the start of a puzzle; the other examples show a later turn, in a "
            "random state that the turns before can lead to",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.6
    dynamics: Annotated[
        Literal["simulator", "model"],
        Key(
            "source of next states: copies of the game (`simulator`), or the model after SFT on single "
            "moves of random play (`model`, needs `generate.rounds=2`)",
            affects="semantics",
        ),
    ] = "simulator"
    moves: Annotated[
        int,
        Key(
            "number of one-action transitions that the first SFT trains on",
            affects="semantics",
            ge=1,
        ),
    ] = 1200
    moves_per_step: Annotated[
        int,
        Key(
            "number of one-action transitions per optimizer step of the first SFT",
            affects="semantics",
            ge=1,
        ),
    ] = 15
    thoughts: Annotated[
        Literal["search", "path", "none", "dealt", "other_puzzle"],
        Key(
            "content of the think block: the whole search (`search`), only the path that it finds (`path`), or no "
            "think block (`none`, needs `agent_proxy.enable_think=false`). Controls: `dealt` permutes the outcomes "
            "among a state's actions, and `other_puzzle` is the search of another puzzle",
            affects="semantics",
        ),
    ] = "search"


@section
class GenerateConfig:
    """Stage 1: self-play with ground-truth states, on the environments of `es_manager.train`."""

    # 5 x 256 episodes, as in the original code.
    num_batches: Annotated[
        int,
        Key(
            "number of self-play batches; each batch has new puzzles and as many episodes as a PPO step",
            affects="semantics",
            ge=1,
        ),
    ] = 5
    group_size: Annotated[
        int | None,
        Key(
            "episodes per puzzle in self-play, which must divide `es_manager.train.group_size`; null "
            "uses that group size. The number of episodes per batch does not change",
            affects="semantics",
            ge=1,
        ),
    ] = None
    rounds: Annotated[
        int,
        Key(
            "number of rounds of self-play and fine-tuning; from round 2 on, the fine-tuned model plays",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    later_batches: Annotated[
        int | None,
        Key(
            "number of self-play batches in each round after the first; null uses `num_batches`",
            affects="semantics",
            ge=1,
        ),
    ] = None
    train_on: Annotated[
        Literal["all_rounds", "current_round"],
        Key(
            "examples for fine-tuning in later rounds: examples of all rounds (`all_rounds`), or only of "
            "the current round (`current_round`)",
            affects="semantics",
        ),
    ] = "all_rounds"
    output_dir: Annotated[
        OutputFolder | None,
        Key("folder of the self-play data; null uses `<trainer.run_dir>/data`", affects="paths"),
    ] = None
    # The split is by puzzle, so that no training puzzle is in the validation set. The original code
    # splits by example.
    val_fraction: Annotated[
        float,
        Key(
            "share of puzzles whose examples go to the validation file",
            affects="semantics",
            gt=0,
            le=0.9,
        ),
    ] = 0.2
    split_seed: Annotated[
        int,
        Key("seed of the split of puzzles into training and validation", affects="semantics", ge=0),
    ] = 42
    # The text of a shuffled state stays plausible, but no longer follows from the actions.
    shuffle_next_states: Annotated[
        bool,
        Key(
            "control: replace each next state by the true next state of another turn",
            affects="semantics",
        ),
    ] = False
    success_only: Annotated[
        bool, Key("keep only the turns of successful episodes", affects="semantics")
    ] = False
    policy: Annotated[
        str,
        Key(
            "policy that plays self-play. `self` is the model, `random` plays legal actions, and "
            "`counterfactual` plays at random and also tries every other action in a copy of the game. "
            "`expert` is a solver, `q_learning` is tabular Q-learning, and `search` writes examples "
            "without play. You can also name an installed policy",
            affects="semantics",
        ),
    ] = "self"
    branches: Annotated[
        int | None,
        Key(
            "number of plans that counterfactual play tries in each state; null tries every legal action",
            affects="semantics",
            ge=1,
        ),
    ] = None
    mixture: Annotated[
        Mapping[str, Annotated[float, Field(gt=0)]] | None,
        Key(
            "share of episodes per policy, for example {self: 0.5, counterfactual: 0.5}; null uses "
            "`policy` for all episodes",
            affects="semantics",
        ),
    ] = None
    # After resampling, rare outcomes of an action are trained on as often as common ones.
    coverage: Annotated[
        bool,
        Key(
            "resample training examples by the inverse frequency of their outcome, that is, of the action "
            "and whether the state changed",
            affects="semantics",
        ),
    ] = False
    epsilon: Annotated[
        float,
        Key("share of turns in which random actions are played", affects="semantics", ge=0, le=1),
    ] = 0.0
    states: Annotated[
        Literal["ground_truth", "model", "random_coords"],
        Key(
            "states in the training examples: `ground_truth`, or as controls the states that the model "
            "wrote (`model`) or random coordinates (`random_coords`)",
            affects="semantics",
        ),
    ] = "ground_truth"
    example_format: Annotated[
        Literal["world_model", "base", "moves"],
        Key(
            "format of the training examples: `world_model`, `base` (plans and answers only), or `moves` "
            "(one action and the short name of the next state)",
            affects="semantics",
        ),
    ] = "world_model"
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    imagine: ImagineConfig = field(default_factory=ImagineConfig)
    search: SearchExamplesConfig = field(default_factory=SearchExamplesConfig)

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies that play: the keys of `mixture`, or else `policy`."""
        return tuple(self.mixture or (self.policy,))

    @property
    def batches_of_later_rounds(self) -> int:
        """Number of batches of each later round."""
        return self.later_batches or self.num_batches
