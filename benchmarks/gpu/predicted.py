"""Predicted figures of one GPU for each target, none of them measured: plain arithmetic on the shape of Qwen2.5-0.5B.

    python benchmarks/gpu/predicted.py    # prints the table of README.md, writes ../results/gpu/predicted.json

Measured inputs are the limits of the GPU and the times before CUDA graphs and packed attention, from `../results/gpu`.
Everything else is an assumption, which is named here.
"""

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu"

# Qwen2.5-0.5B.
PARAMETERS = 494e6
LAYERS = 24
VOCABULARY = 151_936
CACHE = 12_288  # bytes of keys and values of a token, bfloat16

# Measured on one H200: bytes/s of a copy, FLOP/s of large bfloat16 products.
BANDWIDTH = 4.2e12
PEAK = 700e12
# Measured on the H200: a decode step without graphs, 256 rows and 900 + 100 tokens; an SFT micro-batch of 8,192 tokens
# with a mask.
STEP_BEFORE_MS = 20.29
SFT_BEFORE_MS = 268.2
SFT_BEFORE_MFU = 0.1231

# Assumptions.
ATTENTION_SHARE = 0.6  # of the bandwidth, in decoding
MATRIX_SHARE = 0.6  # of the peak, in decoding
READ_SHARE = 0.3  # of the peak, in reading prompts
KERNELS, KERNEL_MS = 20, 0.002  # small kernels of a layer, and each one's time within a graph
PASSES = 7  # times that sampling reads or writes the float32 logits
MASK_MS = 100  # attention over a mask of 8,192 x 8,192: 20 TFLOP at 200 TFLOP/s
LOGITS_MS = 20  # 22 fewer passes over the output matrix, 0.9 ms each
RECOMPUTED = 4 / 3  # one more forward pass

ROWS, TOKENS = 256, 8192
TURNS, NEW, FIRST, LATER, MEMBERS, KEPT = 5, 400, 500, 120, 8, 0.25  # of `ppo_step.py`


def decode_ms(columns: float) -> dict[str, float]:
    """Milliseconds of the parts of a decode step whose rows have so many tokens on average."""
    return {
        "attention": 1e3 * ROWS * columns * CACHE / (ATTENTION_SHARE * BANDWIDTH),
        "matrices": 1e3 * 2 * PARAMETERS * ROWS / (MATRIX_SHARE * PEAK),
        "small kernels": LAYERS * KERNELS * KERNEL_MS,
        "sampling": 1e3 * PASSES * 4 * ROWS * VOCABULARY / BANDWIDTH,
    }


def ppo_seconds() -> dict[str, float]:
    """Seconds of the parts of a PPO step of 256 episodes. Environments, prompts and saving depend on the CPU and disk:
    not predicted."""
    columns = FIRST + (TURNS - 1) / 2 * (NEW + LATER) + NEW / 2
    read = ROWS * (FIRST / MEMBERS + (TURNS - 1) * LATER)
    trained = KEPT * ROWS * (FIRST + TURNS * NEW + (TURNS - 1) * LATER)
    per_token = sft_ms() / TOKENS / 1e3
    return {
        "sampling": TURNS * NEW * sum(decode_ms(columns).values()) / 1e3,
        "reading prompts": 2 * PARAMETERS * read / (READ_SHARE * PEAK),
        # A forward pass is a third of a training pass; policy and critic.
        "scoring": 2 * trained * per_token / 3,
        "updates": 2 * trained * per_token * RECOMPUTED,
        # Float32 is read, bfloat16 written.
        "weights to the engine": 6 * PARAMETERS / BANDWIDTH,
    }


def sft_ms() -> float:
    """Milliseconds of a micro-batch of 8,192 tokens with kept activations."""
    return SFT_BEFORE_MS - MASK_MS - LOGITS_MS


def figures() -> dict[str, dict[str, Any]]:
    """Target, prediction and computation of each figure."""
    step = decode_ms(1000)
    total = sum(step.values())
    seconds = ppo_seconds()
    rollout = seconds["sampling"] + seconds["reading prompts"]
    before = TURNS * NEW * STEP_BEFORE_MS / 1e3
    kept = sft_ms()
    mfu = SFT_BEFORE_MFU * SFT_BEFORE_MS / (kept * RECOMPUTED)
    parts = ", ".join(f"{name} {value:.2f}" for name, value in step.items())
    steps = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    speed = 1e3 * TOKENS / (kept * RECOMPUTED)
    return {
        "decode step, 256 rows, 900 + 200 tokens": row(total, "ms", 4, parts, most=True),
        "decode": row(256e3 / total, "tokens/s", 40_000, "256 rows by the step above"),
        "rollout of 256 five-turn episodes, without the CPU's part": row(
            before / rollout, "times today's", 3, f"{before:.0f} s before, {rollout:.1f} s after"
        ),
        "SFT, 8,192 tokens, recomputed activations": row(
            100 * mfu,
            "% MFU",
            30,
            f"{SFT_BEFORE_MS:.0f} ms measured with a mask, less {MASK_MS + LOGITS_MS} ms, times 4/3",
        ),
        "the same in tokens/s": row(speed, "tokens/s", 45_000, "8,192 tokens by the same time"),
        "SFT, 8,192 tokens, kept activations": row(
            1e3 * TOKENS / kept, "tokens/s", None, f"{kept:.0f} ms"
        ),
        "PPO update, 2,980 tokens an episode": row(
            100 * mfu, "% MFU", 11, "as SFT with recomputed activations"
        ),
        "PPO step without environments and saving": row(sum(seconds.values()), "s", None, steps),
    }


def row(
    value: float, unit: str, target: float | None, how: str, *, most: bool = False
) -> dict[str, Any]:
    """One figure; `most`: the target is an upper bound."""
    reached = None if target is None else (value <= target if most else value >= target)
    return {
        "predicted": float(f"{value:.3g}"),
        "unit": unit,
        "target": target,
        "reached": reached,
        "measured": False,
        "how": how,
    }


def table() -> list[str]:
    """Rows of Markdown."""
    rows = ["| figure | predicted (estimate) | target | how computed |", "|---|---|---|---|"]
    for name, value in figures().items():
        target = "none" if value["target"] is None else f"{value['target']:,}"
        if value["reached"] is False:
            target += ", not reached"
        rows.append(
            f"| {name} | {value['predicted']:,.10g} {value['unit']} | {target} | {value['how']} |"
        )
    return rows


if __name__ == "__main__":
    text = json.dumps({"device": "one NVIDIA H200", "figures": figures()}, indent=1) + "\n"
    (RESULTS / "predicted.json").write_text(text, encoding="utf-8")
    sys.stdout.write("\n".join(table()) + "\n")
