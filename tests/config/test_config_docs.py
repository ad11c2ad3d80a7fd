from config_reference import changed_defaults, configuration_page

from spa.config.load import load_config


def test_only_what_has_no_default_is_called_required():
    lines = [line for line in configuration_page().splitlines() if "| required |" in line]
    assert [line.split("`")[1] for line in lines] == [
        "custom_envs.*.env_type",
        "model_info.*.provider_name",
        "model_info.*.model_name",
    ]


def test_every_changed_default_has_a_reason():
    rows = changed_defaults()
    assert {key for key, *_ in rows} >= {
        "ppo_mini_batch_size",
        "critic.cliprange_value",
        "trainer.n_gpus_per_node",
    }
    assert all(note for *_, note in rows)


def test_the_example_of_the_page_loads(tmp_path):
    page = configuration_page()
    (tmp_path / "my_run.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    cfg = load_config(
        tmp_path / "my_run.yaml",
        ["es_manager.train.env_configs.tags=[FrozenLake,Sudoku]", "~custom_envs.Bandit"],
    )
    assert (cfg.model_path, cfg.agent_proxy.max_turn) == ("builtin:tiny", 3)
    assert cfg.es_manager.train.env_configs.n_groups == (16, 16)
