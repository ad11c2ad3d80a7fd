"""Stage 2: supervised fine-tuning on world-model data (SPA, arXiv 2510.15047, section 2.2).

The loss is the mean negative log-likelihood over all response tokens of the global batch: the true
state, the true next state, and the actions that lead from one to the other.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spa.config.schema import Config, SFTConfig
from spa.distributed.world import current_world
from spa.engines.factory import local_engine
from spa.envs.pool import EpisodeSpec
from spa.evaluation.episode_metrics import pooled_metrics
from spa.evaluation.search import pooled_search_metrics
from spa.evaluation.teacher_forced import teacher_forced_accuracy
from spa.evaluation.text import on_puzzles
from spa.formats.registry import format_of
from spa.models.allocator import limit_kernel_caches, release_memory
from spa.models.forward import token_logprobs
from spa.models.lora import ADAPTER
from spa.models.vision import ImageReader, RowFiles
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.parallel import check_optimizer, parallelize
from spa.recipes.published import note_published
from spa.recipes.sft_data import example_files, find_data, from_game, load_data
from spa.run.checkpoint import load_state
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import stage_fingerprint
from spa.run.manifest import Manifest, result_of
from spa.run.recorder import Recorder
from spa.run.stage import Snapshot, Stage
from spa.training.oom_retry import MicroBatching
from spa.training.optim import Optimizer, make_optimizer, warmup_constant, warmup_cosine
from spa.training.update import LossInfo, Trainable, forward_passes, score_logprobs
from spa.training.update import update as update_model
from spa.types import Metrics, SamplingParams, TokenBatch
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE, puzzles_in
from spa.worldmodel.sequences import TrainingSequence, batch_order, spread_evenly

log = logging.getLogger(__name__)

# Freed memory goes back to the system after every so many steps, since that takes time.
RELEASE_EVERY = 10
FORCED_EXAMPLES = 64
"""Validation sequences on which accuracy given the truth is measured."""


def run_sft(cfg: Config, *, directory: Path | None = None, data: Path | None = None) -> Path:
    """Fine-tune `sft.model.partial_pretrain` (`model_path`, unless told otherwise) on the data set;
    returns the last checkpoint. Without the gate, which belongs to the pipeline."""
    out = directory or Path(cfg.sft.trainer.default_local_dir)
    with open_stage(cfg, out, sft_fingerprint(cfg, data)) as stage:
        if stage.result is not None:
            return stage.result
        train_sft(cfg, stage, data)
        return stage.finish()


def open_stage(
    cfg: Config, folder: Path, fingerprint: Fingerprint, *, again: bool = False
) -> Stage:
    """Stage 2 in a folder."""
    trainer = cfg.sft.trainer
    return Stage(
        cfg,
        folder,
        fingerprint,
        keep=trainer.keep,
        resume_path=trainer.resume_path,
        again=again,
        trackers=setup.trackers_of(cfg),
    )


def train_sft(cfg: Config, stage: Stage, data: Path | None, *, before: Sequence[Path] = ()) -> None:
    """Supervised fine-tuning: batch of examples -> masked log-likelihood -> step; accuracy on
    held-out puzzles when due.

    `before`: the data sets that this model was fine-tuned on in earlier rounds. Raises
    StopRequested, when it has saved what there is, if the process is asked to stop.
    """
    sft = cfg.sft
    limit_kernel_caches()
    device = setup.pick_device(cfg)
    model, template = load_model(cfg, stage.resume_from, device)
    train_sequences, val_sequences = load_data(cfg, template, data)
    examples = [sequence.examples for sequence in train_sequences]
    # Merged sequences hold several examples each: batches, and so epochs, are counted in examples.
    per_epoch = len(spread_evenly(examples, sft.data.train_batch_size, range(len(examples))))
    total = sft.trainer.total_training_steps or per_epoch * sft.trainer.total_epochs
    learner = Learner(make_part(cfg, model, total, stage.resume_from, device), template)
    part = learner.part
    measured = sft.trainer.eval_episodes and from_game(cfg)
    probes = find_probes(cfg, template, data, before) if measured else None
    # The order follows from the seed, so a resumed stage skips the batches that it has trained on.
    batches = batch_order(
        examples, sft.data.train_batch_size, seed=sft.trainer.seed, skip=stage.step
    )
    tokens = sft.data.max_token_len_per_gpu
    micro = MicroBatching(
        rows=sft.data.micro_batch_size_per_gpu,
        max_tokens=tokens if isinstance(tokens, int) else None,
    )
    for step in stage.steps(total, save_every=sft.trainer.save_freq or per_epoch):
        batch = [train_sequences[i] for i in next(batches)]
        with stage.timer("update"):
            part.optimizer.at(step - 1)
            metrics = update(part, batch, micro, device, template.images)
        if stage.due(step, sft.trainer.test_freq or per_epoch):
            with stage.timer("validate"):
                if val_sequences:
                    metrics["val/loss"] = validation_loss(
                        part, val_sequences, micro, device, template.images
                    )
                    metrics |= forced_accuracy(
                        cfg, part, val_sequences[:FORCED_EXAMPLES], micro, device, template
                    )
                if probes:
                    metrics |= world_model_check(
                        cfg, part.full_model(), probes, stage.recorder, step, device
                    )
        stage.commit(step, metrics, trained=learner, tokens=int(lengths_of(batch).sum()))
        if step % RELEASE_EVERY == 0:
            release_memory()


def sft_fingerprint(cfg: Config, data: Path | None) -> Fingerprint:
    """The fingerprint of stage 2 on the data set that it would find: known by the stage that made
    it, or by its content if that is not ours. That of a later round of self-play is known by its
    content, too: the stage before it continues from the round before, which a fine-tuning stage alone
    does not."""
    folder = find_data(cfg, data)
    named = cfg.sft.data.train_files or cfg.data.train_files

    def made_by() -> dict[str, Any] | None:
        if not named:
            result_of(folder)  # raises if the files are not those of the manifest
        made = Manifest.read(folder)
        return (
            made.fingerprint.to_json()
            if made is not None and made.fingerprint.parent is None
            else None
        )

    known = current_world().broadcast(made_by)
    parent = Fingerprint.from_json(known) if known else None
    return stage_fingerprint(cfg, "sft", parent=parent, data=None if parent or named else folder)


@dataclass(frozen=True, slots=True)
class Learner:
    """The model that SFT trains, and the chat template that it is saved with."""

    part: Trainable
    template: ChatTemplate

    def snapshot(self) -> Snapshot:
        """Everything that SFT needs to resume."""
        model = self.part.full_model()
        state = self.part.state()
        return Snapshot(model=model, tokenizer=self.template, state={"optimizer": state})


def load_model(cfg: Config, resume: Path | None, device: torch.device) -> tuple[Any, ChatTemplate]:
    """The policy as it was at the checkpoint `resume`, by default `sft.model.partial_pretrain`, and
    its template."""
    own = cfg.sft
    # With LoRA the checkpoint's adapters are put onto the original base.
    source = str(resume) if resume and own.model.lora_rank == 0 else own.model.partial_pretrain
    note_published(source)
    model, template = setup.load_actor(cfg, source, device, own.model)
    adapters = resume / ADAPTER if resume else None
    setup.make_trainable(model, own.model, device, seed=own.trainer.seed, adapters=adapters)
    return model, template


def make_part(
    cfg: Config, model: Any, total: int, resume: Path | None, device: torch.device
) -> Trainable:
    """The model with its optimizer, which resumes from the checkpoint `resume`."""
    own = cfg.sft
    check_optimizer(own.optim.name, own.model.strategy)
    autocast = setup.pick_autocast(own.model.dtype, device)
    part = Trainable(
        model=model,
        parallel=parallelize(
            model, own.model.strategy, own.model.fsdp_config, autocast=autocast, played=True
        ),
        optimizer=make_sft_optimizer(own, model, total),
        grad_clip=own.optim.clip_grad,
        autocast=autocast,
    )
    if resume:
        part.optimizer.load_state_dict(load_state(resume)["optimizer"])
    return part


def make_sft_optimizer(sft: SFTConfig, model: Any, total: int) -> Optimizer:
    """AdamW or Muon, warm-up and cosine (or constant) over `total` steps."""
    optim = sft.optim
    warmup = int(total * optim.warmup_steps_ratio)
    schedule = (
        warmup_cosine(total, warmup) if optim.lr_scheduler == "cosine" else warmup_constant(warmup)
    )
    return make_optimizer(
        model,
        name=optim.name,
        lr=optim.lr,
        betas=optim.betas,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        muon_lr=optim.muon_lr,
        schedule=schedule,
    )


def update(
    part: Trainable,
    batch: list[TrainingSequence],
    micro: MicroBatching,
    device: torch.device,
    reader: ImageReader | None = None,
) -> Metrics:
    """One optimizer step; the gradient does not depend on how the batch is cut, nor on how many
    ranks share it."""
    tokens = token_batch(batch, reader)
    # Tokens are counted before the batch is cut, over all ranks: in a mean of micro-batch means,
    # the tokens of short responses would have a larger weight.
    targets = max(1, int(tokens.mask.sum()))
    update_metrics = update_model(
        part, [tokens], partial(response_loss, targets=targets), micro, device
    )
    metrics = {f"train/{name}": value for name, value in update_metrics.items()}
    examples = sum(sequence.examples for sequence in batch)
    return metrics | {"train/tokens": float(targets), "train/examples": float(examples)}


def response_loss(model: Any, batch: TokenBatch, *, targets: int) -> tuple[torch.Tensor, LossInfo]:
    """The negative log-likelihood of a micro-batch's masked tokens over the number of them in the
    whole batch."""
    logprobs, entropy = token_logprobs(
        model, batch.input_ids, batch.mask, images=batch.images, with_entropy=True
    )
    return -logprobs.sum() / targets, {
        "entropy": entropy.detach().sum(),
        "tokens": batch.mask.sum(),
    }


def lengths_of(sequences: Sequence[TrainingSequence]) -> torch.Tensor:
    """int64 [B]: tokens per sequence."""
    return torch.tensor([len(sequence.token_ids) for sequence in sequences])


def token_batch(
    sequences: Sequence[TrainingSequence], reader: ImageReader | None = None
) -> TokenBatch:
    """The sequences as right-padded tensors, with their pictures for a model that sees."""
    width = max(len(sequence.token_ids) for sequence in sequences)
    ids = np.zeros((len(sequences), width), dtype=np.int64)
    mask = np.zeros((len(sequences), width), dtype=bool)
    for example, sequence in enumerate(sequences):
        ids[example, : len(sequence.token_ids)] = sequence.token_ids
        mask[example, : len(sequence.mask)] = sequence.mask
    # Entry t of the shifted mask belongs to the prediction of token t + 1.
    return TokenBatch(
        input_ids=torch.from_numpy(ids),
        lengths=lengths_of(sequences),
        mask=torch.from_numpy(mask[:, 1:].copy()),
        images=None
        if reader is None
        else RowFiles(reader, tuple(sequence.images for sequence in sequences)),
    )


def validation_loss(
    part: Trainable,
    batch: list[TrainingSequence],
    micro: MicroBatching,
    device: torch.device,
    reader: ImageReader | None = None,
) -> float:
    """Mean negative log-likelihood over all response tokens of the validation examples, of which
    there is at least one."""
    tokens = token_batch(batch, reader)
    losses = forward_passes(part, tokens, micro, device, _summed_nll)
    # Each rank has scored its share of the examples: the sums are added before they are divided.
    sums = part.replica.world.all_reduce_sums({"nll": sum((value for _, value in losses), 0.0)})
    return sums["nll"] / max(1, int(tokens.mask.sum()))


def forced_accuracy(
    cfg: Config,
    part: Trainable,
    batch: list[TrainingSequence],
    micro: MicroBatching,
    device: torch.device,
    template: ChatTemplate,
) -> Metrics:
    """Share of each kind of part that the model would write, given the true text before it."""
    # If only the most likely token and the true one are kept, a true one that is the most likely has
    # log-prob 0.
    greedy = SamplingParams(top_k=1)
    logprobs = score_logprobs(part, token_batch(batch, template.images), micro, device, greedy)
    form = format_of(cfg.agent_proxy.response_format)
    return teacher_forced_accuracy((logprobs > -0.1).numpy(), batch, form, template)


def _summed_nll(model: Any, batch: TokenBatch) -> float:
    return -float(token_logprobs(model, batch.input_ids, batch.mask, images=batch.images)[0].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Puzzles to measure the model on, and who plays them. They belong neither to the examples nor to
    validation, so that decisions based on them do not touch the puzzles of the final comparison.
    `seen` counts those that do belong to the examples, because the game has too few others (None:
    the examples do not name their puzzles)."""

    worker: setup.RolloutWorker
    template: ChatTemplate
    specs: list[EpisodeSpec]
    seen: int | None


