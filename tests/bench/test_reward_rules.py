"""The rules of `spa doctor RUN` and `spa diagnose`: each fault alone, ranks of several, recorded runs."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from spa.cli import execute
from spa.config.load import load_config
from spa.config.schema import schema_keys
from spa_bench.diagnose.rules import failed_gate, ranked, unchecked

RECORDED = Path(__file__).parents[1] / "golden" / "metrics"
"""`metrics.jsonl` of two PPO runs of tiny.yaml with 8 or 6 groups; one with a learning rate of 0.03."""
SETTINGS = {
    "actor_rollout_ref.actor.optim.lr": 3e-4,
    "actor_rollout_ref.actor.entropy_coeff": 0.001,
    "actor_rollout_ref.actor.ppo_num_mini_batches": 4,
    "actor_rollout_ref.rollout.response_length": 96,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "es_manager.format_penalty": -0.1,
    "es_manager.train.env_groups": 8,
    "es_manager.train.group_size": 8,
    "es_manager.train.env_configs.tags": ["Lake"],
    "agent_proxy.max_turn": 5,
    "agent_proxy.max_actions_per_turn": 3,
    "custom_envs.Lake.max_actions_per_traj": 10,
    "ctx_manager.mode": "add_worldmodel",
    "trainer.kl_warn": 0.01,
}
HEALTHY = {
    "actor/entropy": 0.28,
    "actor/grad_norm": 0.4,
    "actor/loss": 0.02,
    "actor/lr": 3e-4,
    "actor/nonfinite_steps": 0.0,
    "actor/pg_clipfrac": 0.002,
    "actor/ppo_kl": 8e-4,
    "rollout/chosen_in_group_std": 0.5,
    "rollout/groups_zero_std": 2.0,
    "rollout/in_group_max": 0.9,
    "rollout/in_group_std": 0.4,
    "rollout/kept_count": 4.0,
    "rollout/kept_ratio": 0.5,
    "rollout/mismatch_kl": 1e-4,
    "train/Lake/completions/clipped_ratio": 0.01,
    "train/Lake/episodes": 64.0,
    "train/Lake/errors": 0.0,
    "train/Lake/format_rate": 0.99,
    "train/Lake/num_actions": 5.0,
    "train/Lake/repetition": 0.0,
    "train/Lake/reward": 0.4,
    "train/Lake/score": 0.39,
    "train/Lake/success": 0.4,
}
OPTIONAL = (
    "rollout/in_group_mean",
    "actor/kl_loss",
    "actor/reward_kl_coef",
    "actor/reward_kl_penalty",
    "train/Lake/response_length",
)
"""Metrics that not every run logs."""


def steps(count=6, **changes):
    """Rows of a healthy run with other values: a number for all steps, or a list of one per step."""
    keys = {key.rpartition("/")[2]: key for key in [*HEALTHY, *OPTIONAL]}
    return [
        HEALTHY
        | {
            keys[name]: value[step] if isinstance(value, list) else value
            for name, value in changes.items()
        }
        for step in range(count)
    ]


def test_a_healthy_run_has_no_finding_and_every_rule_is_checked():
    assert ranked(steps(), SETTINGS) == [] and unchecked(steps()) == []
    # A policy that has learned its task may have equal groups and little entropy.
    learned = steps(success=[0.4, 0.6, 0.8, 0.95, 0.97, 1.0], entropy=0.01, groups_zero_std=8.0)
    assert ranked(learned, SETTINGS) == []


ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
FAULTS = [
    ("Failing episodes", {"errors": 100.0}, {}, "es_manager.env_timeout_s=600"),
    ("Learning rate too high", {"ppo_kl": 0.06}, {}, f"{ACTOR}optim.lr=3e-05 (now 0.0003)"),
    ("Learning rate too high", {"ppo_kl": [0.0, -0.3, 0.0, 0.0, 0.0, 0.0]}, {}, f"{ACTOR}optim.lr"),
    ("Learning rate too high", {"nonfinite_steps": 1.0}, {}, f"{ACTOR}optim.lr"),
    ("Learning rate too high", {"grad_norm": [0.4, 0.4, 0.4, 0.4, 9.0, 0.4]}, {}, f"{ACTOR}optim.lr"),
    ("Learning rate too high", {"format_rate": [1.0, 0.9, 0.3, 0.0, 0.0, 0.0], "ppo_kl": 0.0}, {}, f"{ACTOR}optim.lr"),
    ("Mismatch of sampler and trainer", {"mismatch_kl": 0.02}, {}, "algorithm.rollout_correction.level=token"),
    ("Mismatch of sampler and trainer", {"mismatch_kl": 0.02}, {f"{ROLLOUT}name": "mine:engine"}, f"{ROLLOUT}name=local"),
    ("Mismatch of sampler and trainer", {"mismatch_kl": 0.02}, {f"{ROLLOUT}dtype": "float16"}, f"{ROLLOUT}dtype=auto"),
    ("Length limit", {"clipped_ratio": 0.3, "format_rate": 0.7}, {}, f"{ROLLOUT}response_length=192 (now 96)"),
    ("Malformed responses", {"format_rate": 0.6}, {}, "sft.trainer.total_training_steps=200"),
    ("Malformed responses", {"format_rate": 0.3, "clipped_ratio": 0.2}, {}, "sft.trainer.total_training_steps=200"),
    ("Malformed responses", {"format_rate": 0.3, "clipped_ratio": 0.6}, {f"{ROLLOUT}temperature": 2.0}, f"{ROLLOUT}temperature=1 (now 2)"),
    ("Entropy collapse", {"entropy": 0.01}, {}, f"{ACTOR}entropy_coeff=0.01 (now 0.001)"),
    ("Entropy collapse", {"entropy": [0.3, 0.2, 0.1, 0.06, 0.05, 0.05]}, {}, f"{ACTOR}entropy_coeff"),
    ("Entropy collapse", {"entropy": 0.05, "ppo_kl": 0.07}, {f"{ROLLOUT}temperature": 0.1}, f"{ROLLOUT}temperature=1 (now 0.1)"),
    ("Entropy grows", {"entropy": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}, {f"{ACTOR}entropy_coeff": 0.05}, f"{ACTOR}entropy_coeff=0.005 (now 0.05)"),
    ("Entropy bonus", {"entropy": 0.9, "loss": -0.9, "format_rate": [1.0, 0.9, 0.4, 0.3, 0.3, 0.3]}, {f"{ACTOR}entropy_coeff": 1.0}, f"{ACTOR}entropy_coeff=0.001 (now 1)"),
    ("KL penalty", {"kl_loss": 0.06, "loss": 6.5, "grad_norm": 80.0}, {f"{ACTOR}kl_loss_coef": 100.0}, f"{ACTOR}kl_loss_coef=0.001 (now 100)"),
    ("KL penalty", {"kl_loss": 0.001, "loss": 0.25}, {f"{ACTOR}kl_loss_coef": 20.0}, f"{ACTOR}kl_loss_coef=0.001 (now 20)"),
    ("KL penalty", {"reward_kl_penalty": 0.3, "reward_kl_coef": 0.1, "response_length": 40.0}, {}, "algorithm.kl_ctrl.kl_coef=0.001"),
    ("Too few actions", {"num_actions": 1.0, "success": 0.16, "groups_zero_std": 6.0}, {"custom_envs.Lake.max_actions_per_traj": 1}, "custom_envs.Lake.max_actions_per_traj=4 (now 1)"),
    ("Too few actions", {"num_actions": 3.0, "success": 0.16, "groups_zero_std": 6.0}, {"agent_proxy.max_turn": 1}, "agent_proxy.max_turn=2 (now 1)"),
    ("Too few actions", {"num_actions": 3.0, "success": 0.16, "groups_zero_std": 6.0}, {"custom_envs.Lake.max_turn": 1}, "custom_envs.Lake.max_turn=2 (now 1)"),
    ("No reward variance", {"groups_zero_std": 7.0}, {}, "es_manager.train.env_configs.tags=[an easier environment]"),
    ("No reward variance", {"groups_zero_std": 7.0, "success": 0.97}, {}, "es_manager.train.env_configs.tags=[a harder environment]"),
    ("No reward variance", {"groups_zero_std": 8.0}, {"es_manager.train.group_size": 1}, "es_manager.train.group_size=8 (now 1)"),
    ("No reward variance", {"groups_zero_std": 8.0, "entropy": 0.01}, {f"{ROLLOUT}do_sample": False}, f"{ROLLOUT}do_sample=true (now False)"),
    ("No reward variance", {"success": 0.0}, {}, "es_manager.train.env_configs.tags=[an easier environment]"),
    ("Reward scale", {"in_group_std": 40.0, "chosen_in_group_std": 50.0}, {"custom_envs.Lake.reward.game": 100.0}, "custom_envs.Lake.reward.game=1"),
    ("Reward scale", {"in_group_std": 40.0, "chosen_in_group_std": 50.0}, {}, "agent_proxy.reward_normalization.method=mean_std"),
    ("Reward scale", {"in_group_std": 0.02, "chosen_in_group_std": 0.03}, {}, "agent_proxy.reward_normalization.method=mean_std"),
    ("Reward scale", {"score": -0.6}, {"es_manager.format_penalty": -50.0}, "es_manager.format_penalty=-0.1 (now -50)"),
    ("Reward scale", {"in_group_mean": 6.0}, {"agent_proxy.world_model_reward.observation": 2.0}, "agent_proxy.world_model_reward.observation=0.2 (now 2)"),
    ("Filter", {"kept_count": 1.0, "kept_ratio": 0.125}, {f"{ROLLOUT}rollout_filter_type": "top_k_abs"}, f"{ROLLOUT}rollout_filter_type=std (now top_k_abs)"),
    ("Filter", {"kept_count": 2.0, "kept_ratio": 0.125}, {f"{ROLLOUT}rollout_filter_type": "top_k_abs", f"{ROLLOUT}rollout_filter_ratio": 2.0}, f"{ROLLOUT}rollout_filter_ratio=8 (now 2)"),
    ("Filter", {"kept_count": 1.0, "kept_ratio": 0.125, "groups_zero_std": 0.0}, {f"{ROLLOUT}rollout_filter_ratio": 0.1}, f"{ROLLOUT}rollout_filter_ratio=0.5 (now 0.1)"),
    ("Clipped ratio", {"pg_clipfrac": 0.09}, {f"{ACTOR}clip_ratio_low": 0.002}, f"{ACTOR}clip_ratio_low=0.2 (now 0.002)"),
    ("Clipped ratio", {"pg_clipfrac": 0.09, "ppo_kl": 0.07}, {f"{ACTOR}ppo_epochs": 8}, f"{ACTOR}ppo_epochs=1 (now 8)"),
    ("Clipped ratio", {"pg_clipfrac": 0.09}, {}, f"{ACTOR}optim.lr=3e-05"),
    ("Learning rate too low", {"ppo_kl": 2e-8, "pg_clipfrac": 0.0}, {f"{ACTOR}optim.lr": 1e-8}, f"{ACTOR}optim.lr=0.0001 (now 1e-08)"),
    ("Learning rate too low", {"ppo_kl": 2e-7, "pg_clipfrac": 0.0, "lr": 1e-6}, {}, f"{ACTOR}optim.lr_warmup_steps=0"),
]  # fmt: skip


@pytest.mark.parametrize(("title", "changes", "settings", "change"), FAULTS)
def test_each_fault_is_named_first_with_the_setting_to_change(title, changes, settings, change):
    found = ranked(steps(**changes), SETTINGS | settings)
    assert found and found[0].title == title
    assert found[0].change.startswith(change)
    assert found[0].text.startswith(f"{title}: ") and found[0].text.endswith(
        f"Set {found[0].change}."
    )


def test_faults_of_the_first_step_come_before_those_of_updates():
    """No update can have caused what the first rollouts show."""
    falling = [0.83, 0.6, 0.4, 0.2, 0.2, 0.2]
    cut = [0.14, 0.3, 0.5, 0.7, 0.8, 0.8]
    rows = steps(format_rate=falling, clipped_ratio=cut, ppo_kl=0.09)

    def titles(tokens):
        lengths = {"train/Lake/response_length": tokens, "train/Lake/num_turns": 2.0}
        return [found.title for found in ranked([row | lengths for row in rows], SETTINGS)]

    # 16 of 96 tokens: what is cut off are runaways.
    assert titles(32.0)[:2] == ["Malformed responses", "Learning rate too high"]
    # 80 of 96 tokens: the limit is the cause.
    assert titles(160.0)[:2] == ["Length limit", "Learning rate too high"]
    # Most malformed responses are shorter than the limit.
    other = [
        row | {"train/Lake/response_length": 160.0, "train/Lake/num_turns": 2.0}
        for row in steps(format_rate=0.01, clipped_ratio=0.27)
    ]
    assert ranked(other, SETTINGS)[0].title == "Malformed responses"
    lost_later = steps(format_rate=[1.0, 0.9, 0.8, 0.7, 0.7, 0.7], ppo_kl=0.09)
    assert ranked(lost_later, SETTINGS)[0].title == "Learning rate too high"
    # Groups that keep no score are no matter of scale.
    still = steps(groups_zero_std=8.0, in_group_std=[0.4, 0, 0, 0, 0, 0], chosen_in_group_std=0.0)
    assert [found.title for found in ranked(still, SETTINGS)] == ["No reward variance"]


def test_a_failed_gate_comes_before_what_ppo_loses_later():
    gate = failed_gate({"passed": False, "diagnosis": "does_not_predict"}, [], SETTINGS)
    (later,) = ranked(steps(format_rate=[1.0, 0.95, 0.9, 0.85, 0.85, 0.85]), SETTINGS)
    assert gate is not None and gate.rank < later.rank and later.title == "Malformed responses"


def test_every_setting_to_change_is_one_of_the_configuration():
    known = {path for path, _, _ in schema_keys()}
    for _, changes, settings, _ in FAULTS:
        for found in ranked(steps(**changes), SETTINGS | settings):
            for change in found.change.split(", "):
                key = change.partition("=")[0].replace(".Lake.", ".*.").removesuffix(".game")
                assert key in known


@pytest.mark.parametrize(
    "settings", [{}, {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": 1e-4}]
)
def test_the_advice_on_a_format_that_ppo_unlearned_is_a_configuration(settings):
    rows = steps(format_rate=[1.0, 0.95, 0.9, 0.85, 0.85, 0.85])
    (found,) = ranked(rows, SETTINGS | settings)
    changes = [change.partition(" ")[0] for change in found.change.split(", ")]
    given = [f"{key}={str(value).lower()}" for key, value in settings.items()]
    actor = load_config("tiny", [*given, *changes]).actor_rollout_ref.actor
    assert actor.use_kl_loss and actor.kl_loss_coef == 0.001


@pytest.mark.parametrize(
    ("gate", "losses", "change", "text"),
    [
        ({"diagnosis": "does_not_predict", "prediction_exact": 0.05}, [0.4, 0.2], "sft.trainer.total_training_steps=400 (now 200)", "val/wm/prediction_em is 0.05 (limit: gate.prediction_exact_min=0.28"),
        ({"diagnosis": "does_not_predict", "prediction_exact": 0.5, "copy_exact": 0.6, "changed_f1": 0.05}, [0.4, 0.2], "sft.trainer.total_training_steps=400", "val/wm/prediction_em is 0.5 (limit"),
        ({"diagnosis": "does_not_predict", "prediction_exact": 0.62, "copy_exact": 0.55, "changed_f1": 0.05}, [0.4, 0.2], "sft.trainer.total_training_steps=400", "val/wm/changed_f1 is 0.05 (limit: gate.changed_f1_min=0.1"),
        ({"diagnosis": "bad_format", "format_rate": 0.3}, [0.4, 0.2], "sft.trainer.total_training_steps=400", "val/wm/format_rate is 0.3 (limit: gate.format_min=0.8"),
        ({"diagnosis": "bad_observation", "observation_exact": 0.3}, [0.4, 0.4], "sft.optim.lr=1e-07 (now 1e-08)", "val/wm/obs_exact is 0.3 (limit: gate.observation_exact_min=0.8"),
        ({"diagnosis": "predicts", "entropy": 0.01}, [0.4, 0.2], "sft.trainer.total_training_steps=100", "val/sampled_nll is 0.01 (limit: gate.entropy_min=0.2"),
    ],
)  # fmt: skip
def test_a_failed_gate_names_its_limit(gate, losses, change, text):
    settings = {"sft.trainer.total_training_steps": 200, "sft.optim.lr": 1e-8}
    rows = [{"train/loss": loss} for loss in losses]
    found = failed_gate({"passed": False, **gate}, rows, settings)
    assert found is not None and found.change.startswith(change) and text in found.text
    assert failed_gate({"passed": True, **gate}, rows, settings) is None


def recorded(folder, name, settings=()):
    """A run folder with recorded metrics and the configuration that made them."""
    (folder / "ppo").mkdir(parents=True)
    shutil.copy(RECORDED / f"{name}.jsonl", folder / "ppo" / "metrics.jsonl")
    config = {
        "actor_rollout_ref": {"actor": {"optim": {"lr": 0.03}, "ppo_num_mini_batches": 4}},
        "es_manager": {"train": {"env_groups": 6}},
        **dict(settings),
    }
    (folder / "ppo" / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_doctor_ranks_what_holds_a_recorded_run_back(tmp_path, capsys):
    assert execute(["doctor", str(recorded(tmp_path / "run", "high_learning_rate"))]) == 0
    out = capsys.readouterr().out
    assert "run: what holds the reward back in 4 PPO steps, causes first\n" in out
    assert (
        "  1. Learning rate too high: actor/ppo_kl is up to 3.1 nats per token (limit: 0.25), so one step changes "
        "the policy more than its samples can justify. Set actor_rollout_ref.actor.optim.lr=0.003 (now 0.03).\n"
    ) in out
    titles = [
        line.split(". ")[1].partition(":")[0]
        for line in out.splitlines()
        if line.startswith("  ") and line[2].isdigit()
    ]
    assert titles == [
        "Learning rate too high",
        "Length limit",
        "Malformed responses",
        "No reward variance",
        "Clipped ratio",
    ]


def test_doctor_asks_the_optimal_policy_whether_actions_suffice(tmp_path, capsys):
    """On the 3x3 lake two actions do not solve every puzzle, whatever the share of equal groups."""
    for name, used in (("most", 1.8), ("few", 1.0)):
        limit = {"FrozenLakeNoSlip": {"max_actions_per_traj": 2}}
        settings = {"defaults": ["tiny", "_self_"], "custom_envs": limit}
        run = recorded(tmp_path / name, "healthy", settings)
        rows = [
            json.loads(line) for line in (run / "ppo" / "metrics.jsonl").read_text().splitlines()
        ]
        tag = "train/FrozenLakeNoSlip/num_actions"
        assert any(tag in row for row in rows)
        text = "".join(json.dumps({**row, tag: used} if tag in row else row) + "\n" for row in rows)
        (run / "ppo" / "metrics.jsonl").write_text(text)
        execute(["doctor", str(run)])
    out = capsys.readouterr().out
    told = r"1\. Too few actions: success of the optimal policy within 2 actions is \d+ %, and 100 % within 8 "
    assert re.search(told, out)
    assert "Set custom_envs.FrozenLakeNoSlip.max_actions_per_traj=8 (now 2)." in out
    assert "few: nothing holds the reward back" in out


def test_doctor_judges_every_method_and_the_gate(tmp_path, capsys):
    recorded(tmp_path / "run" / "vanilla", "healthy")
    recorded(tmp_path / "run" / "spa", "healthy")
    sft = tmp_path / "run" / "spa" / "sft"
    sft.mkdir()
    (sft / "metrics.jsonl").write_text('{"step":1,"train/loss":0.4}\n')
    (sft / "config.yaml").write_text("gate: {enable: true, prediction_exact_min: 0.2}\n")
    (sft / "gate.json").write_text(
        json.dumps({"passed": False, "diagnosis": "does_not_predict", "prediction_exact": 0.04})
    )
    execute(["doctor", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert (
        "spa: what holds the reward back in 6 PPO steps, causes first\n  1. World-model gate failed: "
        in out
    )
    assert "vanilla: nothing holds the reward back" in out


def test_diagnose_reads_rollouts_with_the_same_rules(tmp_path, capsys):
    user = {"role": "user", "content": "room <answer>"}
    rows = [
        {
            "messages": [user, {"role": "assistant", "content": text}],
            "reward": 1.0,
            "group": str(number // 2),
        }
        for number, text in enumerate(
            ["<answer>Up</answer>", "<answer>Up", "Up", "<answer>Up</answer>"]
        )
    ]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    execute(["diagnose", str(file), "--json"])
    reward = json.loads(capsys.readouterr().out)["reward"]
    assert [text.partition(":")[0] for text in reward] == [
        "Malformed responses",
        "No reward variance",
    ]
    page = tmp_path / "page.html"
    execute(["diagnose", str(file), "--html", str(page)])
    assert (
        "What holds the reward back, causes first:\n1. Malformed responses: "
        in capsys.readouterr().out
    )
    assert "<li><bdi>Malformed responses: " in page.read_text()
