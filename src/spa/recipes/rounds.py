"""Iterated self-play (`generate.rounds`), for models that do not write the format before SFT.

Round 1 makes examples with `generate.policy` and fine-tunes on them. In every further round, the
fine-tuned model itself plays new puzzles. With `generate.imagine`, it plays the response whose
predicted outcome is best. The model is then fine-tuned on the examples of all rounds so far, or of
this round alone (`generate.train_on`). The last round uses the run's stage folders, and earlier
rounds use `round_N/` in the run's folder. The source of the examples (`spa.examples`) determines
the configuration of each round.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.config.schema import Config
from spa.config.stages import StageName
from spa.distributed.world import current_world
from spa.errors import DataError, ModelError
from spa.examples.source import source_of
from spa.recipes.gate import GATE_FILE
from spa.run.files import write_atomic
from spa.run.manifest import result_of

ROUNDS_FILE = "rounds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of self-play and SFT: its configuration, the folders of its data set (`data`) and
    its checkpoints (`sft`), and the rounds before it."""

    number: int  # from 1
    cfg: Config
    data: Path
    sft: Path
    before: tuple["Round", ...] = ()

    @property
    def first_batch(self) -> int:
        """Index of the round's first self-play batch. Batches are numbered over all rounds, so that
        no two rounds play the same puzzles."""
        return sum(done.cfg.generate.num_batches for done in self.before)

    @property
    def stages(self) -> tuple[tuple[StageName, Path], ...]:
        """Stages of the round in order, with their folders."""
        return ("selfplay", self.data), ("sft", self.sft)

    @property
    def earlier(self) -> list[tuple[Config, Path]]:
        """Configuration and self-play folder of each earlier round on whose examples this round
        trains."""
        counts = self.cfg.generate.train_on == "all_rounds"
        return [(done.cfg, done.data) for done in self.before] if counts else []

    def ready(self) -> Config:
        """Return the round's configuration with `model_path` set to the last checkpoint of the
        previous round. Raises ModelError if that checkpoint is missing or damaged."""
        if not self.before:
            return self.cfg
        folder = self.before[-1].sft
        # Rank 0 finds the checkpoint for all ranks, so that all use the same one.
        checkpoint = current_world().broadcast(lambda: str(result_of(folder) or ""))
        if not checkpoint:
            raise ModelError(lost_checkpoint(folder))
        sft = replace(self.cfg.sft, model=replace(self.cfg.sft.model, partial_pretrain=checkpoint))
        return replace(self.cfg, model_path=checkpoint, sft=sft)


def first_round(cfg: Config) -> Config:
    """Return the configuration for running only the first round."""
    return source_of(cfg).first_round(cfg)


def lost_checkpoint(folder: Path) -> str:
    """Error message for a finished SFT stage whose checkpoint is missing or damaged."""
    return (
        f"{folder}: the checkpoint of the finished stage is missing or damaged. Remove the "
        "folder, then repeat the same command to run the stage again."
    )


def rounds_of(cfg: Config, data: Path, sft: Path) -> list[Round]:
    """Return all rounds of a run. `data` and `sft` are the folders of the last round. In every
    configuration, `model_path` is still the model from which the run starts (see `Round.ready`)."""
    rounds: list[Round] = []
    configs = source_of(cfg).rounds(cfg)
    for number, own in enumerate(configs, start=1):
        folder = Path(cfg.trainer.run_dir) / f"round_{number}"
        last = number == len(configs)
        rounds.append(
            Round(
                number=number,
                cfg=own,
                data=data if last else folder / "data",
                sft=sft if last else folder / "sft",
                before=tuple(rounds),
            )
        )
    return rounds


def round_folders(cfg: Config) -> tuple[Path, ...]:
    """The folders of all rounds except the last."""
    return tuple(
        Path(cfg.trainer.run_dir) / f"round_{number}" for number in range(1, cfg.generate.rounds)
    )


def summarize_rounds(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Summarize each round: the policy, the number of examples, the success and accuracy during
    self-play, and the model's accuracy after SFT."""
    return [
        {
            "round": each.number,
            "policy": ", ".join(each.cfg.generate.policies),
            **_part(each.data / "summary.json", ("examples_train", "examples_val"), ()),
            "played": _part(
                each.data / "summary.json",
                (),
                ("success", "format_rate", "wm/obs_exact", "wm/prediction_em"),
            ),
            "learnt": _part(
                each.sft / GATE_FILE,
                (
                    "diagnosis",
                    "format_rate",
                    "observation_exact",
                    "prediction_exact",
                    "copy_exact",
                    "changed_f1",
                ),
                (),
            ),
        }
        for each in rounds
    ]


def _part(path: Path, names: Sequence[str], played: Sequence[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = content.get("played", {})
        return {name: content[name] for name in names} | {
            name: own[name] for name in played if name in own
        }
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Remove the folder of the round, then repeat "
            "the command to run the round again."
        ) from error


def write_rounds(directory: Path, rounds: Sequence[Round]) -> None:
    """Write rounds.json next to the checkpoints of the last round."""
    write_atomic(directory / ROUNDS_FILE, [json.dumps(summarize_rounds(rounds), indent=1)])
