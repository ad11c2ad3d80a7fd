"""The section on advantages and the KL term of the reward."""

from dataclasses import field
from typing import Annotated, Literal, Self

from pydantic import model_validator

from spa.config.fields import Invalid, Key, section

# k1, k2 and k3 are aliases of kl, mse and low_var_kl, see `kl_penalty`.
KLKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]


@section
class KLCtrlConfig:
    """Coefficient of the KL term in the reward: constant or adaptive."""

    # The adaptive controller is described in arXiv 1909.08593, section 2.2. The defaults of horizon
    # and target come from the original code.
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
    """Importance weights that correct the mismatch between the log-probs of trainer and engine."""

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
    """Estimation of advantages, and the KL term of the reward."""

    adv_estimator: Annotated[
        str,
        Key(
            "advantage estimator: gae, grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, "
            "turn_rloo, turn_gae, gigpo, or an import path `package.module:name`",
            affects="semantics",
        ),
    ] = "gae"
    # With gamma = lam = 1, a token's advantage is the sum of all rewards from the token on minus
    # the critic's value.
    gamma: Annotated[float, Key("discount per token", affects="semantics", ge=0, le=1)] = 1.0
    lam: Annotated[float, Key("GAE lambda", affects="semantics", ge=0, le=1)] = 1.0
    # Bi-level GAE is described in VAGEN (arXiv 2510.16907).
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
            "discount per turn in bi-level GAE, turn_gae, turn_rloo and gigpo; no effect with "
            "ctx_manager.history=false",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.95
    # The second term of GiGPO (arXiv 2505.10978) compares different visits of the same state.
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
    # Dr. GRPO (arXiv 2503.20783) sets this to false, and loss_agg_mode to seq-mean-token-sum-norm.
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
