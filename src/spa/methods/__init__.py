"""Training methods, one file each. Equations: docs/methods.md.

A file may have any of these:

* `annotate(batch, episodes, context) -> batch`: change what a PPO step learns. It returns the batch
  with changed `rl_weights`, `ce_weights` or `advantages`, or with more rows. If its settings switch
  it off, it returns the batch unchanged (`spa.methods.context`).
* `sft_mask(message, ids, template) -> list[bool]`: select the tokens that contribute to the SFT
  loss if `sft.data.loss_on` is the file's name (`spa.worldmodel.sequences`).
* `stored(cfg, template)`: load the stage 2 examples that every PPO step gets as `context.stored`.
  `stored_in(cfg)` returns the folder that contains them.
* `METHODS`: the method names for `spa compare`, each with a `Method`.

A new file needs no registration: `spa.plugins.defined_by_methods` scans this folder.
"""

from dataclasses import dataclass

NO_EXAMPLES = "actor_rollout_ref.actor.replay.examples=0"
"""Override that switches replay off, for methods that do not train on states before PPO."""

WRITTEN = (
    "ctx_manager.mode=base",
    "ctx_manager.history=false",
    "generate.policy=search",
    "generate.search.dynamics=simulator",
    "generate.example_format=base",
    "generate.rounds=1",
    "generate.later_batches=null",
    "gate.enable=false",
    "algorithm.gamma=1.0",  # each turn is its own row, and nothing is discounted between rows
)
"""Overrides shared by all methods whose examples a program writes (`spa.examples.search`). Each
method adds its response format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The configuration overrides that define a method."""

    description: str
    overrides: tuple[str, ...] = ()  # for all stages
    world_model: tuple[str, ...] = ()  # only for stages 1 and 2
    ppo: tuple[str, ...] = ()  # only for stage 3
    fine_tuned: bool = True  # False: PPO starts from the base model
    steps: int = 1  # the configured number of PPO steps is multiplied by this
    # Size of PPO's groups; None: as configured. The number of episodes per step does not change.
    group_size: int | None = None

    @property
    def has_control(self) -> bool:
        """True if SFT trains on states. Only then does the method have a control, in which next
        states are shuffled between turns."""
        return self.fine_tuned and "generate.example_format=base" not in (
            *self.overrides,
            *self.world_model,
        )

    @property
    def changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The overrides for stages 1 and 2, and the overrides for stage 3, which include
        `NO_EXAMPLES` if the method skips SFT."""
        return (
            (*self.overrides, *self.world_model),
            (*self.overrides, *(() if self.fine_tuned else (NO_EXAMPLES,)), *self.ppo),
        )
