"""Stage 2: supervised fine-tuning on world-model data (SPA, arXiv 2510.15047, section 2.2).

The loss is the mean negative log-likelihood over all response tokens of the global batch: the true state, the true next
state, and the actions that lead from one to the other.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from spa.config.schema import Config, SFTConfig
from spa.distributed.world import current_world
from spa.engines.local import LocalEngine
from spa.envs.pool import EpisodeSpec
from spa.errors import DataError
from spa.evaluate.episode_metrics import pooled_metrics
from spa.evaluate.search import pooled_search_metrics
from spa.evaluate.text import on_puzzles
from spa.identity import Identity
from spa.models.forward import token_logprobs
from spa.models.heap import limit_kernel_caches, release_memory
from spa.models.lora import ADAPTER
from spa.models.vision import ImageReader, RowImages
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.generate import TRAIN_FILE, VAL_FILE
from spa.recipes.parallel import check_optimizer, parallelize
from spa.recipes.published import data_files, note_published, original_folders
from spa.recipes.resume import Progress, begin, recorder, save, saved_when_stopped
from spa.recipes.stage import recorded_identity, result_of, run_context, stage_identity, stop_together
from spa.signals import uninterrupted
from spa.tracking.recorder import Recorder
from spa.training.checkpoint import last_checkpoint, load_state
from spa.training.oom_retry import MicroBatching
from spa.training.optim import Optimizer, make_optimizer, warmup_constant, warmup_cosine
from spa.training.update import Trainable, forward_passes, train_step
from spa.types import Metrics
from spa.worldmodel.parquet import puzzles_in
from spa.worldmodel.rows import read_parquet
from spa.worldmodel.sequences import TrainingSequence, batch_order, row_sequences, spread_evenly

log = logging.getLogger(__name__)

RELEASE_EVERY = 10  # steps between returns of freed memory to the system


def main(
    cfg: Config,
    *,
    directory: Path | None = None,
    data: Path | None = None,
    identity: Identity | None = None,
    before: Sequence[Path] = (),
) -> Path:
    """Fine-tune `sft.model.partial_pretrain` (`model_path`, unless told otherwise) on the data set; returns the last
    checkpoint. `before`: the data sets that this model was fine-tuned on in earlier rounds.

    Raises StopRequested, when it has saved what there is, if the process is asked to stop.
    """
    sft, out = cfg.sft, directory or Path(cfg.sft.trainer.default_local_dir)
    identity = identity or sft_identity(cfg, data)
    with run_context(out):
        limit_kernel_caches()
        device, world = setup.pick_device(cfg), current_world()
        progress, resume = begin(cfg, out, identity, named=sft.trainer.resume_path)
        model, template = load_model(cfg, resume, device)
        train_rows, val_rows = load_data(cfg, template, data)
        rows = [sequence.rows for sequence in train_rows]
        per_epoch = len(spread_evenly(rows, sft.data.train_batch_size, range(len(rows))))
        total = sft.trainer.total_training_steps or per_epoch * sft.trainer.total_epochs
        if resume is not None and resume.parent == out and progress.finished(total):
            return resume
        part = make_part(cfg, model, total, resume, device)
        probes = find_probes(cfg, template, data, before) if sft.trainer.eval_episodes else None
        save_now = partial(save_part, cfg, out, part, template, progress)
        batches = batch_order(rows, sft.data.train_batch_size, seed=sft.trainer.seed, skip=progress.step)
        micro = MicroBatching(rows=sft.data.micro_batch_size_per_gpu, max_tokens=sft.data.max_token_len_per_gpu)
        with recorder(cfg, out, "sft", first=progress.step, total=total) as rec, saved_when_stopped(progress, save_now):

            def finish_step(metrics: Metrics, tokens: int | None = None) -> None:
                """Look at the model if it is time, write the step's line, save if it is time."""
                step = progress.step
                if step == total or step % (sft.trainer.test_freq or per_epoch) == 0:
                    with rec.timer("validate"):
                        if val_rows:
                            loss = validation_loss(part, val_rows, micro, device, template.images)
                            metrics = metrics | {"val/loss": loss}
                        if probes:
                            metrics = metrics | world_model_check(cfg, part.full_model(), probes, rec, step, device)
                with uninterrupted():
                    rec.log(step, metrics, tokens=tokens)
                    progress.unlogged = None
                    if step == total or step % (sft.trainer.save_freq or per_epoch) == 0:
                        save_now()

            if progress.unlogged is not None:  # stopped while its last step was looked at
                finish_step(progress.unlogged)
            for step in range(progress.step + 1, total + 1):
                batch = [train_rows[i] for i in next(batches)]
                with uninterrupted(), rec.timer("update"):
                    part.optimizer.at(step - 1)
                    metrics = update(part, batch, micro, device, template.images)
                    progress.made(step, metrics)
                finish_step(metrics, int(lengths_of(batch).sum()))
                stop_together(world)
                if step % RELEASE_EVERY == 0:
                    release_memory()
        return last_checkpoint(out, world)


