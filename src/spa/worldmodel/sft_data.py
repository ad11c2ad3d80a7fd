"""Prepare the training data of stage 2: find the files of world-model examples, read them, and
tokenize them."""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spa.config.schema import Config
from spa.errors import DataError
from spa.models.hub import DATA_SUFFIXES, SPLITS, download_data, is_data_name
from spa.plugins import translated
from spa.prompts.template import ChatTemplate
from spa.types import IMAGE, SFTExample
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE
from spa.worldmodel.sequences import (
    TrainingSequence,
    batch_order,
    spread_evenly,
    training_sequences,
)
from spa.worldmodel.sft_files import (
    check_turns,
    located_examples,
    picture_marks,
    read_examples,
)

log = logging.getLogger(__name__)

SPLIT_FILES = {"train": TRAIN_FILE, "val": VAL_FILE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTData:
    """Training and validation sequences of a fine-tuning stage, and its number of steps."""

    train: list[TrainingSequence]
    val: list[TrainingSequence]
    batch_size: int  # in examples; a merged sequence has several
    steps_per_epoch: int
    steps: int

    def batches(self, *, seed: int, skip: int) -> Iterator[list[TrainingSequence]]:
        """Yield batches of training sequences endlessly, shuffled by `seed`; the first `skip`
        batches are skipped."""
        examples = [sequence.examples for sequence in self.train]
        for batch in batch_order(examples, self.batch_size, seed=seed, skip=skip):
            yield [self.train[i] for i in batch]


def make_data(cfg: Config, template: ChatTemplate, data: Path | None) -> SFTData:
    """Read the data set of stage 2 and count its steps; see `load_data`."""
    train, val = load_data(cfg, template, data)
    size = cfg.sft.data.train_batch_size
    trainer = cfg.sft.trainer
    # Merged sequences have several examples each, so batches and epochs are counted in examples.
    examples = [sequence.examples for sequence in train]
    per_epoch = len(spread_evenly(examples, size, range(len(examples))))
    return SFTData(
        train=train,
        val=val,
        batch_size=size,
        steps_per_epoch=per_epoch,
        steps=trainer.total_training_steps or per_epoch * trainer.total_epochs,
    )


def load_data(
    cfg: Config, template: ChatTemplate, data: Path | None
) -> tuple[list[TrainingSequence], list[TrainingSequence]]:
    """Load training and validation sequences from the configured files, or else from `data` or the
    run's data folder. Raises DataError if there is nothing to train on."""
    sets = []
    for split in ("train", "val"):
        files = example_files(cfg, data, split)
        examples = [example for file in files for example in _examples_for(cfg, file, template)]
        sequences, dropped = training_sequences(
            examples,
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
        if not examples and split == "train":
            raise DataError(f"{files[0]}: the file has no training example.")
        if not sequences and split == "train":
            raise DataError(
                f"{files[0]}: none of the {len(examples)} training examples fits into "
                f"sft.data.max_length = {cfg.sft.data.max_length} tokens; raise "
                "sft.data.max_length"
            )
        if split == "train" and not any(sequence.mask.any() for sequence in sequences):
            raise DataError(
                f"{files[0]}: sft.data.loss_on={cfg.sft.data.loss_on} selects no token of the "
                f"{len(examples)} training examples, so there is nothing to train on."
            )
        sets.append(sequences)
    # This happens, for example, if the data has a single puzzle, or if all validation examples are
    # too long.
    if not sets[1]:
        log.warning(
            "The data have no validation example, so spa does not log val/loss. To log it, set "
            "data.val_files."
        )
    return sets[0], sets[1]


def _examples_for(cfg: Config, file: Path, template: ChatTemplate) -> list[SFTExample]:
    """Read a file's examples. Raises DataError for an example that the model cannot be trained
    on."""
    examples = []
    found = located_examples(file, last_response_only=cfg.sft.data.last_response_only)
    for where, example in found:
        check_turns(where, example)
        if example.images:
            _check_pictures(where, example, template)
        examples.append(example)
    return examples


def _check_pictures(where: str, example: SFTExample, template: ChatTemplate) -> None:
    if template.images is None:
        raise DataError(
            f"{where}: the example shows pictures, but the model reads only text. Use a "
            "vision-language model with the files of its image processor, or remove the column of "
            "pictures."
        )
    pictures = len(example.images)
    marks = picture_marks(example.prompt)
    if marks != pictures:
        raise DataError(
            f"{where}: {pictures} picture{'s' if pictures > 1 else ''}, but {marks} {IMAGE} "
            f"marks in the prompt. Write {IMAGE} where each picture belongs."
        )


def example_files(cfg: Config, data: Path | None, split: Literal["train", "val"]) -> list[Path]:
    """Return the configured files of a split, or else its files in `data` or in the run's data
    folder.

    If only training data is configured, its folder or Hub data set may also contain the validation
    data.
    """
    train = cfg.sft.data.train_files or cfg.data.train_files
    if train is None:
        return data_files(str(find_data(cfg, data) / SPLIT_FILES[split]), split)
    val = cfg.sft.data.val_files or cfg.data.val_files
    if split == "val" and val is None:
        named = [name for name in _names(train) if not Path(name).expanduser().is_file()]
        return [file for name in named for file in data_files(name, split, required=False)]
    return [
        file
        for name in _names(train if split == "train" else val)
        for file in data_files(name, split)
    ]


def _names(configured: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (configured,) if isinstance(configured, str) else configured or ()


def from_game(cfg: Config) -> bool:
    """Return whether the training examples come from a game of this configuration. If not, playing
    the game would not show the effect of SFT on them."""
    if not (cfg.sft.data.train_files or cfg.data.train_files):
        return True
    tags = cfg.es_manager.train.env_configs.tags
    files = example_files(cfg, None, "train")
    return any(
        example.state or example.tag in tags for file in files for example in read_examples(file)
    )


def find_data(cfg: Config, data: Path | None) -> Path:
    """Return the folder of the data set: `data`, or else the run's data folder. If it has no
    training file, but a folder of the original SPA code has one, return the latter."""
    folder = data or Path(cfg.generate.output_dir or Path(cfg.trainer.run_dir) / "data")
    older = [] if (folder / TRAIN_FILE).is_file() else translated("data_folders", cfg)
    return next((path for path in older if (path / TRAIN_FILE).is_file()), folder)


def data_files(name: str, split: str, *, required: bool = True) -> list[Path]:
    """Return the files of a split. `name` is a file, a folder with files of both splits
    (`wm_train.parquet`, `train.jsonl`, or `data/train-00000-of-00001.parquet`), or a Hub data set
    (owner/name).

    Raises DataError if there are none and the split is `required`.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        if not is_data_name(name):
            raise DataError(
                f"{name}: the file or folder does not exist. Generate data (spa run --stages "
                "selfplay), or set data.train_files to a file (.jsonl, .json or .parquet), a "
                "folder, or a Hugging Face data set (owner/name)."
            )
        path = download_data(name)
    data = [
        file
        for folder in (path, path / "data")
        for file in sorted(folder.glob("*"))
        if file.suffix in DATA_SUFFIXES and file.is_file()
    ]
    # A folder may have the same data in several formats. Read only the first format found.
    for prefix, suffix in itertools.product(SPLITS[split], DATA_SUFFIXES):
        files = [file for file in data if file.name.startswith(prefix) and file.suffix == suffix]
        if files:
            return files
    if not required:
        return []
    found = ", ".join(file.name for file in data) or "none"
    raise DataError(
        f"{path}: the folder has no file of the split {split!r} (data files: {found}). Name the "
        f"file {split}.jsonl, {split}.json or {split}.parquet, or set data.{split}_files to it."
    )
