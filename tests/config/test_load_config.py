import dataclasses
import logging
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import yaml

from spa.config.fields import flatten
from spa.config.load import PARTS, config_names, load_config
from spa.config.schema import ActorConfig, Config, OptimConfig, to_plain, to_yaml
from spa.errors import ConfigError


@pytest.mark.parametrize("name", config_names())
def test_every_shipped_file_loads_quietly_and_prints_its_values_as_yaml(name, caplog):
    with caplog.at_level(logging.WARNING):
        cfg = load_config(name)
    assert not caplog.records
    assert yaml.safe_load(to_yaml(cfg)) == to_plain(cfg)


@pytest.mark.parametrize("name", ["_6_webshop", "evaluate_api_llm", "smol_sokoban_hard_search"])
def test_printed_yaml_loads_back(name, tmp_path):
    path = tmp_path / "again.yaml"
    path.write_text(to_yaml(load_config(name)), encoding="utf-8")
    assert load_config(path) == load_config(name)


def test_base_equals_the_defaults_of_the_schema():
    only_in_yaml = (
        "custom_envs",
        "es_manager.train.env_configs.n_groups",
        "es_manager.val.env_configs.n_groups",
    )
    loaded, plain = (flatten(to_plain(cfg)) for cfg in (load_config("base"), Config()))
    differing = [key for key in {**loaded, **plain} if loaded.get(key) != plain.get(key)]
    assert not [key for key in differing if not key.startswith(only_in_yaml)]


def test_effective_values_of_the_original_recipe():
    cfg = load_config("_2_sokoban")
    assert cfg.es_manager.train.env_configs.tags == ("SimpleSokoban",)
    assert (cfg.es_manager.train.env_groups, cfg.es_manager.train.group_size) == (32, 8)
    assert (cfg.es_manager.val.env_groups, cfg.es_manager.val.group_size) == (128, 8)
    assert (cfg.agent_proxy.max_turn, cfg.agent_proxy.max_actions_per_turn) == (5, 5)
    sft = cfg.sft
    assert (sft.optim.lr, sft.data.train_batch_size, sft.data.micro_batch_size_per_gpu) == (
        1e-4,
        16,
        1,
    )
    assert (sft.trainer.total_epochs, sft.data.max_length, sft.optim.betas) == (
        5,
        2048,
        (0.9, 0.95),
    )
    actor = cfg.actor_rollout_ref.actor
    assert (actor.optim.lr, cfg.critic.optim.lr, actor.optim.betas) == (1e-6, 1e-5, (0.9, 0.999))
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.28, 3.0)
    assert (cfg.trainer.total_training_steps, cfg.trainer.save_freq, cfg.trainer.test_freq) == (
        1000,
        100,
        10,
    )
    assert (cfg.seed.train, cfg.seed.val, cfg.generate.num_batches) == (10000, 123, 5)
    assert cfg.trainer.run_dir == "runs/sokoban-main"


def test_task_files_change_what_the_original_changes():
    bandit = load_config("_1_bandit")
    assert bandit.actor_rollout_ref.rollout.response_length == 500
    assert bandit.es_manager.val.env_configs.n_groups == (256, 256)
    shop = load_config("_6_webshop")
    assert (shop.agent_proxy.max_turn, shop.agent_proxy.max_actions_per_turn) == (9, 1)
    assert shop.actor_rollout_ref.rollout.max_model_len == 15000
    lora = load_config("base-lora")
    assert (lora.lora.rank, lora.critic.model.lora_rank, lora.actor_rollout_ref.actor.optim.lr) == (
        64,
        64,
        1e-5,
    )


def test_overrides_win_over_files_and_reach_interpolated_keys(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [_3_frozen_lake, _self_]\nmodel_path: a/b\nseed: {train: 7}\n"
    )
    cfg = load_config(tmp_path / "mine.yaml", ["model_path=builtin:tiny", "+seed.val=8"])
    assert cfg.sft.model.partial_pretrain == "builtin:tiny"
    assert (cfg.seed.train, cfg.seed.val) == (7, 8)
    assert cfg.es_manager.train.env_configs.tags == ("FrozenLake",)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: [tiny, _self_]\nmodel_path: a/b\n", encoding="utf-8-sig")
    assert load_config(path).model_path == "a/b"


def test_overrides_have_the_same_effect_on_a_saved_configuration(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(load_config("tiny")))
    overrides = (
        "lora.rank=8",
        "micro_batch_size_per_gpu=4",
        "trainer.experiment_name=second",
    )
    assert load_config(path, overrides) == load_config("tiny", overrides)


@pytest.mark.parametrize("text", ["sft:", "critic:", "sft: {data: null}"])
def test_an_empty_section_is_named(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match="must be a section with keys, got null"):
        load_config(tmp_path / "mine.yaml")