def sft_identity(cfg: Config, data: Path | None) -> Identity:
    """The identity of stage 2 on the data set that it would find: known by the stage that made it, or by its content
    if that is not ours. That of a later round of self-play is known by its content, too: the stage before it goes on
    from the round before, which fine-tuning that is asked for alone does not."""
    folder = find_data(cfg, data)

    def known() -> str | None:
        result_of(folder)  # raises if the files are not those of the record
        made = recorded_identity(folder)
        return made.digest if made is not None and made.parent is None else None

    digest = current_world().broadcast(known)
    named = cfg.sft.data.train_files or cfg.data.train_files
    return stage_identity(cfg, "sft", parent=digest, data=None if digest or named else folder)


def load_model(cfg: Config, resume: Path | None, device: torch.device) -> tuple[Any, ChatTemplate]:
    """The policy as it was at the checkpoint `resume`, by default `sft.model.partial_pretrain`, and its template."""
    own = cfg.sft
    source = str(resume) if resume and own.model.lora_rank == 0 else own.model.partial_pretrain
    note_published(source)
    model, template = setup.load_actor(cfg, source, device)
    adapters = resume / ADAPTER if resume else None
    setup.make_trainable(model, own.model, device, seed=own.trainer.seed, adapters=adapters)
    return model, template


def make_part(cfg: Config, model: Any, total: int, resume: Path | None, device: torch.device) -> Trainable:
    """The model with its optimiser, which goes on from the checkpoint `resume`."""
    own = cfg.sft
    check_optimizer(own.optim.name, own.model.strategy)
    autocast = setup.pick_autocast(own.model.dtype, device)
    part = Trainable(
        model=model,
        held=parallelize(model, own.model.strategy, own.model.fsdp_config, autocast=autocast, played=True),
        optimizer=make_sft_optimizer(own, model, total),
        grad_clip=own.optim.clip_grad,
        autocast=autocast,
    )
    if resume:
        part.optimizer.load_state_dict(load_state(resume)["optimizer"])
    return part


def save_part(
    cfg: Config, out: Path, part: Trainable, template: ChatTemplate, progress: Progress, *, preemption: bool = False
) -> Path:
    """A checkpoint of what fine-tuning needs to go on."""
    model, state, keep = part.full_model(), {"optimizer": part.state()}, cfg.sft.trainer.keep
    return save(cfg, out, progress, model=model, template=template, state=state, keep=keep, preemption=preemption)


