"""Cases of golden.py: shortened trainings on two CPU cores, in the oldest names of
`golden_names.yaml`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One call of `spa`. `ranks` of more than one are started by torchrun; with `kill_at`, the process group gets
    SIGKILL as soon as that path exists."""

    words: tuple[str, ...]
    ranks: int = 1
    kill_at: str | None = None


@dataclass(frozen=True)
class Case:
    """Commands that run one after the other in a folder of their own.

    `requires` are overrides that a side must know: where BASE does not, the case is left out. `same` are two run
    directories of the case that must hold the same results.
    """

    name: str
    commands: tuple[Command, ...]
    requires: tuple[str, ...] = ()
    same: tuple[str, str] | None = None


SHORT = (
    "trainer.logger=[]",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.total_training_steps=2",
    "trainer.save_freq=2",
    "trainer.test_freq=2",
    "trainer.validation_steps=1",
    "agent_proxy.max_turn=2",
    "es_manager.train.env_groups=3",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=3",
    "es_manager.val.group_size=2",
    "actor_rollout_ref.actor.ppo_num_mini_batches=2",
    "actor_rollout_ref.rollout.response_length=64",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
)
DATA = ("generate.num_batches=2",)
SFT = (
    "sft.data.train_batch_size=4",
    "sft.data.micro_batch_size_per_gpu=4",
    "sft.trainer.total_training_steps=4",
    "sft.trainer.save_freq=2",
    "sft.trainer.test_freq=2",
    "sft.trainer.eval_episodes=4",
    "gate.prediction_exact_min=0.999",
)
ORIGINAL = (
    "model_path=builtin:tiny",
    "micro_batch_size_per_gpu=4",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "actor_rollout_ref.rollout.max_model_len=1800",
    "es_manager.val.env_configs.n_groups=null",
)
"""Overrides that let the original's presets train the bundled model."""

ACTOR = "actor_rollout_ref.actor"
WORLD = f"{ACTOR}.world_loss"
REPLAY = f"{ACTOR}.replay"
NO_WORLD = f"{WORLD}.tokens=none"
CHOOSE = (
    "agent_proxy.reply_order=choose_plan",
    "generate.policy=random",
    "actor_rollout_ref.rollout.response_length=224",
    "actor_rollout_ref.rollout.max_model_len=2048",
    "sft.data.max_length=2048",
)

SEARCH = (
    "ctx_manager.mode=base",
    "ctx_manager.history=false",
    "agent_proxy.reply_order=search",
    "generate.policy=search",
    "generate.reply_format=base",
    "gate.enable=false",
    "algorithm.gamma=1.0",
)
FORMAT = (
    "generate.num_batches=6",
    "sft.data.train_batch_size=8",
    "sft.data.micro_batch_size_per_gpu=8",
    "sft.model.dtype=float32",
    "sft.trainer.total_training_steps=80",
    "sft.trainer.test_freq=80",
    "sft.trainer.save_freq=80",
    "sft.trainer.eval_episodes=2",
    "gate.enable=false",
)
"""Enough SFT to write a response format that the bundled model does not know."""

ORACLE = ("eval", "run", "--plan", "beam-4", "imagine.dynamics=oracle")

ALONE = ("trainer.run_dir=run", "trainer.val_before_train=false")
"""Of PPO without the other stages; the recipe validates before the first step."""


def spa(*words: str, ranks: int = 1, kill_at: str | None = None) -> Command:
    """A call of `spa`."""
    return Command(words, ranks, kill_at)


def recipe(
    preset: str, *overrides: str, run_dir: str = "run", ranks: int = 1, kill_at: str | None = None
) -> Command:
    """All three stages of a preset."""
    words = ("run", preset, *SHORT, *DATA, *SFT, f"trainer.run_dir={run_dir}", *overrides)
    return Command(words, ranks, kill_at)


def ppo(*overrides: str, ranks: int = 1) -> Command:
    """Two PPO steps of the bundled model, which writes the world-model format as it comes."""
    return Command(("ppo", "tiny", *SHORT, *ALONE, *overrides), ranks)


def original(preset: str, *overrides: str) -> Command:
    """Two PPO steps with a preset of the original's on the bundled model."""
    return Command(("ppo", preset, *SHORT, *ORIGINAL, *ALONE, *overrides))


