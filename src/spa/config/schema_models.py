"""Sections about models, rollouts and the RL update."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from spa.config.fields import Invalid, Key, section

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "sdpa", "eager", "flash_attention_2"]
Strategy = Literal["ddp", "fsdp", "fsdp2"]
Beta = Annotated[float, Field(ge=0, lt=1)]
# token-mean is DAPO's, seq-mean-token-mean GRPO's, the last one Dr. GRPO's (arXiv 2503.20783).
LossAgg = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
# k1, k2 and k3 are other names of kl, mse and low_var_kl, see `kl_penalty`.
KLKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]


@section
class FSDPConfig:
    """How `strategy: fsdp` cuts a model over the ranks."""

    fsdp_size: Annotated[
        int,
        Key(
            "number of ranks that share one copy of the model; -1 means all ranks, and a smaller number "
            "makes several copies",
            affects="numerics",
            ge=-1,
        ),
    ] = -1
    reshard_after_forward: Annotated[
        bool,
        Key(
            "free gathered layers between the forward and the backward pass, which saves memory",
            affects="numerics",
        ),
    ] = True
    # verl's three switches. `fully_shard` offloads everything or nothing, so they are one here.
    offload_policy: Annotated[
        bool,
        Key("keep parameters, gradients and optimiser states in CPU memory", affects="numerics"),
    ] = False
    param_offload: Annotated[bool, Key("alias of `offload_policy`", affects="numerics")] = False
    optimizer_offload: Annotated[bool, Key("alias of `offload_policy`", affects="numerics")] = False

    @property
    def offload(self) -> bool:
        """Whether shards wait on the CPU. `fully_shard` moves all of them or none."""
        return self.offload_policy or self.param_offload or self.optimizer_offload


@section
class ModelConfig:
    """A causal language model."""

    # `semantics`, unlike the attention kernel: it changes more than the last digits.
    dtype: Annotated[
        Dtype,
        Key(
            "dtype of forward passes; auto lets spa choose by device and model size (performance.md)",
            affects="semantics",
        ),
    ] = "auto"
    attn_implementation: Annotated[
        Attention,
        Key(
            "attention kernel; auto uses SDPA, and plain matrix products on a CPU where possible",
            affects="numerics",
        ),
    ] = "auto"
    use_torch_compile: Annotated[
        bool, Key("compile the training forward pass with torch.compile", affects="numerics")
    ] = False
    enable_gradient_checkpointing: Annotated[
        bool,
        Key("recompute activations in the backward pass, which saves memory", affects="numerics"),
    ] = True
    packing: Annotated[
        bool | None,
        Key(
            "pack several examples into one sequence without padding; null packs on CUDA if the model "
            "can separate packed examples",
            affects="numerics",
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, Key("run Python code from the repository of a Hub model", affects="paths")
    ] = False
    lora_rank: Annotated[
        int,
        Key(
            "rank of the LoRA adapters; 0 trains all weights without adapters",
            affects="semantics",
            ge=0,
        ),
    ] = 0
    lora_alpha: Annotated[
        float, Key("scale alpha of the LoRA adapters", affects="semantics", gt=0)
    ] = 16
    target_modules: Annotated[
        str | tuple[str, ...],
        Key(
            "names of the modules that get LoRA adapters; all-linear means every linear layer except the "
            "output head",
            affects="semantics",
        ),
    ] = "all-linear"


@section
class CriticModelConfig(ModelConfig):
    """The critic's model, which is cut on its own."""

    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)


@section
class PolicyModelConfig(ModelConfig):
    """The policy, which also reads and writes text."""

    chat_template: Annotated[
        str | None,
        Key(
            "file with a Jinja chat template for a model without one; null uses the template of the model",
            affects="semantics",
            content="file",
        ),
    ] = None


