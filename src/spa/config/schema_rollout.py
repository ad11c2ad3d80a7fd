"""The section on the rollout engine and token sampling."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from spa.config.fields import Invalid, Key, section
from spa.config.schema_models import Dtype


@section
class Sampling:
    """Settings of token sampling."""

    temperature: Annotated[
        float,
        Key(
            "sampling temperature; 0 selects the most likely token (greedy)",
            affects="semantics",
            ge=0,
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        Key(
            "probability mass of nucleus sampling; 1 samples from all tokens",
            affects="semantics",
            gt=0,
            le=1,
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Key(
            "number of most likely tokens to sample from; -1 samples from all tokens",
            affects="semantics",
            ge=-1,
        ),
    ] = -1


@section
class ValKwargs(Sampling):
    """Sampling settings of validation. The default temperature is 1, as in the original code,
    because Pass@k needs different episodes of the same puzzle."""

    do_sample: Annotated[
        bool,
        Key("sample tokens; false selects the most likely token (greedy)", affects="semantics"),
    ] = True


@section
class RolloutConfig:
    """The rollout engine, its sampling, and the filter of the groups to train on."""

    name: Annotated[
        str,
        Key(
            "rollout engine: `local`, `vllm`, `openai`, `random`, `auto`, or an import path "
            "`package.module:name`. auto uses vllm if it is installed and CUDA is available, and local "
            "otherwise",
            affects="semantics",
        ),
    ] = "auto"
    temperature: Annotated[
        float, Key("sampling temperature of training rollouts", affects="semantics", ge=0)
    ] = 1.0
    top_p: Annotated[
        float,
        Key(
            "probability mass of nucleus sampling in training rollouts; 1 samples from all tokens",
            affects="semantics",
            gt=0,
            le=1,
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Key(
            "number of most likely tokens that training rollouts sample from; -1 samples from all tokens",
            affects="semantics",
            ge=-1,
        ),
    ] = -1
    do_sample: Annotated[
        bool,
        Key("sample tokens; false selects the most likely token (greedy)", affects="semantics"),
    ] = True
    response_length: Annotated[
        int, Key("largest number of new tokens per turn", affects="semantics", ge=1)
    ] = 400
    max_model_len: Annotated[
        int,
        Key(
            "largest number of tokens per episode, prompts and responses together",
            affects="semantics",
            ge=2,
        ),
    ] = 3600
    max_num_seqs: Annotated[
        int,
        Key(
            "largest number of episodes that the engine decodes at a time", affects="numerics", ge=1
        ),
    ] = 1024
    max_num_batched_tokens: Annotated[
        int, Key("largest number of tokens in one step of vllm", affects="numerics", ge=1)
    ] = 8192
    dtype: Annotated[
        Dtype,
        Key(
            "dtype of the engine's copy of the weights; applies to vllm, and to local on CPUs",
            affects="semantics",
        ),
    ] = "auto"
    gpu_memory_utilization: Annotated[
        float, Key("share of GPU memory that vllm may use", affects="numerics", gt=0, le=1)
    ] = 0.6
    enforce_eager: Annotated[bool, Key("run vllm without CUDA graphs", affects="numerics")] = True
    free_cache_engine: Annotated[
        bool,
        Key(
            "keep the weights of vllm in CPU memory and free its cache during updates",
            affects="numerics",
        ),
    ] = True
    enable_chunked_prefill: Annotated[
        bool, Key("let vllm split long prefills into chunks", affects="numerics")
    ] = True
    tensor_model_parallel_size: Annotated[
        int,
        Key(
            "number of GPUs over which vllm splits one copy of the model", affects="numerics", ge=1
        ),
    ] = 1
    engine_kwargs: Annotated[
        Mapping[str, Any],
        Key("extra options that are passed to vllm unchanged", affects="semantics"),
    ] = field(default_factory=dict)
    log_prob_micro_batch_size_per_gpu: Annotated[
        int,
        Key(
            "episodes per forward pass that computes log-probs, on each GPU",
            affects="numerics",
            ge=1,
        ),
    ] = 1
    # The default keeps 8 of 32 groups: those with the largest standard deviation of scores.
    rollout_filter_ratio: Annotated[
        float,
        Key(
            "share of groups to keep for the filter types std, std_rev and top_k; parameter of the other "
            "filter types",
            affects="semantics",
            gt=0,
        ),
    ] = 0.25
    rollout_filter_type: Annotated[
        Literal["std", "std_rev", "top_p", "top_p_softmax", "top_k", "top_k_abs", "min_p"],
        Key(
            "rule that selects groups for training by the standard deviation of their scores",
            affects="semantics",
        ),
    ] = "std"
    # In a group with equal scores, group-relative advantages are 0, but advantages from a critic
    # may differ from 0.
    rollout_filter_include_zero: Annotated[
        bool, Key("also keep groups whose episodes all have the same score", affects="semantics")
    ] = False
    val_kwargs: ValKwargs = field(default_factory=ValKwargs)

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        if self.response_length >= self.max_model_len:
            text = (
                f"response_length={self.response_length} leaves no room for a prompt in "
                f"max_model_len={self.max_model_len}; lower response_length, or raise max_model_len"
            )
            raise Invalid("response_length", text)
        if (
            self.rollout_filter_type in ("std", "std_rev", "top_k")
            and self.rollout_filter_ratio > 1
        ):
            raise Invalid(
                "rollout_filter_ratio",
                f"must be at most 1 with rollout_filter_type={self.rollout_filter_type}, got "
                f"{self.rollout_filter_ratio:g}",
            )
        if self.rollout_filter_type == "top_k_abs" and self.rollout_filter_ratio < 1:
            raise Invalid(
                "rollout_filter_ratio",
                "must be at least 1 with rollout_filter_type=top_k_abs, which keeps this number of "
                f"groups, got {self.rollout_filter_ratio:g}",
            )
        if self.tensor_model_parallel_size > 1 and self.name not in ("vllm", "auto"):
            text = (
                f"the engine {self.name} cannot split a model over {self.tensor_model_parallel_size} GPUs; "
                "use 1, or set name=vllm"
            )
            raise Invalid("tensor_model_parallel_size", text)
        return self
