"""`spa compare --sweep`: one key with several values, beside a run that stays as it is."""

import hashlib
import json
from pathlib import Path

import pytest
from helpers.grids import run_small
from helpers.runs import SMALL

from spa import cli
from spa.errors import ConfigError
from spa_report.reading import open_run
from spa_sweeps.compare import Comparison, methods_compared, short_name, values_tried

LR = "actor_rollout_ref.actor.optim.lr"
STEPS = (
    "trainer.total_training_steps=1",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.eval_episodes=4",
    "generate.num_batches=1",
)


def checksums(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def demo(base, tmp_path_factory) -> tuple[Path, list[str]]:
    """A finished comparison, and the overrides that it was made with."""
    root = tmp_path_factory.mktemp("try") / "demo"
    overrides = [*SMALL, f"model_path={base}", f"trainer.run_dir={root}", *STEPS]
    run_small(methods_compared("base", overrides))
    return root, overrides


@pytest.fixture(scope="module")
def tried(demo) -> tuple[Comparison, dict, dict[str, str]]:
    """Its learning rate beside another one, and what the folder of the comparison held before."""
    root, overrides = demo
    before = checksums(root)
    made = values_tried("base", [*overrides, f"{LR}=3e-4,1e-4"])
    return made, run_small(made), before


def test_only_what_the_key_changes_is_done_and_the_base_stays_as_it_was(demo, tried):
    root, _ = demo
    made, _, before = tried
    assert made.root == root.with_name("demo-try-actor.optim.lr")
    assert [task.folder for task in made.grid.tasks] == [
        made.root / "actor.optim.lr=0.0001" / "ppo"
    ]
    assert set(made.grid.links.values()) == {root / "spa" / name for name in ("data", "sft", "ppo")}
    assert checksums(root) == before


def test_values_are_paired_with_the_first_one(tried):
    made, summary, _ = tried
    assert summary["reference"] == "actor.optim.lr=0.0003" and list(summary["difference"]) == [
        "actor.optim.lr=0.0001"
    ]
    gap = summary["difference"]["actor.optim.lr=0.0001"]
    assert gap["low"] <= gap["mean"] <= gap["high"] and gap["n"] == 2
    first, second = (summary["methods"][arm]["after"]["pass@1"] for arm in made.arms)
    assert gap["mean"] == pytest.approx(first - second, abs=1e-4)


def test_the_same_command_finds_everything_done(demo, tried):
    _, overrides = demo
    made, summary, _ = tried
    again = values_tried("base", [*overrides, f"{LR}=3e-4,1e-4"])
    before = checksums(made.root)
    assert (
        again.grid.missing == [] and run_small(again) == summary and checksums(made.root) == before
    )


def test_report_and_viewer_take_the_folder(tried, capsys):
    made, *_ = tried
    assert open_run(made.root).arms() == sorted(made.arms)
    assert cli.main(["report", str(made.root)]) == 0
    page = (made.root / "report.html").read_text()
    assert "actor.optim.lr=0.0001" in page and "actor.optim.lr=0.0003" in page
    assert cli.main(["view", str(made.root), "--export", str(made.root / "page.html")]) == 0


def test_several_keys_are_every_combination(demo):
    _, overrides = demo
    made = values_tried("base", [*overrides, "algorithm.gamma=1.0,0.9", "algorithm.lam=1.0,0.95"])
    assert (
        made.root.name == "demo-try-algorithm.gamma-algorithm.lam"
        or made.root.name == "demo-try-gamma-lam"
    )
    assert len(made.arms) == 4 and made.reference == next(iter(made.arms))
    assert all(task.stage == "ppo" for task in made.grid.missing)


def test_a_key_is_swept_once():
    with pytest.raises(ConfigError, match=r"actor\.optim\.lr is given again after its sweep"):
        values_tried("tiny", [f"{LR}=1e-4,3e-4", f"{LR}=1e-3"])


def test_a_sweep_has_the_seeds_of_the_configuration():
    made = values_tried("tiny", ["algorithm.gamma=1.0,0.9", "compare.seeds=3"])
    assert made.cfg.compare.seeds == 3 and {len(runs) for runs in made.trainings.values()} == {3}


def test_a_key_of_fine_tuning_keeps_self_play_alone(demo):
    _, overrides = demo
    made = values_tried("base", [*overrides, "sft.optim.lr=3e-3,1e-3"])
    assert [task.stage for task in made.grid.missing] == ["sft", "ppo"]


def test_a_key_that_changes_no_result_is_refused(demo):
    _, overrides = demo
    with pytest.raises(ConfigError, match=r"trainer.save_freq lead to identical training runs"):
        values_tried("base", [*overrides, "trainer.save_freq=1,2"])
    with pytest.raises(ConfigError, match="several values"):
        values_tried("base", [*overrides, f"{LR}=1e-4"])
    with pytest.raises(ConfigError, match=r"unknown|no key"):
        values_tried("base", [*overrides, "algorithm.gama=0.9,1"])


def test_values_that_are_no_names_of_folders(demo):
    _, overrides = demo
    made = values_tried(
        "base", [*overrides, "es_manager.train.env_configs.tags=[FrozenLakeNoSlip],[FrozenLake]"]
    )
    assert all("/" not in name for name in made.arms) and len(made.arms) == 2


def test_a_quoted_value_has_the_name_of_a_bare_one():
    made = values_tried("tiny", ["algorithm.adv_estimator='grpo',rloo"])
    assert list(made.arms) == ["adv_estimator=grpo", "adv_estimator=rloo"]


def test_values_with_one_name_are_refused():
    with pytest.raises(ConfigError, match="lead to one folder name, model_path=a-b"):
        values_tried("tiny", ["model_path=a/b,a-b"])


def test_keys_are_called_by_their_shortest_end():
    assert (
        short_name(LR) == "actor.optim.lr" and short_name("generate.num_batches") == "num_batches"
    )


def test_the_plan_is_printed(demo, capsys):
    folder, overrides = demo
    # Another test of this file may have trained this value already.
    trained = (folder.parent / "demo-try-actor.optim.lr" / "actor.optim.lr=0.0001" / "ppo").is_dir()
    assert (
        cli.main(["compare", "base", *overrides, "--sweep", f"{LR}=3e-4,1e-4,1e-5", "--dry-run"])
        == 0
    )
    printed = capsys.readouterr().out
    assert printed.count(" is the same stage)") == 7
    assert printed.count("to do") == (1 if trained else 2)
    assert json.dumps(printed)