def test_what_a_users_file_sets_does_not_follow(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [tiny]\nsft: {model: {lora_rank: 0}}\n")
    cfg = load_config(tmp_path / "mine.yaml", ["lora.rank=8"])
    assert (cfg.actor_rollout_ref.model.lora_rank, cfg.sft.model.lora_rank) == (8, 0)


def test_overrides_reach_the_model_and_the_folders_of_a_saved_configuration(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(load_config("tiny", ["sft.trainer.default_local_dir=elsewhere"])))
    cfg = load_config(path, ["model_path=a/b", "trainer.run_dir=runs/b"])
    assert cfg.sft.model.partial_pretrain == "a/b"
    assert cfg.trainer.default_local_dir == "runs/b/ppo"
    assert cfg.sft.trainer.default_local_dir == "elsewhere"


def test_a_mapping_is_merged_unless_it_is_removed_first(tmp_path):
    (tmp_path / "mine.yaml").write_text("generate: {mixture: {self: 0.5, random: 0.5}}\n")
    other = "generate.mixture={expert: 1}"
    load = partial(load_config, tmp_path / "mine.yaml")
    assert load([other]).generate.mixture == {"self": 0.5, "random": 0.5, "expert": 1}
    assert load(["~generate.mixture", other]).generate.mixture == {"expert": 1}


def test_a_file_wins_over_its_defaults_without_self_too(tmp_path, recwarn):
    (tmp_path / "mine.yaml").write_text("defaults: [_3_frozen_lake]\nseed: {train: 7}\n")
    assert load_config(tmp_path / "mine.yaml").seed.train == 7
    assert not recwarn.list


def test_a_users_file_without_defaults_is_completed_from_base(tmp_path):
    (tmp_path / "config.yaml").write_text("ppo_mini_batch_size: 8\nagent_proxy: {max_turn: 2}\n")
    cfg = load_config(tmp_path)
    assert cfg.agent_proxy.max_turn == 2
    assert cfg.agent_proxy.max_actions_per_turn == 5
    assert cfg.critic.ppo_mini_batch_size == 8


def test_a_users_environment_replaces_the_shipped_one_as_a_whole(tmp_path):
    text = "custom_envs:\n  FrozenLake: {env_type: frozen_lake, env_config: null}\n"
    (tmp_path / "mine.yaml").write_text(text)
    cfg = load_config(tmp_path / "mine.yaml")
    assert cfg.custom_envs["FrozenLake"].env_config is None
    assert cfg.custom_envs["SimpleSokoban"].env_config == {
        "dim_x": 6,
        "dim_y": 6,
        "num_boxes": 1,
        "max_steps": 100,
    }


def test_removing_a_key_gives_its_default_and_removing_a_tag_drops_it():
    cfg = load_config("_3_frozen_lake", ["~trainer.experiment_name", "~custom_envs.Bandit"])
    assert cfg.trainer.experiment_name == "test"
    assert "Bandit" not in cfg.custom_envs


def test_a_key_can_be_removed_where_the_default_has_none():
    cfg = load_config("base", ["generate.mixture={self: 1, random: 2}", "~generate.mixture.self"])
    assert cfg.generate.mixture == {"random": 2}
    with pytest.raises(ConfigError, match="state_text: must be one of"):
        load_config("base", ["state_text={a: 1}", "~state_text.a"])


def test_options_can_be_given_to_an_environment_without_any():
    cfg = load_config("_4_countdown", ["custom_envs.Countdown.env_config.split=test"])
    assert cfg.custom_envs["Countdown"].env_config == {"split": "test"}


def test_groups_are_spread_over_the_tags():
    tags = "es_manager.train.env_configs.tags=[FrozenLake,Sudoku,Bandit]"
    cfg = load_config("base", [tags, "es_manager.train.env_groups=32"])
    assert cfg.es_manager.train.env_configs.n_groups == (11, 11, 10)


def test_numbers_may_be_names():
    cfg = load_config(
        "base", ["es_manager.val.env_configs.tags=[2048]", "trainer.experiment_name=17"]
    )
    assert cfg.es_manager.val.env_configs.tags == ("2048",)
    assert cfg.trainer.run_dir == "runs/17"


def test_sections_are_frozen_and_can_be_built_directly():
    cfg = load_config("base")
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.seed.train = 1  # type: ignore[misc]
    assert ActorConfig(optim=OptimConfig(lr=3e-4)).optim.lr == 3e-4


def test_threads_read_files_side_by_side(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, _self_]\nseed: {train: 7}\n")
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: load_config(tmp_path / "mine.yaml"), range(4)))
    assert all(cfg == read[0] for cfg in read)


def test_loading_is_quiet_and_imports_nothing_heavy():
    code = (
        "import sys, spa.config, spa.config.load as load\n"
        "load.load_config('demo')\n"
        "sys.exit(len({'torch', 'transformers', 'pyarrow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_parts_are_read_as_base():
    assert all(load_config(name) == load_config("base") for name in PARTS)


def test_environment_variables_are_not_read(monkeypatch):
    for name, value in {
        "MODE": "add_worldmodel",
        "RENDER_MODE": "text",
        "BT_NUM": "9",
        "MODEL": "x",
    }.items():
        monkeypatch.setenv(name, value)
    assert load_config("_10_sudoku").ctx_manager.mode == "base"
    assert load_config("_10_sudoku").generate.num_batches == 5


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"no configuration '_3_frozenlake'.*_3_frozen_lake"):
        load_config("_3_frozenlake")
    with pytest.raises(ConfigError, match=r"has no config\.yaml and contains no \.yaml file"):
        load_config(tmp_path)


def test_a_module_beside_a_configuration_is_found_from_another_folder(tmp_path):
    for name in ("lamps.py", "lamps.yaml"):
        shutil.copy(Path(__file__).parents[2] / "examples" / name, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [
        sys.executable,
        "-m",
        "spa",
        "env",
        "prompt",
        "Lamps",
        "--config",
        "../lamps.yaml",
        "model_path=builtin:tiny",
    ]
    done = subprocess.run(
        command, cwd=elsewhere, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0 and "lamp" in done.stdout, done.stderr
