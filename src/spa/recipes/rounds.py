"""Iterated self-play (`generate.rounds`): a model that writes no format yet plays as soon as it has learnt one.

Round 1 makes rows with `generate.policy` and fine-tunes on them. In every further round the fine-tuned model plays new
puzzles itself, with `generate.imagine` the best of its replies by what it has learnt, and goes on learning from the
rows of all rounds so far. The last round has the run's own folders, those before it have `round_N/` in the folder of
the run.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.config.schema import Config, ImagineConfig
from spa.errors import DataError
from spa.recipes.gate import GATE_FILE
from spa.tracking.encoding import write_atomic

ROUNDS_FILE = "rounds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: its configuration, where its data set and its model lie, and the rounds before it."""

    number: int  # from 1
    cfg: Config
    data: Path
    sft: Path
    before: tuple["Round", ...] = ()

    @property
    def first_batch(self) -> int:
        """The number of its first batch of self-play, so that no round plays the puzzles of another."""
        return (self.number - 1) * self.cfg.generate.num_batches


def first_round(cfg: Config, data: Path, sft: Path) -> Round:
    """Round 1, which is the last one too unless `generate.rounds` says more. `data` and `sft` are the run's folders."""
    several = cfg.generate.rounds > 1  # before it has learnt anything, it has nothing to imagine with
    own = replace(cfg, generate=replace(cfg.generate, imagine=ImagineConfig())) if several else cfg
    return _placed(cfg, 1, own, data, sft, ())


def next_round(cfg: Config, done: Round, checkpoint: Path, data: Path, sft: Path) -> Round:
    """The round after `done`: its `checkpoint` plays, and is fine-tuned further."""
    own = replace(
        cfg,
        model_path=str(checkpoint),
        generate=replace(cfg.generate, policy="self", mixture=None),
        sft=replace(
            cfg.sft,
            model=replace(cfg.sft.model, partial_pretrain=str(checkpoint)),
            trainer=replace(cfg.sft.trainer, resume_path=None, seed=cfg.sft.trainer.seed + done.number),
        ),
    )
    return _placed(cfg, done.number + 1, own, data, sft, (*done.before, done))


def _placed(cfg: Config, number: int, own: Config, data: Path, sft: Path, before: tuple[Round, ...]) -> Round:
    own = replace(own, generate=replace(own.generate, rounds=1))  # how many there are to be changes none of them
    if number < cfg.generate.rounds:
        folder = Path(cfg.trainer.run_dir) / f"round_{number}"
        data, sft = folder / "data", folder / "sft"
        own = replace(own, gate=replace(own.gate, enable=False))  # what it would ask for, the next round brings
    return Round(number=number, cfg=own, data=data, sft=sft, before=before)


def round_folders(cfg: Config) -> tuple[Path, ...]:
    """The folders of all rounds but the last."""
    return tuple(Path(cfg.trainer.run_dir) / f"round_{number}" for number in range(1, cfg.generate.rounds))


def told(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """What each round added: who played and how well in the format, rows so far, and what the model then knew."""
    return [
        {
            "round": each.number,
            "policy": each.cfg.generate.policy,
            **_part(each.data / "summary.json", ("rows_train", "rows_val"), ()),
            "played": _part(
                each.data / "summary.json", (), ("success", "format_rate", "wm/obs_exact", "wm/pred_exact")
            ),
            "learnt": _part(
                each.sft / GATE_FILE,
                ("diagnosis", "format_rate", "observation_exact", "prediction_exact", "copy_exact", "changed_f1"),
                (),
            ),
        }
        for each in rounds
    ]


def _part(path: Path, names: Sequence[str], played: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        own = found.get("played", {})
        return {name: found[name] for name in names} | {name: own[name] for name in played if name in own}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read ({error}). Run that round again: remove its folder.") from error


def write_rounds(directory: Path, rounds: Sequence[Round]) -> None:
    """rounds.json beside the checkpoints of the last round."""
    write_atomic(directory / ROUNDS_FILE, [json.dumps(told(rounds), indent=1)])