def load_data(
    cfg: Config, template: ChatTemplate, data: Path | None
) -> tuple[list[TrainingSequence], list[TrainingSequence]]:
    """Training and validation sequences: from the configured files, else from `data` or the run's own data folder."""
    sets = []
    for split in ("train", "val"):
        files = row_files(cfg, data, split)
        rows = [row for file in files for row in read_parquet(file)]
        sequences, dropped = row_sequences(
            rows,
            template,
            max_length=cfg.sft.data.max_length,
            merge_turns=cfg.sft.data.merge_turns,
            loss_on=cfg.sft.data.loss_on,
            truncate=cfg.sft.data.truncation == "left",
        )
        if dropped and cfg.sft.data.truncation == "error":
            raise DataError(
                f"{files[0]}: {dropped} rows are longer than sft.data.max_length = {cfg.sft.data.max_length} tokens. "
                "Raise it, or set sft.data.truncation=left to leave out their oldest turns."
            )
        if not sequences and split == "train":
            raise DataError(
                f"{files[0]}: no training row fits into sft.data.max_length = {cfg.sft.data.max_length} tokens "
                f"(there are {len(rows)} rows)"
            )
        sets.append(sequences)
    if not sets[1]:
        log.warning(
            "there is no validation row: val/loss is left out. Accuracy on held-out puzzles (val/wm) does not need any."
        )
    return sets[0], sets[1]


def row_files(cfg: Config, data: Path | None, split: Literal["train", "val"]) -> list[Path]:
    """The configured files, else that of `data` or of the run's own data folder."""
    configured, name = cfg.sft.data.val_files or cfg.data.val_files, VAL_FILE
    if split == "train":
        configured, name = cfg.sft.data.train_files or cfg.data.train_files, TRAIN_FILE
    names = [configured] if isinstance(configured, str) else configured or [str(find_data(cfg, data) / name)]
    return [file for one in names for file in data_files(one, split)]


def find_data(cfg: Config, data: Path | None) -> Path:
    """The folder of the data set: `data` or the run's own; if that has none, the original's."""
    folder = data or Path(cfg.generate.output_dir or Path(cfg.trainer.run_dir) / "data")
    older = [] if (folder / TRAIN_FILE).is_file() else original_folders(cfg, "sftdata", "")
    return next((path for path in older if (path / TRAIN_FILE).is_file()), folder)


def make_sft_optimizer(sft: SFTConfig, model: Any, total: int) -> Optimizer:
    """AdamW or Muon, warm-up and cosine (or constant) over `total` steps."""
    optim = sft.optim
    warmup = int(total * optim.warmup_steps_ratio)
    schedule = warmup_cosine(total, warmup) if optim.lr_scheduler == "cosine" else warmup_constant(warmup)
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
    """One optimiser step; the gradient does not depend on how the batch is cut, nor on how many ranks share it."""
    targets = max(1, sum(int(sequence.mask[1:].sum()) for sequence in batch))

    def nll(model: Any, rows: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ids, mask, images = inputs(batch, rows, device, reader)
        logprobs, entropy = token_logprobs(model, ids, mask, images=images, with_entropy=True)
        return -logprobs.sum() / targets, {"entropy": entropy.detach().sum()}

    rate = part.optimizer.lr
    part.model.train()
    sums, result = train_step(part, lengths_of(batch), micro, device, nll)
    return {
        "train/loss": sums["loss"],
        "train/entropy": sums["entropy"] / targets,
        "train/tokens": float(targets),
        "train/rows": float(sum(sequence.rows for sequence in batch)),
        "train/lr": rate,
        **{f"train/{name}": value for name, value in result.items()},
    }


def lengths_of(sequences: Sequence[TrainingSequence]) -> torch.Tensor:
    """int64 [B]: tokens per sequence."""
    return torch.tensor([len(sequence.token_ids) for sequence in sequences])


def inputs(
    batch: Sequence[TrainingSequence], rows: torch.Tensor, device: torch.device, reader: ImageReader | None
) -> tuple[torch.Tensor, torch.Tensor, RowImages | None]:
    """Right-padded ids int64 [b, T], prediction masks bool [b, A] and pictures of the rows."""
    picked = [batch[i] for i in rows.tolist()]
    width = max(len(sequence.token_ids) for sequence in picked)
    ids = np.zeros((len(picked), width), dtype=np.int64)
    mask = np.zeros((len(picked), width), dtype=bool)
    for r, sequence in enumerate(picked):
        ids[r, : len(sequence.token_ids)] = sequence.token_ids
        mask[r, : len(sequence.mask)] = sequence.mask
    images = None if reader is None else reader.rows([sequence.images for sequence in picked])
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask[:, 1:].copy()).to(device), images


