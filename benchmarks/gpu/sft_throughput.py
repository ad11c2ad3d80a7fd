"""Fine-tuning: tokens/s and MFU of full optimizer steps on packed micro-batches.

First it is shown that packing and chunked log-probs give the numbers of the plain forward pass.
"""

import time
from typing import Any

import common
import torch

from spa.models.attention import PACKED, register
from spa.models.forward import pack_rows, token_logprobs
from spa.models.load import save_activations
from spa.training.optim import make_optimizer
from spa.training.update import Trainable

GLOBAL_BATCH = 32768  # tokens per step
PROMPT = 0.6  # share of a row that carries no loss


def main() -> None:
    """Measure with and without recomputed activations; print JSON."""
    parser = common.argument_parser(__doc__ or "")
    parser.add_argument(
        "--tokens", type=int, default=8192, help="tokens of a micro-batch (default: 8192)"
    )
    parser.add_argument(
        "--attention",
        choices=("packed", "sdpa"),
        help="packed needs no mask (default: packed on a GPU that has the kernel)",
    )
    parser.add_argument(
        "--compile", action="store_true", help="compile the layers (use_torch_compile)"
    )
    options = parser.parse_args()
    tokens, rows = (
        (256, 2) if options.tiny else (options.tokens, max(1, GLOBAL_BATCH // options.tokens))
    )
    register(PACKED)
    attention = options.attention or common.default_attention()
    config = common.model_config(options)
    result: dict[str, Any] = {
        "correctness": check(config, attention),
        "attention": attention,
        "compiled": options.compile,
        "tokens_per_micro_batch": tokens,
    }
    peak = common.matrix_peak()
    result["measured_bf16_tflops"] = round(peak / 1e12, 1)
    for checkpointing in (False, True):
        name = "recomputed activations" if checkpointing else "kept activations"
        try:
            result[name] = measure(
                config,
                tokens,
                rows,
                peak,
                attention=attention,
                checkpointing=checkpointing,
                compiled=options.compile,
            )
        except torch.OutOfMemoryError:
            result[name] = "out of memory"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    common.report(options, result)


def batch(config: Any, tokens: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Rows of 100 to 700 random tokens that fill `tokens` tokens: padded ids [b, T], masks [b, A], lengths."""
    made = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        sampled = (
            int(torch.randint(100, 700, (1,), generator=made)) if tokens >= 700 else tokens // 4
        )
        lengths.append(min(sampled, tokens - sum(lengths)))
    lengths = [length for length in lengths if length > 1]
    ids = torch.randint(0, config.vocab_size, (len(lengths), max(lengths)), generator=made)
    columns = torch.arange(ids.shape[1] - 1)[None]
    ends = torch.tensor(lengths)[:, None]
    mask = (columns >= PROMPT * ends) & (columns < ends - 1)
    # so that the whole row is read
    mask[torch.arange(len(lengths)), torch.tensor(lengths) - 2] = True
    return ids.to(common.device()), mask.to(common.device()), lengths


def check(config: Any, attention: str) -> dict[str, float]:
    """Largest differences of log-probs: chunked against whole logits in float32, packed against padded, bfloat16
    against float32. Raises SystemExit if they are not small."""
    model = common.random_model(config, attention=attention)
    ids, mask, _ = batch(config, 512, seed=1)
    with torch.no_grad():
        ours, _ = token_logprobs(model, ids, mask)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        whole = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0] * mask
        del logits
        if not pack_rows(model):
            raise SystemExit("this model mixes packed rows")
        packed, _ = token_logprobs(model, ids, mask)
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            half, _ = token_logprobs(model, ids, mask)
    results = {
        "chunked_against_whole": float((ours - whole).abs().max()),
        "packed_against_padded": float((packed - ours).abs().max()),
        "bfloat16_against_float32": float((half - packed).abs().max()),
    }
    if results["chunked_against_whole"] > 1e-3 or results["packed_against_padded"] > 1e-3:
        raise SystemExit(f"wrong log-probs: {results}")
    if results["bfloat16_against_float32"] > 0.25:
        raise SystemExit(f"bfloat16 is too far from float32: {results}")
    return {name: round(value, 6) for name, value in results.items()}


def measure(
    config: Any,
    tokens: int,
    rows: int,
    peak: float,
    *,
    attention: str,
    checkpointing: bool,
    compiled: bool,
) -> dict[str, float]:
    """Three optimizer steps after two for warming up."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    model = common.random_model(config, attention=attention)
    if checkpointing:
        save_activations(model)
    pack_rows(model)
    if compiled:
        model.base_model.compile(dynamic=True)
    model.train()
    part = Trainable(
        model=model,
        optimizer=make_optimizer(model, lr=1e-5, betas=(0.9, 0.95)),
        autocast=torch.bfloat16,
    )
    batches = [batch(config, tokens, seed=seed) for seed in range(rows)]
    wanted = sum(int(mask.sum()) for _, mask, _ in batches)

    def step() -> None:
        losses = []
        for ids, mask, _ in batches:
            with torch.autocast(ids.device.type, dtype=torch.bfloat16):
                logprobs, _ = token_logprobs(model, ids, mask)
            loss = -logprobs.sum() / wanted
            loss.backward()
            losses.append(loss.detach())
        part.step(float(sum(losses)))

    for _ in range(2):
        step()
    common.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        step()
    common.synchronize()
    spent = (time.perf_counter() - start) / 3
    lengths = [length for _, _, sizes in batches for length in sizes]
    parameters = sum(p.numel() for p in model.parameters())
    flops = common.sequence_flops(config, parameters, lengths)
    return {
        "tokens_per_s": round(sum(lengths) / spent, 1),
        "seconds_per_step": round(spent, 3),
        "mfu": round(flops / spent / peak, 4),
        "memory_gb": round(common.peak_memory(), 2),
    }


if __name__ == "__main__":
    main()
