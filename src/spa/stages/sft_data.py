"""Stage 2's training sequences: which files of world-model examples, and what is read of them."""

import logging
from pathlib import Path
from typing import Literal

from spa.config.schema import Config
from spa.errors import DataError
from spa.prompts.template import ChatTemplate
from spa.stages.published import data_files, original_folders
from spa.types import IMAGE, WorldModelRow
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE
from spa.worldmodel.rows import read_parquet
from spa.worldmodel.sequences import TrainingSequence, row_sequences

log = logging.getLogger(__name__)


def load_data(
    cfg: Config, template: ChatTemplate, data: Path | None
) -> tuple[list[TrainingSequence], list[TrainingSequence]]:
    """Training and validation sequences: from the configured files, else from `data` or the run's
    own data folder."""
    sets = []
    for split in ("train", "val"):
        files = row_files(cfg, data, split)
        rows = [row for file in files for row in _examples_for(file, template)]
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
                f"{files[0]}: {dropped} examples are longer than sft.data.max_length = "
                f"{cfg.sft.data.max_length} tokens. Raise sft.data.max_length, or set "
                "sft.data.truncation=left to remove the oldest turns of these examples."
            )
        if dropped:
            log.warning(
                "%s: %d examples do not fit into sft.data.max_length = %d tokens and were dropped; %d "
                "sequences are left",
                files[0],
                dropped,
                cfg.sft.data.max_length,
                len(sequences),
            )
        if not rows and split == "train":
            raise DataError(f"{files[0]}: the file has no training example.")
        if not sequences and split == "train":
            raise DataError(
                f"{files[0]}: none of the {len(rows)} training examples fits into "
                f"sft.data.max_length = {cfg.sft.data.max_length} tokens; raise "
                "sft.data.max_length"
            )
        if split == "train" and not any(sequence.mask.any() for sequence in sequences):
            raise DataError(
                f"{files[0]}: sft.data.loss_on={cfg.sft.data.loss_on} selects no token of the "
                f"{len(rows)} training examples, so there is nothing to train on."
            )
        sets.append(sequences)
    # This happens, for example, if the data have a single puzzle,
    # or if all validation examples are too long.
    if not sets[1]:
        log.warning(
            "The data have no validation example, so spa does not log val/loss. spa still "
            "measures accuracy on held-out puzzles (val/wm)."
        )
    return sets[0], sets[1]


def _examples_for(file: Path, template: ChatTemplate) -> list[WorldModelRow]:
    """The file's examples. Raises DataError for pictures that the model would not see."""
    examples = read_parquet(file)
    for index, example in enumerate(examples):
        if not example.images:
            continue
        where = f"{file}, row {index}"
        if template.images is None:
            raise DataError(
                f"{where}: the example shows pictures, but the model reads only text. Use a "
                "vision-language model with the files of its image processor, or remove the "
                "column 'images'."
            )
        pictures = len(example.images)
        marks = sum(message["content"].count(IMAGE) for message in example.prompt)
        if marks != pictures:
            raise DataError(
                f"{where}: {pictures} picture{'s' if pictures > 1 else ''}, but {marks} {IMAGE} "
                f"marks in the prompt. Write {IMAGE} where each picture belongs."
            )
    return examples


def row_files(cfg: Config, data: Path | None, split: Literal["train", "val"]) -> list[Path]:
    """The configured files, else that of `data` or of the run's own data folder."""
    configured = cfg.sft.data.val_files or cfg.data.val_files
    name = VAL_FILE
    if split == "train":
        configured = cfg.sft.data.train_files or cfg.data.train_files
        name = TRAIN_FILE
    names = (
        [configured]
        if isinstance(configured, str)
        else configured or [str(find_data(cfg, data) / name)]
    )
    return [file for one in names for file in data_files(one, split)]


def find_data(cfg: Config, data: Path | None) -> Path:
    """The folder of the data set: `data` or the run's own; if that has none, the original's."""
    folder = data or Path(cfg.generate.output_dir or Path(cfg.trainer.run_dir) / "data")
    older = [] if (folder / TRAIN_FILE).is_file() else original_folders(cfg, "sftdata", "")
    return next((path for path in older if (path / TRAIN_FILE).is_file()), folder)