def validation_loss(
    part: Trainable,
    batch: list[TrainingSequence],
    micro: MicroBatching,
    device: torch.device,
    reader: ImageReader | None = None,
) -> float:
    """Mean negative log-likelihood over all response tokens of the validation rows, of which there is at least one."""

    def nll(model: Any, rows: torch.Tensor) -> float:
        ids, mask, images = inputs(batch, rows, device, reader)
        return -float(token_logprobs(model, ids, mask, images=images)[0].sum())

    found = forward_passes(part, lengths_of(batch), micro, device, nll)
    sums = part.replica.world.all_reduce_sums({"nll": sum((value for _, value in found), 0.0)})
    return sums["nll"] / max(1, sum(int(sequence.mask[1:].sum()) for sequence in batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Puzzles to look at the model on, and who plays them. They belong neither to the rows nor to validation, so that a
    decision taken on them does not touch the puzzles that the final comparison is made on; `seen` counts those that do
    belong to the rows, because the game has too few others (None: the rows do not say whose they are)."""

    player: setup.Player
    template: ChatTemplate
    specs: list[EpisodeSpec]
    seen: int | None


def find_probes(cfg: Config, template: ChatTemplate, data: Path | None, before: Sequence[Path]) -> Probes:
    """The puzzles that are not in the rows of stage 2, nor in those of the rounds `before`."""
    player = setup.make_player(cfg, template, mode=setup.taught_mode(cfg))
    own = [*row_files(cfg, data, "train"), *row_files(cfg, data, "val")]
    trained = puzzles_in([*own, *(folder / name for folder in before for name in (TRAIN_FILE, VAL_FILE))])
    specs, seen = setup.probe_specs(cfg, player, trained or frozenset())
    return Probes(player=player, template=template, specs=specs, seen=None if trained is None else seen)


def world_model_check(
    cfg: Config, model: Any, probes: Probes, rec: Recorder, step: int, device: torch.device
) -> Metrics:
    """World-model accuracy and entropy on the probes, by playing them in the format that the rows teach."""
    engine = LocalEngine(model, probes.template, autocast=setup.engine_autocast(cfg, device))
    started = time.monotonic()
    episodes = probes.player.play(engine, probes.specs, setup.selfplay_sampling(cfg))
    engine.close()
    rec.trajectories(step, "sft_eval", episodes)
    entropy = -float(np.mean([lp for e in episodes if e.logprobs is not None for lp in e.logprobs[e.sampled]]))
    metrics = pooled_metrics(episodes, "val") | pooled_search_metrics(episodes, probes.player.make_env, "val")
    metrics["val/sampled_nll"] = entropy
    metrics["val/puzzles"] = float(len(probes.specs))
    if probes.seen is not None:
        metrics["val/puzzles_seen"] = float(probes.seen)
    states = ""
    if "val/wm/pred_exact" in metrics:  # of replies without states there is nothing to tell
        exact, copied = metrics["val/wm/pred_exact"], metrics["val/wm/copy_exact"]
        states = f"observation {metrics['val/wm/obs_exact']:.2f}, prediction {exact:.2f} (copying: {copied:.2f}), "
    rec.message(
        f"sft step {step}: {states}entropy {entropy:.2f} nats/token, success {metrics['val/success']:.2f}"
        f"{on_puzzles(len(probes.specs), probes.seen)} ({time.monotonic() - started:.0f} s)"
    )
    return metrics