def find_probes(
    cfg: Config, template: ChatTemplate, data: Path | None, before: Sequence[Path]
) -> Probes:
    """The puzzles that are not in the examples of stage 2, nor in those of the rounds `before`."""
    worker = setup.make_worker(cfg, template, mode=setup.taught_mode(cfg))
    own = [*example_files(cfg, data, "train"), *example_files(cfg, data, "val")]
    # None if a data set does not name its puzzles: then the number of seen puzzles is unknown.
    trained = puzzles_in(
        [*own, *(folder / name for folder in before for name in (TRAIN_FILE, VAL_FILE))]
    )
    specs, seen = setup.probe_specs(cfg, worker, trained or frozenset())
    return Probes(
        worker=worker, template=template, specs=specs, seen=None if trained is None else seen
    )


def world_model_check(
    cfg: Config, model: Any, probes: Probes, rec: Recorder, step: int, device: torch.device
) -> Metrics:
    """World-model accuracy and entropy on the probes, by playing them in the format that the
    examples teach."""
    # The engine computes with the present weights. It is closed
    # after one check, so that no cache outlives an update.
    engine = local_engine(cfg, model, probes.template, device)
    started = time.monotonic()
    episodes = probes.worker.rollout(engine, probes.specs, setup.selfplay_sampling(cfg))
    engine.close()
    rec.trajectories(step, "sft_eval", episodes)
    metrics = pooled_metrics(episodes, "val") | pooled_search_metrics(
        episodes, probes.worker.make_env, "val"
    )
    logprobs = [lp for e in episodes if e.logprobs is not None for lp in e.logprobs[e.sampled]]
    if "val/success" not in metrics or not logprobs:
        error = next((episode.error for episode in episodes if episode.error), "unknown error")
        log.warning("sft step %d: none of the held-out puzzles could be played: %s", step, error)
        return metrics
    # A Monte Carlo estimate: the mean negative log-likelihood of the sampled tokens.
    entropy = -float(np.mean(logprobs))
    metrics["val/sampled_nll"] = entropy
    metrics["val/puzzles"] = float(len(probes.specs))
    if probes.seen is not None:
        metrics["val/puzzles_seen"] = float(probes.seen)
    states = ""
    if "val/wm/prediction_em" in metrics:  # responses without states have no such metrics
        exact = metrics["val/wm/prediction_em"]
        copied = metrics["val/wm/copy_exact"]
        seen = metrics["val/wm/obs_exact"]
        states = f"observation {seen:.2f}, prediction {exact:.2f} (copy baseline: {copied:.2f}), "
    rec.message(
        f"sft step {step}: {states}entropy {entropy:.2f} nats/token, success {metrics['val/success']:.2f}"
        f"{on_puzzles(len(probes.specs), probes.seen)} ({time.monotonic() - started:.0f} s)"
    )
    return metrics
