"""Shared parts of the GPU scripts: a model with random weights in the shape of a real one, the
limits of the GPU, and output.

The scripts need torch, transformers and numpy, and no network. `--tiny` runs a small shape on whatever device there is,
to see that a script works; its figures mean nothing.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from spa.models.attention import PACKED, flash_missing, register
from spa.models.shapes import known_config

SHAPE = "Qwen2.5-1.5B"


def argument_parser(description: str) -> argparse.ArgumentParser:
    """The options of every script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--shape", default=SHAPE, help=f"whose shape the random model has (default: {SHAPE})"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a small shape, to see that the script works"
    )
    parser.add_argument("--output", type=Path, help="also write the result to this file")
    return parser


def device() -> torch.device:
    """The GPU, or the CPU if there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def model_config(options: argparse.Namespace) -> Any:
    """The asked shape, or with --tiny two small layers of the same architecture."""
    config = known_config(options.shape)
    if config is None:
        raise SystemExit(
            f"{options.shape}: unknown shape; known are Qwen2.5-0.5B, -1.5B, -3B and Llama-3.2-1B"
        )
    if options.tiny:
        config.vocab_size, config.hidden_size, config.intermediate_size = 512, 128, 256
        config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 2, 4, 2
        config.head_dim, config.layer_types = 32, ["full_attention"] * 2
        config.bos_token_id = config.eos_token_id = None
    return config


def default_attention() -> str:
    """What spa trains with on this device, in bfloat16; on a CPU SDPA."""
    return "sdpa" if flash_missing(device(), torch.bfloat16) else register(PACKED)


def random_model(config: Any, *, seed: int = 0, attention: str | None = None) -> Any:
    """A causal LM with seeded random float32 weights on the device, in evaluation mode."""
    torch.manual_seed(seed)
    with device():
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=attention or default_attention(), dtype=torch.float32
        )
    return model.eval()


class BareTemplate:
    """Chat template without an end token: every response has the full length, the costliest case."""

    images = None

    def __init__(self, stop_ids: frozenset[int] = frozenset({-1})) -> None:
        self.stop_ids = stop_ids

    def decode_response(self, ids: Any) -> str:
        """Nobody reads these responses."""
        return ""


def synchronize() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], *, warm_up: int = 1, repeats: int = 3) -> float:
    """Median seconds of `work`."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def matrix_peak() -> float:
    """Measured FLOP/s of large bfloat16 matrix products."""
    size = 8192 if torch.cuda.is_available() else 256
    a = torch.randn((size, size), dtype=torch.bfloat16, device=device())
    b = torch.randn((size, size), dtype=torch.bfloat16, device=device())

    def work() -> None:
        for _ in range(10):
            torch.mm(a, b)

    return 10 * 2 * size**3 / seconds(work, warm_up=2)


def copy_bandwidth() -> float:
    """Measured bytes/s of a device copy, reads and writes counted."""
    count = 2**30 if torch.cuda.is_available() else 2**22
    source = torch.empty(count, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)

    def work() -> None:
        for _ in range(10):
            target.copy_(source)

    return 10 * 2 * count / seconds(work, warm_up=2)


def sequence_flops(config: Any, parameters: int, lengths: list[int]) -> float:
    """FLOPs of one training pass (forward and backward) over sequences: 6 N per token, and causal attention,
    12 L H T² halved, per sequence."""
    tokens = sum(lengths)
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    attention = 6 * config.num_hidden_layers * width * sum(length**2 for length in lengths)
    return 6.0 * parameters * tokens + attention


def peak_memory() -> float:
    """GB that were in use at the most."""
    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


def report(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Print the result as JSON with what it was measured on."""
    card = (
        torch.cuda.get_device_name(0)
        if torch.cuda.is_available()
        else platform.processor() or "cpu"
    )
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": card,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "shape": "tiny" if options.tiny else options.shape,
        **result,
        "peak_memory_gb": round(peak_memory(), 2),
    }
    text = json.dumps(result, indent=1)
    sys.stdout.write(text + "\n")
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
