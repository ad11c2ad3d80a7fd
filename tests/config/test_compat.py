import logging

import pytest
import yaml

from spa.config.fields import flatten
from spa.config.load import config_names, load_config
from spa.config.schema import schema_keys, to_plain
from spa.errors import ConfigError
from spa_original import compat
from spa_original.compat import original_keys

KNOWN = {path for path, _, _ in schema_keys()}
FREE = ("custom_envs.", "model_info.", "actor_rollout_ref.rollout.engine_kwargs.")


def keys(status):
    return [key for key, entry in original_keys().items() if entry.status == status]


def warnings(caplog):
    return [record.message for record in caplog.records if record.name == "spa.config"]


def test_every_file_of_the_original_is_in_the_table():
    files = {name for entry in original_keys().values() for name in entry.files}
    yamls = {item.name for item in compat.PRESETS if item.status == "supported"}
    assert files == yamls | {"train_ppo_sfted.sh", "finetune_ft.sh"}
    assert yamls <= set(config_names())


def test_a_supported_key_is_in_the_schema():
    supported = keys("supported")
    assert [key for key in supported if key not in KNOWN and not key.startswith(FREE)] == []


def test_supported_environments_have_the_original_options():
    ours = flatten({"custom_envs": to_plain(load_config("envs").custom_envs)})
    for key, entry in original_keys().items():
        if key.startswith("custom_envs."):
            (value,) = entry.files.values()
            assert value is None or ours[key] == value


@pytest.mark.parametrize("status", ["ignored", "mapped", "refused"])
def test_every_other_key_has_a_reason_and_is_not_in_the_schema(status):
    for key in keys(status):
        assert original_keys()[key].note
        assert key not in KNOWN


def test_mapped_keys_name_one_of_ours():
    assert {original_keys()[key].to for key in keys("mapped")} <= KNOWN


def test_ignored_keys_change_nothing_and_are_named_once(caplog):
    names = keys("ignored")
    with caplog.at_level(logging.WARNING):
        assert load_config("base", [f"{name}=17" for name in names]) == load_config("base")
    (line,) = warnings(caplog)
    assert line.startswith(
        "these keys have no effect (reasons: page Keys of the original of the documentation): "
    )
    assert line.endswith(f" and {len(names) - compat.MOST_NAMES} more")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_config(
            "base", ["trainer.total_epochs=3", "+trainer.ray_wait_register_center_timeout=2"]
        )
    (line,) = warnings(caplog)
    assert line.endswith("): trainer.ray_wait_register_center_timeout, trainer.total_epochs")


def test_refused_keys_accept_the_originals_value_and_nothing_else(caplog):
    for key in keys("refused"):
        with pytest.raises(ConfigError) as caught:
            load_config("base", [f"{key}=something"])
        assert str(caught.value).splitlines()[1] == (
            f"  {key}: cannot be the string 'something' in spa: {original_keys()[key].note}"
        )
    harmless = [f"{key}=null" for key in keys("refused")]
    with caplog.at_level(logging.WARNING):
        assert load_config("base", harmless) == load_config("base")
    assert not caplog.records


def test_render_mode_and_response_mask_become_our_keys(caplog):
    with caplog.at_level(logging.WARNING):
        cfg = load_config("base", ["render_mode=text", "enable_response_mask=false"])
    assert (cfg.state_text, cfg.actor_rollout_ref.actor.loss_mask) == ("grid", "all_after_system")
    assert warnings(caplog) == [
        "render_mode=text is read as state_text=grid",
        "enable_response_mask=false is read as actor_rollout_ref.actor.loss_mask=all_after_system",
    ]
    cfg = load_config("base", ["render_mode=text_with_coordinates", "enable_response_mask=true"])
    assert (cfg.state_text, cfg.actor_rollout_ref.actor.loss_mask) == ("grid_and_coords", "sampled")
    with pytest.raises(
        ConfigError,
        match="render_mode: must be one of text, text_with_coordinates, got the string 'ascii'",
    ):
        load_config("base", ["render_mode=ascii"])
    with pytest.raises(ConfigError, match="enable_response_mask: must be true or false, got 3"):
        load_config("base", ["enable_response_mask=3"])


