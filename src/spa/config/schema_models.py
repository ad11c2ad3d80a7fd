"""Sections on models and their updates."""

from dataclasses import field
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from spa.config.fields import Invalid, Key, section
from spa.config.schema_algorithm import KLKind

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "sdpa", "eager", "flash_attention_2"]
Strategy = Literal["ddp", "fsdp", "fsdp2"]
Beta = Annotated[float, Field(ge=0, lt=1)]
Tokens = Annotated[int, Field(ge=1)]
# DAPO uses token-mean, GRPO seq-mean-token-mean, and Dr. GRPO (arXiv 2503.20783)
# seq-mean-token-sum-norm.
LossAgg = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


@section
class FSDPConfig:
    """Sharding of a model over the ranks with `strategy: fsdp`."""

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
    # verl has these three switches. `fully_shard` offloads everything or nothing, so any of them
    # offloads everything.
    offload_policy: Annotated[
        bool,
        Key("keep parameters, gradients and optimizer states in CPU memory", affects="numerics"),
    ] = False
    param_offload: Annotated[bool, Key("alias of `offload_policy`", affects="numerics")] = False
    optimizer_offload: Annotated[bool, Key("alias of `offload_policy`", affects="numerics")] = False

    @property
    def offload(self) -> bool:
        """True if parameters, gradients and optimizer states are kept in CPU memory."""
        return self.offload_policy or self.param_offload or self.optimizer_offload


@section
class ModelConfig:
    """A causal language model."""

    # The dtype affects `semantics`, because, unlike the attention kernel, it changes more than the
    # last digits of results.
    dtype: Annotated[
        Dtype,
        Key(
            "dtype of forward passes; auto lets spa choose by device and model size (scaling.md)",
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
    """The critic's model, with its own sharding."""

    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)


@section
class PolicyModelConfig(ModelConfig):
    """The policy model. Unlike the critic, it needs a chat template."""

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
    """AdamW and its learning-rate schedule."""

    # The defaults are those of the policy in the original code: 1e-6, constant, without warm-up.
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
    """A loss on the tokens of states, which is added to the policy loss (docs/methods.md). It uses
    the same forward pass, but is averaged over its own tokens."""

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
    # Unlike -log p, 1 - p is bounded, so tokens that cannot be predicted do not dominate the loss.
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
        """True if the loss applies to any token."""
        return self.tokens != "none" and self.coef > 0


@section
class AnswerFocusConfig:
    """Token weights of the policy loss (ActFocus, docs/methods.md). With alpha=1 and beta=0, all
    tokens have the same weight."""

    # With alpha=0 and beta=0 the policy loss applies only to the answers, as with `loss_mask:
    # answer_only`. The entropy bonus and the KL loss stay on all tokens of the mask.
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
    """Examples with true states that are replayed in every policy update (docs/methods.md). Their
    loss is averaged over their own tokens."""

    examples: Annotated[
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
    # The loss is L_policy / N_policy + coef * L_replay / N_replay, with separate token counts N.
    # The weight of replayed examples therefore does not depend on the length of responses.
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
        """True if the step's own episodes are replayed, with true states instead of the model's."""
        return self.examples > 0 and self.source == "rollouts"


@section
class ActorConfig:
    """Settings of the policy update: mini-batches, losses, sharding and optimizer."""

    ppo_mini_batch_size: Annotated[
        int,
        Key(
            "largest number of episodes per optimizer step, or of turns with `ctx_manager.history=false`",
            affects="semantics",
            ge=1,
        ),
    ] = 32
    ppo_num_mini_batches: Annotated[
        int | None,
        Key(
            "number of optimizer steps per pass for actor and critic, instead of `ppo_mini_batch_size`; "
            "null uses `ppo_mini_batch_size`",
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
        bool | Literal["auto"],
        Key(
            "fill forward passes by number of tokens instead of number of episodes; auto does so on CUDA, "
            "with as many tokens as fit into memory",
            affects="numerics",
        ),
    ] = "auto"
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
    shuffle: Annotated[bool, Key("form new mini-batches in every pass", affects="semantics")] = (
        False
    )
    grad_clip: Annotated[
        float,
        Key("largest gradient norm; larger gradients are scaled down", affects="semantics", gt=0),
    ] = 1.0
    # The upper clip range is larger than the lower one (arXiv 2503.14476). Both values come from
    # the original code.
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
    # For A < 0 the loss -A r has no bound in r; dual clipping bounds it at -A c (arXiv 1912.09729).
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
    # The original code uses `all_after_system`, which also trains on the environment's text.
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
        # A coefficient of 0 is refused, because the configuration would wrongly suggest a KL term.
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
    # Ten times the policy's learning rate, as in the original code.
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    ppo_mini_batch_size: Annotated[
        int, Key("largest number of episodes per optimizer step", affects="semantics", ge=1)
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
        bool | Literal["auto"],
        Key(
            "fill forward passes by number of tokens instead of number of episodes; auto does so on CUDA, "
            "with as many tokens as fit into memory",
            affects="numerics",
        ),
    ] = "auto"
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
    shuffle: Annotated[bool, Key("form new mini-batches in every pass", affects="semantics")] = (
        False
    )
    grad_clip: Annotated[
        float,
        Key("largest gradient norm; larger gradients are scaled down", affects="semantics", gt=0),
    ] = 1.0
    # The original code clips at 0.5, which is too small for returns of up to 11, as in Sokoban.
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
