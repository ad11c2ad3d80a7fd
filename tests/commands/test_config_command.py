from spa.cli import execute
from spa.config.load import load_config


def test_show_prints_the_resolved_file(capsys, tmp_path):
    changes = ["seed.val=9", "~custom_envs.Bandit", "+trainer.threads=1"]
    assert execute(["config", "show", "_3_frozen_lake", *changes]) == 0
    path = tmp_path / "shown.yaml"
    path.write_text(capsys.readouterr().out)
    assert "${" not in path.read_text()
    shown = load_config(path, ["~custom_envs.Bandit"])
    assert shown == load_config(
        "_3_frozen_lake", ["seed.val=9", "~custom_envs.Bandit", "trainer.threads=1"]
    )


def test_list_prints_names_that_load(capsys):
    assert execute(["config", "list"]) == 0
    names = capsys.readouterr().out.split()
    assert {"demo", "_2_sokoban", "base-lora"} <= set(names) and "envs" not in names