def test_the_policys_path_of_verl_is_the_model_path_wherever_it_stands(tmp_path, caplog):
    (tmp_path / "verl.yaml").write_text(
        "actor_rollout_ref: {model: {path: a/b}}\ncritic: {model: {path: '${actor_rollout_ref.model.path}'}}\n"
    )
    with caplog.at_level(logging.WARNING):
        cfg = load_config(tmp_path / "verl.yaml")
        assert cfg.model_path == cfg.sft.model.partial_pretrain == "a/b"
        assert load_config(tmp_path / "verl.yaml", ["model_path=c/d"]).model_path == "c/d"
        assert load_config("demo", ["actor_rollout_ref.model.path=e/f"]).model_path == "e/f"
    assert warnings(caplog)[0] == "actor_rollout_ref.model.path=a/b is read as model_path=a/b"
    caplog.clear()
    load_config(
        "demo", ["actor_rollout_ref.model.path=builtin:tiny", "critic.model.path=builtin:tiny"]
    )
    assert not caplog.records
    with pytest.raises(
        ConfigError,
        match=r"critic.model.path: cannot be the string 'a/b' in spa: the critic begins with",
    ):
        load_config("demo", ["critic.model.path=a/b"])


ORIGINAL_ENVS = """
custom_envs:
  SimpleSokoban:
    env_type: sokoban
    max_actions_per_traj: 10
    env_instruction: "Push the box."
    env_instruction_add_worldmodel: |
      Push the box and say what you see.
    max_tokens: 100
    env_config:
      dim_x: 6
      dim_y: 6
      num_boxes: 1
      max_steps: 100
  SokobanDifferentGridVocab:
    env_type: sokoban
    max_actions_per_traj: 10
    env_instruction: "Push."
    max_tokens: 30
    env_config:
      search_depth: 30
      grid_lookup: {0: "W", 1: ".", 2: "G", 3: "C", 4: "B", 5: "A", 6: "@"}
      grid_vocab: {"W": "wall", ".": "empty", "@": "player on target"}
  FrozenLake:
    env_type: frozen_lake
    max_actions_per_traj: 10
    env_instruction: "Reach the goal."
    max_tokens: 100
    env_config: null
"""


def test_a_copy_of_the_original_environments_loads(tmp_path):
    (tmp_path / "envs.yaml").write_text(ORIGINAL_ENVS)
    (tmp_path / "mine.yaml").write_text("defaults: [base, _self_]\n")
    for name in ("envs.yaml", "mine.yaml"):  # alone, or in the place of ours in the chain
        cfg = load_config(tmp_path / name)
        assert (
            cfg.custom_envs["SimpleSokoban"].env_instruction_add_worldmodel
            == "Push the box and say what you see.\n"
        )
        grid = cfg.custom_envs["SokobanDifferentGridVocab"].env_config
        assert (
            grid is not None
            and grid["grid_lookup"][6] == "@"
            and grid["grid_vocab"]["."] == "empty"
        )
        assert cfg.custom_envs["FrozenLake"].env_config is None


def test_the_original_sft_file_is_read_as_the_sft_section(tmp_path):
    text = "data: {train_batch_size: 64, prompt_key: question}\nmodel: {partial_pretrain: a/b}\noptim: {lr: 1e-5}\ntrainer: {seed: 3}\n"
    (tmp_path / "sft_trainer.yaml").write_text(text)
    cfg = load_config(tmp_path / "sft_trainer.yaml")
    assert (cfg.sft.data.train_batch_size, cfg.sft.optim.lr, cfg.sft.trainer.seed) == (64, 1e-5, 3)
    assert cfg.sft.model.partial_pretrain == "a/b"
    assert cfg.trainer.total_training_steps == 1000


def test_a_file_that_reads_an_unset_environment_variable_says_so(tmp_path, monkeypatch):
    (tmp_path / "old.yaml").write_text("model_path: '${oc.env:SPA_TEST_MODEL}'\n")
    monkeypatch.delenv("SPA_TEST_MODEL", raising=False)
    told = "model_path: cannot resolve ${oc.env:SPA_TEST_MODEL}: the environment variable SPA_TEST_MODEL is not set"
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "old.yaml")
    assert told in str(caught.value) and "KeyError" not in str(caught.value)
    assert load_config(tmp_path / "old.yaml", ["model_path=a/b"]).model_path == "a/b"
    monkeypatch.setenv("SPA_TEST_MODEL", "c/d")
    assert load_config(tmp_path / "old.yaml").model_path == "c/d"


