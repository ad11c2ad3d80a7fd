from config_reference import configuration_page

from spa.config.load import load_config


def test_the_example_of_the_page_loads(tmp_path):
    page = configuration_page()
    (tmp_path / "my_run.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    cfg = load_config(
        tmp_path / "my_run.yaml",
        ["es_manager.train.env_configs.tags=[FrozenLake,Sudoku]", "~custom_envs.Bandit"],
    )
    assert (cfg.model_path, cfg.agent_proxy.max_turn) == ("builtin:tiny", 3)
    assert cfg.es_manager.train.env_configs.n_groups == (16, 16)
