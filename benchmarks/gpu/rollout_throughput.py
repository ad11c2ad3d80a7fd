"""Sampling: tokens/s of an engine's decode steps against what memory bandwidth allows.

First it is shown that the engine gives the log-probs of one uncached forward pass. `--engine vllm` measures vLLM with
the same weights, or says that it is not installed.
"""

import tempfile
import time
from typing import Any

import common
import numpy as np
import torch

from spa.engines.local import LocalEngine
from spa.errors import ModelError
from spa.models.forward import token_logprobs
from spa.types import Completion, Engine, Prompt, SamplingParams
from spa_engines.vllm import VllmEngine

ROWS, PROMPT, NEW = 256, 900, 400


def main() -> None:
    """Measure decode steps and print JSON."""
    parser = common.argument_parser(__doc__ or "")
    parser.add_argument("--engine", choices=("local", "vllm"), default="local")
    parser.add_argument(
        "--no-graphs", action="store_true", help="the local engine without CUDA graphs"
    )
    options = parser.parse_args()
    rows, length, new = (8, 32, 12) if options.tiny else (ROWS, PROMPT, NEW)
    config = common.model_config(options)
    model = common.random_model(config)
    try:
        engine = make_engine(
            options.engine,
            model,
            length=2 * length + 2 * new,
            rows=rows,
            graphs=not options.no_graphs,
        )
    except ModelError as error:  # vLLM is not installed
        common.report(options, {"engine": options.engine, "result": f"not measured: {error}"})
        return
    bandwidth = common.copy_bandwidth()
    result: dict[str, Any] = {
        "engine": options.engine,
        "cuda_graphs": getattr(engine, "decoder", None) is not None,
        "correctness": check(engine, model, config, length),
        "measured_bandwidth_tb_s": round(bandwidth / 1e12, 3),
        "rows": rows,
        "prompt_tokens": length,
        "new_tokens": new,
    }
    asked = prompts(config, rows, length, seed=0)
    engine.generate(asked, SamplingParams(max_tokens=2))
    # The difference between a long and a short call is decode steps alone.
    short, long = new // 4, new
    times = [min(timed(engine, asked, count) for _ in range(3)) for count in (short, long)]
    decode = (times[1] - times[0]) / (long - short)
    limit = step_bytes(config, model, rows, length + (short + long) // 2) / bandwidth
    result |= {
        "tokens_per_s_whole_call": round(rows * long / times[1], 1),
        "tokens_per_s_decode": round(rows / decode, 1),
        "step_ms": round(1e3 * decode, 3),
        "step_ms_at_bandwidth_limit": round(1e3 * limit, 3),
        "share_of_limit": round(limit / decode, 4),
    }
    common.report(options, result)


def make_engine(kind: str, model: Any, *, length: int, rows: int, graphs: bool) -> Engine:
    """The engine in bfloat16, with the model's weights."""
    if kind == "local":
        return LocalEngine(
            model,
            common.BareTemplate(),  # type: ignore[arg-type]
            autocast=torch.bfloat16,
            graphs=graphs,
        )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return VllmEngine(
            folder,
            common.BareTemplate(frozenset()),  # type: ignore[arg-type]
            dtype=torch.bfloat16,
            max_model_len=length,
            max_rows=rows,
            # The model that its log-probs are compared with is on the same card.
            options={"gpu_memory_utilization": 0.6} if torch.cuda.is_available() else None,
        )


def prompts(config: Any, rows: int, length: int, *, seed: int) -> list[Prompt]:
    """Different random prompts of one length."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, config.vocab_size, (rows, length), dtype=np.int32)
    return [
        Prompt(episode_id=f"{seed}/{row}", messages=(), token_ids=ids[row], prefill="", seed=row)
        for row in range(rows)
    ]


def timed(engine: Engine, asked: list[Prompt], count: int) -> float:
    """Seconds of one call for `count` tokens per row, prompts included, without caches of earlier calls."""
    engine.forget([prompt.episode_id for prompt in asked])
    common.synchronize()
    start = time.perf_counter()
    engine.generate(asked, SamplingParams(max_tokens=count))
    common.synchronize()
    return time.perf_counter() - start


def step_bytes(config: Any, model: Any, rows: int, context: int) -> float:
    """Bytes that one decode step must read in bfloat16: every matrix once, the keys and values of all rows once."""
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * head * rows * context
    return 2.0 * (matrices + cached)


def check(engine: Engine, model: Any, config: Any, length: int) -> dict[str, float]:
    """Log-probs over two turns with the cache kept between them, against one forward pass. Raises SystemExit if they
    differ by more than bfloat16 explains."""
    sampling = SamplingParams(max_tokens=8)
    first = prompts(config, 4, min(length, 64), seed=7)
    responses = engine.generate(first, sampling)
    second = [
        Prompt(
            episode_id=prompt.episode_id,
            messages=(),
            token_ids=np.concatenate([prompt.token_ids, ids_of(response), prompt.token_ids[:9]]),
            prefill="",
            seed=prompt.seed + 100,
        )
        for prompt, response in zip(first, responses, strict=True)
    ]
    gaps = []
    for asked, answers in ((first, responses), (second, engine.generate(second, sampling))):
        for prompt, response in zip(asked, answers, strict=True):
            ids = torch.from_numpy(
                np.concatenate([prompt.token_ids, ids_of(response)]).astype(np.int64)
            )[None]
            mask = torch.zeros((1, ids.shape[1] - 1), dtype=torch.bool)
            mask[0, len(prompt.token_ids) - 1 :] = True
            ids, mask = ids.to(common.device()), mask.to(common.device())
            with torch.no_grad(), torch.autocast(ids.device.type, dtype=torch.bfloat16):
                expected = token_logprobs(model, ids, mask)[0][mask]
            gaps.append(
                float((expected.cpu() - torch.from_numpy(logprobs_of(response))).abs().max())
            )
    if max(gaps) > 0.25:
        raise SystemExit(f"cached and uncached log-probs differ by {max(gaps):.3g}")
    return {"cached_against_uncached": round(max(gaps), 6)}


def ids_of(response: Completion) -> np.ndarray:
    """The ids of a response."""
    assert response.token_ids is not None
    return response.token_ids


def logprobs_of(response: Completion) -> np.ndarray:
    """The log-probs of a response."""
    assert response.logprobs is not None
    return response.logprobs


if __name__ == "__main__":
    main()
