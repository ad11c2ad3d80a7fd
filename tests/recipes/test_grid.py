"""The grid: which stages are shared, in which order they are done, and what a failure costs."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spa.config.load import load_config
from spa.errors import ConfigError, ModelError, TrainingError
from spa.recipes.ablations import METHODS, training
from spa.recipes.grid import Stage, distinct, run_grid, stages_of
from spa.recipes.pipeline import DONE, result_of


def names(method: str, root: Path = Path("r"), preset: str = "demo", *overrides: str, seed: int = 0) -> list[str]:
    return [Path(s.folder).name for s in stages_of(training(method, preset, overrides, seed=seed, label=method), root)]


def threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=count)


class Worker:
    """Marks stages as done, and remembers the order."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.order, self.devices = fails, [], set()
        self.lock = threading.Lock()

    def __call__(self, stage: Stage, device: str) -> None:
        with self.lock:
            self.order.append(stage.folder)
            self.devices.add(device)
        if stage.source is not None:
            assert (Path(stage.source) / DONE).is_file()
        if self.fails and self.fails in stage.folder:
            raise ModelError("out of luck")
        Path(stage.folder).mkdir(parents=True)
        (Path(stage.folder) / DONE).write_text(json.dumps({"result": stage.folder, "seconds": 1.0}))


@pytest.mark.parametrize("preset", ["demo", "_2_sokoban"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_with_the_presets(method, preset):
    assert names(method, Path("r"), preset)[-1].startswith("ppo-")


def test_methods_share_what_they_do_not_change():
    spa = names("spa")
    for method in ("masked_states", "states_only", "sft_epochs_1", "sft_epochs_5"):
        own = names(method)
        assert own[0] == spa[0] and own[1] != spa[1] and own[2] != spa[2]
    for method in ("group_size_4", "no_filter", "answer_only", "base_format"):
        own = names(method)
        assert own[:2] == spa[:2] and own[2] != spa[2]
    for method in ("believed_states", "random_coordinates", "shuffled_states", "random_data", "expert_data"):
        assert not set(names(method)) & set(spa)
    for method in ("vanilla", "vanilla_grid", "state_estimation", "vanilla_wm", "online_world_model"):
        assert len(names(method)) == 1
    assert names("world_model_format") == spa  # what the demo does anyway


def test_every_seed_and_model_has_stages_of_its_own():
    assert not set(names("spa")) & set(names("spa", seed=1))
    assert not set(names("spa")) & set(names("spa", Path("r"), "demo", "model_path=other/model"))


def test_names_and_places_do_not_matter_and_validation_puzzles_do():
    same = ("trainer.experiment_name=x", "trainer.run_dir=y", "sft.trainer.keep=3", "trainer.logger=[]")
    assert names("spa", Path("r"), "demo", *same) == names("spa")
    assert not set(names("spa", Path("r"), "demo", "seed.val=1")) & set(names("spa"))


def test_world_models_learnt_elsewhere_play_here():
    made = training("from_SimpleSokoban", "demo", [], seed=0, label="t")
    assert made.world_model is not None
    assert made.world_model.es_manager.train.env_configs.tags == ("SimpleSokoban",)
    assert made.ppo.es_manager.train.env_configs.tags == ("FrozenLakeNoSlip",)


def test_unknown_methods_are_named():
    with pytest.raises(ConfigError, match="masked_states"):
        training("masked_state", "demo", [], seed=0, label="t")


def stages(tmp_path: Path) -> list[Stage]:
    wanted = [training(name, "demo", [], seed=0, label=name) for name in ("spa", "masked_states", "vanilla")]
    return distinct(wanted, tmp_path)


def test_every_stage_is_done_once_after_its_source(tmp_path):
    work, todo = Worker(), stages(tmp_path)
    assert len(todo) == 6
    run_grid(todo, devices=["cpu", "gpu"], pool=threads, work=work)
    assert sorted(work.order) == sorted(stage.folder for stage in todo)
    assert work.devices == {"cpu", "gpu"}
    run_grid(todo, devices=["cpu"], pool=threads, work=Worker(fails="-"))  # nothing is left to do


def test_a_failure_costs_what_depends_on_it_and_is_tried_again(tmp_path):
    todo = stages(tmp_path)
    broken = next(stage for stage in todo if stage.kind == "sft" and stage.label == "masked_states")
    with pytest.raises(TrainingError, match="2 of 6 stages") as caught:
        run_grid(todo, devices=["cpu"], pool=threads, work=Worker(fails=broken.folder))
    assert "out of luck" in str(caught.value) and "its source" in str(caught.value)
    assert [stage.kind for stage in todo if not stage.done] == ["sft", "ppo"]
    again = Worker()
    run_grid(todo, devices=["cpu"], pool=threads, work=again)
    assert len(again.order) == 2


def test_errors_of_ours_are_not_hidden(tmp_path):
    def work(stage: Stage, device: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_grid(stages(tmp_path)[:1], devices=["cpu"], pool=threads, work=work)


def test_results_are_found_after_the_grid_was_moved(tmp_path):
    folder = tmp_path / "new" / "sft-abc"
    (folder / "extra_1" / "global_step_3").mkdir(parents=True)
    (folder / "extra_1" / "global_step_3" / "complete.json").write_text('{"sha256": {}}')
    (folder / DONE).write_text(json.dumps({"result": "/elsewhere/sft-abc/extra_1/global_step_3"}))
    assert result_of(folder) == folder / "extra_1" / "global_step_3"


def test_configurations_of_stages_can_be_written_down():
    made = training("spa", "_10_sudoku", [], seed=2, label="t")
    assert made.ppo.seed.val == load_config("_10_sudoku").seed.val + 200_000
