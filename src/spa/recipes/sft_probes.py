"""World-model accuracy during SFT, measured by playing held-out puzzles."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from spa.config.schema import Config
from spa.engines.factory import EngineRequest, engine_kind
from spa.envs.pool import EpisodeSpec
from spa.evaluation.episode_metrics import pooled_metrics, pooled_search_metrics
from spa.evaluation.text import on_puzzles
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.sft import Learner
from spa.run.recorder import Recorder
from spa.types import Metrics
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE, puzzles_in
from spa.worldmodel.sft_data import example_files

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Puzzles for measuring the model during SFT, and the worker that plays them.

    The puzzles are neither in the examples nor in validation, so decisions based on them do not
    bias the final comparison. If the game has too few puzzles, `seen` of them also occur in the
    examples. `seen` is None if the examples do not name their puzzles.
    """

    worker: setup.RolloutWorker
    template: ChatTemplate
    specs: list[EpisodeSpec]
    seen: int | None


def make_probe(
    cfg: Config, data: Path | None, before: Sequence[Path], learner: Learner, recorder: Recorder
) -> Callable[[int], Metrics]:
    """Build the function that measures the learner at a given step of SFT on `data`. `before` lists
    the data sets on which this model was fine-tuned in earlier rounds."""
    probes = find_probes(cfg, learner.template, data, before)
    return partial(world_model_check, cfg, learner, probes, recorder)


def find_probes(
    cfg: Config, template: ChatTemplate, data: Path | None, before: Sequence[Path]
) -> Probes:
    """Find puzzles that are neither in the examples of stage 2 (`data`) nor in the data sets of
    earlier rounds (`before`)."""
    worker = setup.make_worker(cfg, template, mode=setup.taught_mode(cfg))
    own = [*example_files(cfg, data, "train"), *example_files(cfg, data, "val")]
    # `trained` is None if a data set does not name its puzzles.
    trained = puzzles_in(
        [*own, *(folder / name for folder in before for name in (TRAIN_FILE, VAL_FILE))]
    )
    specs, seen = setup.probe_specs(cfg, worker, trained or frozenset())
    return Probes(
        worker=worker, template=template, specs=specs, seen=None if trained is None else seen
    )


def world_model_check(
    cfg: Config, learner: Learner, probes: Probes, recorder: Recorder, step: int
) -> Metrics:
    """Play the probes in the format of the examples; return world-model accuracy and entropy.
    If no probe could be played, log a warning and leave out the entropy."""
    # The engine computes with the current weights. It is closed after each check, so that no cache
    # outlives an update.
    engine = engine_kind("local").make(
        EngineRequest(
            cfg=cfg,
            model_name=cfg.model_path,
            device=learner.device,
            model=learner.policy.full_model(),
            template=probes.template,
        )
    )
    started = time.monotonic()
    episodes = probes.worker.rollout(engine, probes.specs, setup.selfplay_sampling(cfg))
    engine.close()
    recorder.trajectories(step, "sft_eval", episodes)
    metrics = pooled_metrics(episodes, "val") | pooled_search_metrics(
        episodes, probes.worker.make_env, "val"
    )
    logprobs = [lp for e in episodes if e.logprobs is not None for lp in e.logprobs[e.sampled]]
    if "val/success" not in metrics or not logprobs:
        error = next((episode.error for episode in episodes if episode.error), "unknown error")
        log.warning("sft step %d: none of the held-out puzzles could be played: %s", step, error)
        return metrics
    # The mean negative log-likelihood of the sampled tokens is a Monte Carlo estimate of the
    # entropy.
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
    recorder.message(
        f"sft step {step}: {states}entropy {entropy:.2f} nats/token, success {metrics['val/success']:.2f}"
        f"{on_puzzles(len(probes.specs), probes.seen)} ({time.monotonic() - started:.0f} s)"
    )
    return metrics