def test_the_variables_of_the_originals_scripts_have_its_values_where_they_are_not_set(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "old.yaml").write_text(
        "ctx_manager: {mode: '${oc.env:MODE}'}\n"
        "trainer: {experiment_name: 'sudoku-${oc.env:MODEL}-RENDER_MODE${oc.env:RENDER_MODE}-fixed'}\n"
    )
    for name in ("MODE", "MODEL", "RENDER_MODE"):
        monkeypatch.delenv(name, raising=False)
    cfg = load_config(tmp_path / "old.yaml")
    assert cfg.ctx_manager.mode == "base"
    assert cfg.trainer.experiment_name == "sudoku-1.5B-RENDER_MODEtext_with_coordinates-fixed"
    assert "MODE is not set; spa uses base" in caplog.text
    monkeypatch.setenv("MODE", "add_worldmodel")
    monkeypatch.setenv("MODEL", "")
    caplog.clear()
    cfg = load_config(tmp_path / "old.yaml")
    assert (
        cfg.trainer.experiment_name.startswith("sudoku--RENDER") and "MODEL is" not in caplog.text
    )
    assert load_config(tmp_path / "old.yaml").ctx_manager.mode == "add_worldmodel"
    assert "variable MODE is" not in caplog.text


@pytest.fixture
def original_folder(tmp_path):
    """The original's configuration files, rebuilt from the table; instructions and paths are not in it."""
    trees = {}
    for key, entry in original_keys().items():
        for name, value in entry.files.items():
            if (
                not name.endswith(".sh")
                and not key.startswith("sft.")
                and "grid_" not in key
                and value != "<a path>"
            ):
                *parents, last = key.split(".")
                node = trees.setdefault(name, {})
                for parent in parents:
                    node = node.setdefault(parent, {})
                node[last] = value
    for name, tree in trees.items():
        defaults = ["ppo_trainer", "envs"] if name.startswith("base") else ["base"]
        tree = tree if name in ("ppo_trainer", "envs") else {"defaults": defaults, **tree}
        text = (
            yaml.safe_dump(tree, sort_keys=False)
            .replace("'1e-", "1e-")
            .replace("e-6'", "e-6")
            .replace("e-5'", "e-5")
        )
        (tmp_path / f"{name}.yaml").write_text(text.replace("e-4'", "e-4"))
    return tmp_path


ORIGINAL_RUNS = sorted(
    item.name for item in compat.PRESETS if item.name.startswith("_") or item.name == "stream"
)


@pytest.mark.parametrize("name", ORIGINAL_RUNS)
def test_the_original_files_load_as_a_whole(original_folder, monkeypatch, caplog, name):
    for variable, value in {
        "MODE": "base",
        "MODEL": "1.5B",
        "RENDER_MODE": "text_with_coordinates",
    }.items():
        monkeypatch.setenv(variable, value)
    with caplog.at_level(logging.WARNING):
        cfg = load_config(original_folder / f"{name}.yaml")
    ours = load_config(name)
    assert cfg.es_manager == ours.es_manager
    assert cfg.agent_proxy == ours.agent_proxy
    assert cfg.model_path == ours.model_path
    assert cfg.actor_rollout_ref.actor.optim == ours.actor_rollout_ref.actor.optim
    assert (
        cfg.ppo_mini_batch_size
        == cfg.critic.ppo_mini_batch_size
        == (32 if name == "_6_webshop" else 64)
    )
    assert (cfg.critic.cliprange_value, cfg.actor_rollout_ref.actor.loss_mask) == (
        0.5,
        "all_after_system",
    )
    assert [line.partition(" ")[0] for line in warnings(caplog)] == [
        "enable_response_mask=false",
        "these",
    ]


OLD_KEYS = "defaults: [tiny]\nrender_mode: text\nenable_response_mask: true\nmodel_path: 'mine-${render_mode}'\n"


def test_an_override_wins_over_the_originals_keys_of_a_file(tmp_path):
    (tmp_path / "ragen.yaml").write_text(OLD_KEYS)

    def read(*overrides):
        cfg = load_config(tmp_path / "ragen.yaml", overrides)
        return cfg.state_text, cfg.actor_rollout_ref.actor.loss_mask

    assert load_config(tmp_path / "ragen.yaml", ["state_text=coords"]).model_path == "mine-text"
    assert read() == ("grid", "sampled")
    assert read("state_text=coords", "actor_rollout_ref.actor.loss_mask=answer_only") == (
        "coords",
        "answer_only",
    )
    assert read("actor_rollout_ref={actor: {loss_mask: answer_only}}")[1] == "answer_only"
    assert read("~state_text")[0] == load_config("base").state_text


def test_of_the_originals_key_and_ours_the_override_written_last_wins():
    both = ["state_text=coords", "render_mode=text"]
    assert load_config("tiny", both).state_text == "grid"
    assert load_config("tiny", both[::-1]).state_text == "coords"


def test_a_mask_may_be_a_path():
    own = "sft.data.loss_on=my_module:mask"
    assert load_config("tiny", [own]).sft.data.loss_on == "my_module:mask"