@section
class OptimConfig:
    """AdamW and its schedule."""

    # The policy's optimiser in the original: 1e-6, constant, without warm-up.
    lr: Annotated[float, Key("peak learning rate", affects="semantics", gt=0)] = 1e-6
    betas: Annotated[
        tuple[Beta, Beta],
        Key("decay rates of AdamW's first and second moments", affects="semantics"),
    ] = (
        0.9,
        0.999,
    )
    weight_decay: Annotated[float, Key("decoupled weight decay", affects="semantics", ge=0)] = 0.01
    warmup_style: Annotated[
        Literal["constant", "cosine"],
        Key("learning-rate schedule after the warm-up", affects="semantics"),
    ] = "constant"
    lr_warmup_steps: Annotated[
        int,
        Key(
            "number of PPO steps with linear warm-up; -1 uses `lr_warmup_steps_ratio`",
            affects="semantics",
            ge=-1,
        ),
    ] = -1
    lr_warmup_steps_ratio: Annotated[
        float,
        Key("steps with linear warm-up, as a share of all steps", affects="semantics", ge=0, le=1),
    ] = 0.0
    min_lr_ratio: Annotated[
        float | None,
        Key(
            "final learning rate of the cosine schedule, as a share of `lr`; null means 0",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = None


@section
class WorldLossConfig:
    """A loss on observed states, added to the policy loss in the same forward pass, with its own mean
    (docs/methods.md)."""

    tokens: Annotated[
        Literal["none", "env_observations", "correct_predictions"],
        Key(
            "tokens that carry the world-model loss: `none`, observed states (`env_observations`, as in "
            "ECHO and PaW), or the model's correct state blocks (`correct_predictions`)",
            affects="semantics",
        ),
    ] = "none"
    coef: Annotated[
        float,
        Key(
            "weight of the mean world-model loss, which is added to the policy loss",
            affects="semantics",
            ge=0,
        ),
    ] = 0.05
    # 1 - p is bounded: a state that cannot be predicted costs at most `most`.
    kind: Annotated[
        Literal["cross_entropy", "clipped_error"],
        Key(
            "world-model loss per token: -log p (`cross_entropy`, as in ECHO), or 1 - p up to `most` "
            "(`clipped_error`, as in PaW)",
            affects="semantics",
        ),
    ] = "cross_entropy"
    most: Annotated[
        float,
        Key("upper bound of the `clipped_error` loss per token", affects="semantics", gt=0, le=1),
    ] = 0.9
    turns: Annotated[
        float,
        Key(
            "share of turns that carry the world-model loss; turns with the highest answer entropy come "
            "first",
            affects="semantics",
            gt=0,
            le=1,
        ),
    ] = 1.0
    fade: Annotated[
        bool,
        Key(
            "multiply the world-model loss by the share of the step's episodes without success",
            affects="semantics",
        ),
    ] = False

    @property
    def on(self) -> bool:
        """Whether any token carries the loss."""
        return self.tokens != "none" and self.coef > 0


@section
class AnswerFocusConfig:
    """Token weights of the policy loss (ActFocus, docs/methods.md); 1 and 0 weigh all tokens alike."""

    # alpha=0 and beta=0 are `loss_mask: answer_only`.
    alpha: Annotated[
        float,
        Key("weight in the policy loss of a token outside the answers", affects="semantics", ge=0),
    ] = 1.0
    beta: Annotated[
        float,
        Key(
            "extra weight in the policy loss of answer tokens with high entropy",
            affects="semantics",
            ge=0,
        ),
    ] = 0.0


@section
class ReplayConfig:
    """Examples with true states in every policy update, with their own mean
    (docs/methods.md)."""

    rows: Annotated[
        int,
        Key(
            "number of replayed sequences in every mini-batch; 0 turns replay off",
            affects="semantics",
            ge=0,
        ),
    ] = 0
    source: Annotated[
        Literal["data", "rollouts"],
        Key(
            "source of replayed examples: training examples of stage 2 (`data`), or the step's episodes "
            "with true states (`rollouts`)",
            affects="semantics",
        ),
    ] = "data"
    # L = L_policy / N_policy + coef * L_rows / N_rows: the length of responses does not change
    # the weight of the rows.
    coef: Annotated[
        float,
        Key(
            "weight of the mean cross-entropy on replayed examples, which is added to the policy loss",
            affects="semantics",
            ge=0,
        ),
    ] = 0.1
    loss_on: Annotated[
        str | None,
        Key(
            "tokens of replayed examples that carry the loss, as in `sft.data.loss_on`; null uses the "
            "value of stage 2",
            affects="semantics",
        ),
    ] = None

    @property
    def corrects_rollouts(self) -> bool:
        """Whether the truth is put into the step's own episodes."""
        return self.rows > 0 and self.source == "rollouts"


@section
class ActorConfig:
    """The policy update."""

    ppo_mini_batch_size: Annotated[
        int, Key("largest number of episodes per optimiser step", affects="semantics", ge=1)
    ] = 32
    ppo_num_mini_batches: Annotated[
        int | None,
        Key(
            "number of optimiser steps per pass for actor and critic, instead of `ppo_mini_batch_size`; "
            "null uses the batch size",
            affects="semantics",
            ge=1,
        ),
    ] = None
    ppo_micro_batch_size_per_gpu: Annotated[
        int,
        Key(
            "episodes per forward pass on each GPU; changes memory use, not results",
            affects="numerics",
            ge=1,
        ),
    ] = 1
    use_dynamic_bsz: Annotated[
        bool,
        Key(
            "fill forward passes by number of tokens instead of number of episodes",
            affects="numerics",
        ),
    ] = False
    ppo_max_token_len_per_gpu: Annotated[
        int,
        Key(
            "largest number of tokens per forward pass with `use_dynamic_bsz`",
            affects="numerics",
            ge=1,
        ),
    ] = 16384
    ppo_epochs: Annotated[
        int, Key("number of passes over the kept episodes in each step", affects="semantics", ge=1)
    ] = 1
    shuffle: Annotated[bool, Key("sample new mini-batches in every epoch", affects="semantics")] = (
        False
    )
    grad_clip: Annotated[
        float,
        Key("largest gradient norm; larger gradients are scaled down", affects="semantics", gt=0),
    ] = 1.0
    # More room above than below (arXiv 2503.14476), with the original's numbers.
    clip_ratio_low: Annotated[
        float,
        Key(
            "lower clip range: the policy ratio is clipped at 1 minus this value",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.2
    clip_ratio_high: Annotated[
        float,
        Key(
            "upper clip range: the policy ratio is clipped at 1 plus this value",
            affects="semantics",
            ge=0,
        ),
    ] = 0.28
    policy_loss: Annotated[
        str,
        Key(
            "policy loss: `ppo`, or the import path `package.module:name` of a function",
            affects="semantics",
        ),
    ] = "ppo"
    # For A < 0 the loss -A r has no bound in r; it is cut at -A c (arXiv 1912.09729).
    clip_ratio_c: Annotated[
        float,
        Key(
            "largest policy ratio that counts for negative advantages (dual-clip PPO)",
            affects="semantics",
            gt=1,
        ),
    ] = 3.0
    loss_agg_mode: Annotated[
        LossAgg,
        Key("how token losses are combined over a mini-batch", affects="semantics"),
    ] = "token-mean"
    # `all_after_system` is the original's mask, which also trains on the environment's text.
    loss_mask: Annotated[
        Literal["sampled", "answer_only", "no_states", "all_after_system"],
        Key(
            "tokens that carry the policy loss: all sampled tokens (`sampled`), answers (`answer_only`), "
            "tokens outside state blocks (`no_states`), or every token after the system message "
            "(`all_after_system`)",
            affects="semantics",
        ),
    ] = "sampled"
    world_loss: WorldLossConfig = field(default_factory=WorldLossConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    answer_focus: AnswerFocusConfig = field(default_factory=AnswerFocusConfig)
    entropy_coeff: Annotated[
        float, Key("weight of the entropy bonus", affects="semantics", ge=0)
    ] = 0.001
    use_ref: Annotated[
        bool,
        Key(
            "allow a frozen reference model; spa loads the reference model only if a KL term uses it",
            affects="semantics",
        ),
    ] = True
    use_kl_loss: Annotated[
        bool, Key("add the KL to the reference model to the policy loss", affects="semantics")
    ] = False
    kl_loss_coef: Annotated[
        float, Key("weight of the KL term in the policy loss", affects="semantics", ge=0)
    ] = 0.0
    kl_loss_type: Annotated[
        KLKind, Key("estimator of the KL term in the policy loss", affects="semantics")
    ] = "kl"
    grpo_advantage_length_weight: Annotated[
        bool,
        Key(
            "divide GRPO advantages by the token count of the episode, relative to the mean episode",
            affects="semantics",
        ),
    ] = False
    strategy: Annotated[
        Strategy,
        Key(
            "distribution of the policy over ranks: full replicas (`ddp`) or shards (`fsdp` or `fsdp2`, with "
            "equal effect)",
            affects="numerics",
        ),
    ] = "fsdp"
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    @model_validator(mode="after")
    def _kl_has_effect(self) -> Self:
        # A switch without effect would pass for a run with KL.
        if self.use_kl_loss and self.kl_loss_coef == 0:
            raise Invalid(
                "kl_loss_coef",
                "use_kl_loss=true has no effect with kl_loss_coef=0; set kl_loss_coef above 0, or "
                "use_kl_loss=false",
            )
        if self.use_kl_loss and not self.use_ref:
            raise Invalid("use_ref", "must be true, because a KL term needs the reference model")
        return self


@section
class RefConfig:
    """The frozen reference model."""

    strategy: Annotated[
        Strategy,
        Key(
            "distribution of the reference model over ranks: full replicas (`ddp`) or shards (`fsdp`)",
            affects="numerics",
        ),
    ] = "fsdp"
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)
    log_prob_micro_batch_size_per_gpu: Annotated[
        int,
        Key(
            "episodes per forward pass of the reference model on each GPU", affects="numerics", ge=1
        ),
    ] = 1


@section
class Sampling:
    """Sampling of tokens."""

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
    """Sampling in validation: at temperature 1, as in the original, since Pass@k needs different
    episodes of a puzzle."""

    do_sample: Annotated[
        bool,
        Key("sample tokens; false selects the most likely token (greedy)", affects="semantics"),
    ] = True


@section
class RolloutConfig:
    """The engine that plays, its sampling, and which groups are kept for training."""

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
    # Of the default 32 groups these are the 8 with the largest standard deviation of scores.
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
    # Episodes with equal scores have no advantage over each other.
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
        if self.tensor_model_parallel_size > 1 and self.name not in ("vllm", "auto"):
            text = (
                f"the engine {self.name} cannot split a model over {self.tensor_model_parallel_size} GPUs; "
                "use 1, or set name=vllm"
            )
            raise Invalid("tensor_model_parallel_size", text)
        return self


@section
class ActorRolloutRefConfig:
    """The policy: its model, update, engine and reference."""

    model: PolicyModelConfig = field(default_factory=PolicyModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    ref: RefConfig = field(default_factory=RefConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)


@section
class CriticConfig:
    """The value model and its update."""

    strategy: Annotated[
        Strategy,
        Key(
            "distribution of the critic over ranks: full replicas (`ddp`) or shards (`fsdp`)",
            affects="numerics",
        ),
    ] = "fsdp"
    model: CriticModelConfig = field(default_factory=CriticModelConfig)
    # Ten times the policy's rate, as in the original.
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    ppo_mini_batch_size: Annotated[
        int, Key("largest number of episodes per optimiser step", affects="semantics", ge=1)
    ] = 32
    ppo_micro_batch_size_per_gpu: Annotated[
        int,
        Key(
            "episodes per forward pass of the critic's update, on each GPU",
            affects="numerics",
            ge=1,
        ),
    ] = 1
    forward_micro_batch_size_per_gpu: Annotated[
        int,
        Key(
            "episodes per forward pass that computes values, on each GPU", affects="numerics", ge=1
        ),
    ] = 1
    use_dynamic_bsz: Annotated[
        bool,
        Key(
            "fill forward passes by number of tokens instead of number of episodes",
            affects="numerics",
        ),
    ] = False
    ppo_max_token_len_per_gpu: Annotated[
        int,
        Key(
            "largest number of tokens per forward pass with `use_dynamic_bsz`",
            affects="numerics",
            ge=1,
        ),
    ] = 32768
    ppo_epochs: Annotated[
        int, Key("number of passes over the kept episodes in each step", affects="semantics", ge=1)
    ] = 1
    shuffle: Annotated[bool, Key("sample new mini-batches in every epoch", affects="semantics")] = (
        False
    )
    grad_clip: Annotated[
        float,
        Key("largest gradient norm; larger gradients are scaled down", affects="semantics", gt=0),
    ] = 1.0
    # The original clips at 0.5, which throttles a critic whose returns reach 11 (Sokoban).
    cliprange_value: Annotated[
        float | None,
        Key("clip range of the value loss; null turns clipping off", affects="semantics", gt=0),
    ] = None
    loss_agg_mode: Annotated[
        LossAgg,
        Key(
            "how the token losses of the critic are combined over a mini-batch", affects="semantics"
        ),
    ] = "token-mean"


@section
class KLCtrlConfig:
    """The weight of the KL in the reward."""

    # arXiv 1909.08593, section 2.2, for `adaptive`; horizon and target are the original's.
    type: Annotated[
        Literal["fixed", "adaptive"],
        Key(
            "weight of the KL in the reward: constant (`fixed`), or adapted towards `target_kl` "
            "(`adaptive`)",
            affects="semantics",
        ),
    ] = "fixed"
    kl_coef: Annotated[
        float,
        Key(
            "weight of the KL in the reward; with type adaptive, the initial weight",
            affects="semantics",
            ge=0,
        ),
    ] = 0.0
    horizon: Annotated[
        int,
        Key(
            "number of episodes over which the adaptive controller changes the KL weight",
            affects="semantics",
            ge=1,
        ),
    ] = 10000
    target_kl: Annotated[
        float,
        Key(
            "KL that the adaptive controller aims at, in nats per token", affects="semantics", gt=0
        ),
    ] = 0.1


@section
class RolloutCorrectionConfig:
    """Importance weights for the difference between the policy that is trained and the one that
    sampled."""

    level: Annotated[
        Literal["off", "token", "sequence"],
        Key(
            "importance weights of rollouts: `off`, one weight per `token`, or one weight per episode "
            "(`sequence`)",
            affects="semantics",
        ),
    ] = "off"
    mode: Annotated[
        Literal["truncate", "mask"],
        Key(
            "treatment of importance weights above `cap`: `truncate` sets these weights to `cap`, and "
            "`mask` sets these weights to 0 (IcePop)",
            affects="semantics",
        ),
    ] = "truncate"
    cap: Annotated[
        float, Key("largest importance weight that is not changed", affects="semantics", gt=1)
    ] = 2.0
    floor: Annotated[
        float,
        Key("smallest importance weight that `mode: mask` keeps", affects="semantics", ge=0, le=1),
    ] = 0.5


@section
class AlgorithmConfig:
    """Advantages and rewards."""

    adv_estimator: Annotated[
        str,
        Key(
            "advantage estimator: gae, grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, "
            "turn_rloo, turn_gae, gigpo, or an import path `package.module:name`",
            affects="semantics",
        ),
    ] = "gae"
    # With gamma = lam = 1 a token's advantage is the episode's reward minus the value there.
    gamma: Annotated[float, Key("discount per token", affects="semantics", ge=0, le=1)] = 1.0
    lam: Annotated[float, Key("GAE lambda", affects="semantics", ge=0, le=1)] = 1.0
    # VAGEN, arXiv 2510.16907.
    bi_level_gae: Annotated[
        bool,
        Key(
            "compute GAE over turns first, and then over the tokens of each turn",
            affects="semantics",
        ),
    ] = False
    high_level_gamma: Annotated[
        float,
        Key(
            "discount per turn in bi-level GAE, turn_gae, turn_rloo and gigpo",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.95
    # GiGPO, arXiv 2505.10978, whose second term compares visits of the same state.
    gigpo_step_weight: Annotated[
        float,
        Key(
            "weight of the turn's advantage in gigpo, which is added to the episode's advantage",
            affects="semantics",
            ge=0,
        ),
    ] = 1.0
    # WM-PPO, arXiv 2611.12200, reconstructed from its abstract (docs/methods.md).
    imagined_advantage: Annotated[
        float,
        Key(
            "weight of the plan advantage, which is added to the turn's advantage (needs choose_plan). "
            "The plan advantage is the predicted value of the chosen plan minus the mean of all plans",
            affects="semantics",
            ge=0,
        ),
    ] = 0.0
    whiten_advantages: Annotated[
        bool,
        Key(
            "scale advantages to zero mean and unit variance over the trained tokens",
            affects="semantics",
        ),
    ] = True
    # False is Dr. GRPO, arXiv 2503.20783.
    norm_adv_by_std_in_grpo: Annotated[
        bool, Key("divide group advantages by the group's standard deviation", affects="semantics")
    ] = True
    use_kl_in_reward: Annotated[
        bool, Key("subtract the KL to the reference model from the reward", affects="semantics")
    ] = False
    kl_penalty: Annotated[
        KLKind, Key("estimator of the KL term in the reward", affects="semantics")
    ] = "kl"
    bootstrap_truncated: Annotated[
        bool,
        Key(
            "for episodes that reach max_turn or max_model_len, use the critic's value instead of 0 as "
            "the value after the last turn",
            affects="semantics",
        ),
    ] = False
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    kl_ctrl: KLCtrlConfig = field(default_factory=KLCtrlConfig)

    @model_validator(mode="after")
    def _switches_have_effect(self) -> Self:
        if self.use_kl_in_reward and self.kl_ctrl.kl_coef == 0:
            raise Invalid(
                "kl_ctrl.kl_coef",
                "use_kl_in_reward=true has no effect with kl_ctrl.kl_coef=0; set kl_ctrl.kl_coef above 0, or "
                "use_kl_in_reward=false",
            )
        if self.bi_level_gae and self.adv_estimator != "gae":
            raise Invalid(
                "bi_level_gae",
                f"bi_level_gae=true needs algorithm.adv_estimator=gae, got {self.adv_estimator}",
            )
        return self
