"""Stage 2: supervised fine-tuning on world-model data (SPA, arXiv 2510.15047, section 2.2).

One step takes a batch of examples, computes the negative log-likelihood of their response tokens,
and updates the policy. `train_sft` is the whole loop. Batches, loss and update are in
`sft_updates`, and examples in `spa.worldmodel.sft_data`. `sft_run` loads the model and the data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spa.config.schema import Config
from spa.models.allocator import release_memory
from spa.prompts.template import ChatTemplate
from spa.recipes.sft_updates import (
    FORCED_EXAMPLES,
    forced_accuracy,
    lengths_of,
    update,
    validation_loss,
)
from spa.run.stage import Snapshot, Stage
from spa.training.update import MicroBatching, Trainable
from spa.types import Metrics
from spa.worldmodel.sft_data import SFTData

# Number of steps after which freed memory is returned to the system. This takes time, so it is not
# done at every step.
RELEASE_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The policy that SFT trains, with its optimizer. Checkpoints include `template`, its chat
    template. `micro` sets the size of micro-batches."""

    policy: Trainable
    template: ChatTemplate
    micro: MicroBatching
    device: torch.device

    def snapshot(self) -> Snapshot:
        """Return everything that SFT needs to resume. Collective: every rank must call it."""
        model = self.policy.full_model()
        state = self.policy.state()
        return Snapshot(model=model, tokenizer=self.template, state={"optimizer": state})


def train_sft(
    cfg: Config,
    stage: Stage,
    learner: Learner,
    data: SFTData,
    probe: Callable[[int], Metrics] | None,
) -> None:
    """Run supervised fine-tuning: batch of examples -> masked log-likelihood -> update. When
    validation is due, also compute the loss on validation examples and call `probe(step)`, which
    measures accuracy on held-out puzzles.

    With several ranks, each trains on its own share, but all run this same loop. If the process is
    asked to stop, saves a checkpoint and raises StopRequested.
    """
    trainer = cfg.sft.trainer
    policy = learner.policy
    images = learner.template.images
    # The order depends only on the seed, so a resumed stage can skip the batches that it was
    # trained on.
    batches = data.batches(seed=trainer.seed, skip=stage.step)
    for step in stage.steps(data.steps, save_every=trainer.save_freq or data.steps_per_epoch):
        batch = next(batches)
        with stage.timer("update"):
            policy.optimizer.at(step - 1)
            metrics = update(policy, batch, learner.micro, learner.device, images)
        if stage.due(step, trainer.test_freq or data.steps_per_epoch):
            with stage.timer("validate"):
                if data.val:
                    metrics["val/loss"] = validation_loss(
                        policy, data.val, learner.micro, learner.device, images
                    )
                    metrics |= forced_accuracy(
                        cfg,
                        policy,
                        data.val[:FORCED_EXAMPLES],
                        learner.micro,
                        learner.device,
                        learner.template,
                    )
                if probe is not None:
                    metrics |= probe(step)
        stage.commit(step, metrics, trained=learner, tokens=int(lengths_of(batch).sum()))
        if step % RELEASE_EVERY == 0:
            release_memory()
