"""Methods of the field, one file each. Equations: docs/methods.md.

A file may have any of these:

* `annotate(batch, episodes, context) -> batch`: what a PPO step learns besides the reward. It
  returns the batch with other `rl_weights`, `ce_weights` or `advantages`, or with more rows; the
  same batch if its settings switch it off (`spa.methods.context`).
* `sft_mask(message, ids, template) -> list[bool]`: which tokens carry the loss of SFT with
  `sft.data.loss_on` at the file's name (`spa.worldmodel.sequences`).
* `stored(cfg, template)` and `stored_in(cfg)`: examples of stage 2 that a PPO step gets as
  `context.stored`, and their folder.
* `METHODS`: the names under which `spa compare` trains it, each with a `Method`.

No other file has to name a new one: `spa.plugins.defined_by_methods` looks into this folder.
"""

from dataclasses import dataclass

NO_EXAMPLES = "actor_rollout_ref.actor.replay.examples=0"

WRITTEN = (
    "ctx_manager.mode=base",
    "ctx_manager.history=false",
    "generate.policy=search",
    "generate.search.dynamics=simulator",
    "generate.example_format=base",
    "generate.rounds=1",
    "generate.later_batches=null",
    "gate.enable=false",
    "algorithm.gamma=1.0",  # turns are rows of their own, between which nothing is discounted
)
"""Overrides of methods whose examples a program writes (`spa.examples.search`), but for the format."""
"""A method that does not learn from states before PPO does not replay them in PPO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Overrides that define a method. `overrides` apply to the whole training, `world_model` to
    stages 1 and 2 alone, `ppo` to stage 3 alone; without `fine_tuned`, PPO starts from the base
    model. `steps`: PPO steps, as a multiple of the configuration's. `group_size`: PPO plays as many
    episodes in each step, in groups of this size."""

    description: str
    overrides: tuple[str, ...] = ()
    world_model: tuple[str, ...] = ()
    ppo: tuple[str, ...] = ()
    fine_tuned: bool = True
    steps: int = 1
    group_size: int | None = None

    @property
    def has_control(self) -> bool:
        """True if SFT trains on states, so that a control can shuffle them between turns."""
        return self.fine_tuned and "generate.example_format=base" not in (
            *self.overrides,
            *self.world_model,
        )

    @property
    def changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The overrides of stages 1 and 2, and those of stage 3, which replays no rows where there
        was no stage 1."""
        return (
            (*self.overrides, *self.world_model),
            (*self.overrides, *(() if self.fine_tuned else (NO_EXAMPLES,)), *self.ppo),
        )