def resumed(*overrides: str) -> tuple[Command, ...]:
    """A run that is killed after a step of SFT and a step of PPO and started again, then an undisturbed one."""
    every_step = (
        "trainer.total_training_steps=3",
        "trainer.save_freq=1",
        "sft.trainer.save_freq=1",
        "trainer.max_actor_ckpt_to_keep=1",
        *overrides,
    )
    return (
        recipe("tiny", *every_step, run_dir="killed", kill_at="killed/sft/global_step_2"),
        recipe("tiny", *every_step, run_dir="killed", kill_at="killed/ppo/global_step_1"),
        recipe("tiny", *every_step, run_dir="killed"),
        recipe("tiny", *every_step, run_dir="undisturbed"),
    )


CASES: tuple[Case, ...] = (
    Case("recipe", (recipe("tiny"),)),
    Case(
        "demo",
        (
            recipe(
                "demo",
                "generate.later_batches=1",
                "generate.imagine.n=3",
                "generate.imagine.depth=2",
            ),
        ),
    ),
    Case(
        "compare",
        (
            spa(
                "compare",
                "tiny",
                *SHORT,
                *DATA,
                *SFT,
                "trainer.run_dir=run",
                "compare.arms=[vanilla_format,spa]",
                "compare.parallel=1",
                "compare.bootstrap=100",
            ),
        ),
    ),
    Case("original-recipe", (recipe("_3_frozen_lake", *ORIGINAL, "generate.policy=random"),)),
    Case("original-sokoban", (original("_2_sokoban"),)),
    Case("original-bandit", (original("_1_bandit"),)),
    Case("original-countdown", (original("_4_countdown"),)),
    Case("original-sudoku", (original("_10_sudoku"),)),
    Case("lora", (original("base-lora"),)),
    Case(
        "baseline",
        (
            spa(
                "baseline",
                "_2_sokoban",
                "state_estimation",
                *SHORT,
                *ORIGINAL,
                "trainer.run_dir=run",
            ),
        ),
    ),
    Case(
        "gae",
        (
            ppo(
                "algorithm.adv_estimator=gae",
                "algorithm.lam=0.95",
                "algorithm.bootstrap_truncated=true",
                "critic.cliprange_value=0.5",
                "trainer.critic_warmup=1",
                "agent_proxy.use_turn_scores=true",
                f"{ACTOR}.ppo_epochs=2",
                f"{ACTOR}.shuffle=true",
            ),
        ),
    ),
    Case(
        "bi-level-gae",
        (
            ppo(
                "algorithm.adv_estimator=gae",
                "algorithm.bi_level_gae=true",
                "agent_proxy.use_turn_scores=true",
            ),
        ),
    ),
    Case(
        "grpo",
        (
            ppo(
                "algorithm.adv_estimator=grpo",
                f"{ACTOR}.use_kl_loss=true",
                f"{ACTOR}.kl_loss_coef=0.1",
                f"{ACTOR}.kl_loss_type=low_var_kl",
                f"{ACTOR}.grpo_advantage_length_weight=true",
                f"{ACTOR}.loss_agg_mode=seq-mean-token-sum",
                "actor_rollout_ref.rollout.rollout_filter_include_zero=false",
                NO_WORLD,
            ),
        ),
    ),
    Case(
        "rloo",
        (
            ppo(
                "algorithm.adv_estimator=rloo",
                "algorithm.use_kl_in_reward=true",
                "algorithm.kl_ctrl.type=adaptive",
                "algorithm.kl_ctrl.kl_coef=0.1",
                "algorithm.rollout_correction.level=token",
                "algorithm.rollout_correction.cap=1.02",
                f"{ACTOR}.loss_mask=answer_only",
            ),
        ),
    ),
    Case(
        "turn-gae", (ppo("algorithm.adv_estimator=turn_gae", "agent_proxy.use_turn_scores=true"),)
    ),
    Case(
        "turn-rloo", (ppo("algorithm.adv_estimator=turn_rloo", "agent_proxy.use_turn_scores=true"),)
    ),
    Case("gigpo", (ppo("algorithm.adv_estimator=gigpo", "agent_proxy.use_turn_scores=true"),)),
    Case("echo", (ppo(f"{WORLD}.tokens=shown_states", f"{WORLD}.coef=0.05"),)),
    Case(
        "paw",
        (
            ppo(
                f"{WORLD}.tokens=shown_states",
                f"{WORLD}.kind=clipped_error",
                f"{WORLD}.turns=0.5",
                f"{WORLD}.fade=true",
                f"{WORLD}.coef=0.1",
            ),
        ),
    ),
    Case("correct-predictions", (ppo(f"{WORLD}.tokens=right_beliefs", f"{WORLD}.coef=0.3"),)),
    Case(
        "act-focus",
        (ppo(f"{ACTOR}.answer_focus.alpha=0.2", f"{ACTOR}.answer_focus.beta=1.0", NO_WORLD),),
    ),
    Case(
        "world-model-reward",
        (
            ppo(
                "agent_proxy.world_model_reward.observation=0.5",
                "agent_proxy.world_model_reward.prediction=0.2",
                "agent_proxy.world_model_reward.within=0.9",
                f"{ACTOR}.loss_mask=no_states",
            ),
        ),
    ),
    Case(
        "replayed-data",
        (
            recipe(
                "tiny",
                f"{REPLAY}.source=data",
                f"{REPLAY}.rows=4",
                f"{REPLAY}.coef=0.5",
                f"{REPLAY}.loss_on=states_only",
                "generate.shuffle_next_states=true",
                "generate.epsilon=0.5",
                "gate.enable=false",
            ),
        ),
    ),
    Case(
        "wm-ppo",
        (
            recipe(
                "tiny",
                *CHOOSE,
                *FORMAT,
                "algorithm.imagined_advantage=0.5",
                "agent_proxy.max_actions_per_turn=1",
                # at 1 it rarely names two plans without an error
                "actor_rollout_ref.rollout.temperature=0.5",
                "actor_rollout_ref.rollout.response_length=128",
                NO_WORLD,
            ),
        ),
    ),
    Case(
        "data-policies",
        (
            spa(
                "generate",
                "tiny",
                *SHORT,
                *DATA,
                "trainer.run_dir=counterfactual",
                "generate.policy=counterfactual",
            ),
            spa(
                "generate",
                "tiny",
                *SHORT,
                *DATA,
                "trainer.run_dir=believed",
                "generate.states=believed",
            ),
            spa(
                "generate",
                "tiny",
                *SHORT,
                *DATA,
                "trainer.run_dir=mixed",
                "generate.mixture={self: 0.5, expert: 0.25, q_learning: 0.25}",
                "generate.coverage=true",
            ),
            spa(
                "sft",
                "tiny",
                *SHORT,
                *SFT,
                "trainer.run_dir=mixed",
                "generate.mixture={self: 0.5, expert: 0.25, q_learning: 0.25}",
                "generate.coverage=true",
                "sft.data.loss_on=no_states",
                "sft.data.merge_turns=false",
                "sft.optim.name=adamw",
                "sft.model.dtype=float32",
                "gate.enable=false",
            ),
        ),
    ),
    Case(
        "two-ranks",
        (
            recipe(
                "tiny",
                "algorithm.adv_estimator=gae",
                "sft.model.strategy=ddp",
                "gate.enable=false",
                ranks=2,
            ),
        ),
    ),
    Case("resume", resumed("algorithm.adv_estimator=gae"), same=("undisturbed", "killed")),
    Case(
        "planned-evaluation",
        (
            recipe(
                "tiny",
                "agent_proxy.reply_order=plan_first",
                "generate.policy=random",
                *FORMAT,
            ),
            spa(
                "eval",
                "run",
                "--plan",
                "search-3",
                "--groups",
                "4",
                "--samples",
                "2",
                "--output",
                "search.json",
            ),
            spa(
                "eval",
                "run",
                "--plan",
                "beam-2",
                "--groups",
                "4",
                "--samples",
                "2",
                "--output",
                "beam.json",
            ),
            spa(*ORACLE, "--groups", "4", "--samples", "2", "--output", "oracle.json"),
            spa("eval-world-model", "run", "--transitions", "24", "--output", "world_model.json"),
        ),
    ),
    Case(
        "written-search",
        (
            recipe(
                "tiny",
                *SEARCH,
                "generate.search.examples=12",
                "actor_rollout_ref.rollout.response_length=224",
            ),
        ),
        requires=SEARCH,
    ),
)
