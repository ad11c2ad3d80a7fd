"""Images for vision models: the number of tokens per image, and the model inputs that accompany the
token ids.

The chat template of a supported model writes one image token per image. The model reads the image's
features at copies of that token. In Qwen2-VL and its successors the number of copies depends on the
image size; in LLaVA it is fixed.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoImageProcessor

from spa.errors import ModelError, one_line
from spa.install import install_hint

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReader:
    """Encodes images with a model's image processor.

    `image_id` is the id of the image token. If the number of tokens depends on the image size,
    `merge` is the number of image patches per token along each axis. Otherwise, `fixed` is the
    number of tokens per image.
    """

    processor: Any
    image_id: int
    merge: int = 1
    fixed: int | None = None

    def inputs(self, images: Sequence[bytes]) -> dict[str, torch.Tensor]:
        """Return the model inputs for images (PNG files), in order."""
        encoded = self.processor(images=[from_png(image) for image in images], return_tensors="pt")
        return {key: value for key, value in encoded.items() if isinstance(value, torch.Tensor)}

    def lengths(self, images: Sequence[bytes]) -> list[int]:
        """Return the number of tokens of each image."""
        if self.fixed is not None:
            return [self.fixed] * len(images)
        # `image_grid_thw` counts patches; one token covers merge x merge of them.
        return [int(grid.prod()) // self.merge**2 for grid in self.inputs(images)["image_grid_thw"]]

    def expand(self, ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """Replace each image token in `ids` by one copy per token of its image.

        Raises ModelError if the number of image tokens differs from the number of images.
        """
        lengths = self.lengths(images) if images else []
        places = sum(token == self.image_id for token in ids)
        if places != len(lengths):
            raise ModelError(
                f"a prompt has {places} image tokens but {len(lengths)} pictures. Remove the "
                "model's image token from the strings that the environment or data set "
                "returns"
            )
        left = iter(lengths)
        return [
            copy
            for token in ids
            for copy in [token] * (next(left) if token == self.image_id else 1)
        ]

    def rows(self, images: Sequence[Sequence[bytes]]) -> "RowImages":
        """Encode the images of a batch. `images` has the PNG files of each row."""
        return RowImages(tuple(self.inputs(row) if row else {} for row in images), self.image_id)


@dataclass(frozen=True, eq=False)
class RowImages:
    """Encoded images of a batch. `rows` contains the model inputs of each row, to be concatenated
    along their first axis."""

    rows: tuple[dict[str, torch.Tensor], ...]
    image_id: int

    def __getitem__(self, rows: torch.Tensor) -> "RowImages":
        """Select rows, by indices (int64) or by a mask (bool [B])."""
        picked = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        return RowImages(tuple(self.rows[row] for row in picked.tolist()), self.image_id)

    def to(self, device: torch.device | str) -> "RowImages":
        """Move the images to another device."""
        return RowImages(
            tuple({key: value.to(device) for key, value in row.items()} for row in self.rows),
            self.image_id,
        )

    def inputs(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the model inputs that accompany `input_ids` [B, T]; empty if the batch has no
        images."""
        keys = next((row.keys() for row in self.rows if row), ())
        # Images are concatenated row by row; the model assigns them to rows by their image tokens.
        out = {
            key: torch.cat([row[key] for row in self.rows if row]).to(input_ids.device)
            for key in keys
        }
        # The model computes its positions (time, row, column) from the location of the image
        # tokens.
        if "image_grid_thw" in out:
            out["mm_token_type_ids"] = (input_ids == self.image_id).int()
        return out


@dataclass(frozen=True, eq=False)
class RowFiles:
    """Images of a batch as PNG files. Moving them to a device encodes them."""

    reader: ImageReader
    rows: tuple[Sequence[bytes], ...]

    def __getitem__(self, rows: torch.Tensor) -> "RowFiles":
        """Select rows by their indices (int64)."""
        return RowFiles(self.reader, tuple(self.rows[row] for row in rows.tolist()))

    def to(self, device: torch.device | str) -> RowImages:
        """Encode the images and move them to a device."""
        return self.reader.rows(self.rows).to(device)


def image_reader(folder: Path, *, code: bool = False) -> ImageReader | None:
    """Load the image processor of a model folder; None if the model is text-only or the folder has
    no processor. `code` allows running Python files of the folder.

    Raises ModelError if the processor cannot be used.
    """
    if (
        not any((folder / name).is_file() for name in PROCESSOR_FILES)
        or not (folder / "config.json").is_file()
    ):
        return None
    config = AutoConfig.from_pretrained(folder, trust_remote_code=code)
    # Most configurations in transformers use one of these two names.
    image_id = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    if not sees(config) or image_id is None:
        return None
    try:
        processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=code)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(
            f"{folder}: the model's image processor cannot be loaded "
            f"({one_line(error)[:300]}). Put the processor's files next to the "
            f"weights, and install the vision extra: {install_hint('vision')}"
        ) from error
    merge = getattr(processor, "merge_size", None)
    fixed = (
        None
        if merge
        else getattr(config, "image_seq_length", None)
        or getattr(config, "mm_tokens_per_image", None)
    )
    if not merge and not fixed:
        return None
    return ImageReader(processor=processor, image_id=int(image_id), merge=merge or 1, fixed=fixed)


def sees(config: Any) -> bool:
    """Return whether a model's configuration has a vision part."""
    return getattr(config, "vision_config", None) is not None


def to_png(image: np.ndarray) -> bytes:
    """Encode an image, uint8 [H, W, 3], as a PNG file."""
    file = io.BytesIO()
    _pillow().fromarray(image).save(file, format="PNG")
    return file.getvalue()


def from_png(data: bytes) -> np.ndarray:
    """Decode a PNG file as uint8 [H, W, 3], the inverse of `to_png`."""
    return np.asarray(_pillow().open(io.BytesIO(data)).convert("RGB"))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ModelError(
            f"Models that read pictures need the vision extra of spa: {install_hint('vision')}"
        ) from error
    return Image
