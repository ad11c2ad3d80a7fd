"""The grid: which stages are shared, in which order they are done, and what a failure costs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.grids import in_this_process
from helpers.stages import mark_finished

from spa.errors import ConfigError, ModelError, TrainingError
from spa.run.manifest import MANIFEST, Manifest, result_of
from spa_sweeps.compare import Arm, comparison
from spa_sweeps.grid import (
    Plan,
    StageJob,
    do_task,
    finished_stages,
    free_devices,
    plan_grid,
    run_grid,
    tasks_of,
)
from spa_sweeps.methods import METHODS, method

TINY = "model_path=builtin:tiny"


def digests(name: str, *overrides: str, preset: str = "tiny") -> list[str]:
    """The identities of a method's stages."""
    return [task.digest for task in tasks_of(training(name, *overrides, preset=preset))]


def training(
    name: str, *overrides: str, preset: str = "tiny", root: Path = Path("runs/x"), seed: int = 0
):
    arms = [Arm(name=name, method=method(name))]
    made = comparison(preset, [TINY, *overrides], arms, root=root, reference=name, seeds=seed + 1)
    return made.trainings[name][seed]


class Worker:
    """Marks stages as done, and remembers the order."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.order, self.devices = fails, [], set()
        self.lock = threading.Lock()

    def __call__(self, task: StageJob, device: str) -> tuple[int, int]:
        with self.lock:
            self.order.append(task.folder)
            self.devices.add(device)
        if task.source is not None:
            assert result_of(task.source) is not None
        if self.fails and self.fails in str(task.folder):
            raise ModelError("out of luck")
        finish(task)
        return 1, len(self.order)


def finish(task: StageJob) -> None:
    """What a stage leaves that the grid looks at."""
    (task.folder / "trajectories").mkdir(parents=True)
    trainer = task.config.trainer
    for step in {trainer.total_training_steps, trainer.also_test_at or 0}:
        (task.folder / "trajectories" / f"val-{step:06d}.jsonl").touch()
    mark_finished(task.folder, task.fingerprint)


@pytest.mark.parametrize("preset", ["tiny", "_2_sokoban"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_with_the_presets(name, preset):
    assert [task.stage for task in tasks_of(training(name, preset=preset))][-1] == "ppo"


def test_groups_of_ppo_alone_have_nothing_to_do_with_those_of_self_play():
    own = "generate.group_size=8"
    assert digests("group_size_4", own)[:2] == digests("spa", own)[:2]


@pytest.mark.parametrize(
    ("preset", "more", "size", "groups"),
    [
        ("tiny", (), 4, (64,)),
        ("tiny", (), 16, (16,)),
        ("smol", (), 4, (8,)),
        ("smol", (), 16, (2,)),
        ("smol", ("es_manager.train.env_groups=6",), 16, (3,)),
        (
            "tiny",
            ("es_manager.train.env_configs={tags: [FrozenLake, Sudoku], n_groups: [8, 24]}",),
            16,
            (4, 12),
        ),
    ],
)
def test_other_group_sizes_keep_the_episodes_of_a_step(preset, more, size, groups):
    usual = training("spa", *more, preset=preset).ppo.es_manager.train
    own = training(f"group_size_{size}", *more, preset=preset).ppo.es_manager.train
    assert own.group_size == size and own.env_groups == sum(groups)
    assert own.env_configs.n_groups == groups
    assert own.env_groups * own.group_size == usual.env_groups * usual.group_size


def test_a_group_size_that_does_not_divide_the_episodes_of_a_step_is_refused():
    with pytest.raises(ConfigError, match=r"plays 40 episodes of .*groups of 16"):
        training("group_size_16", "es_manager.train.env_groups=5", preset="smol")


def test_planning_that_cannot_be_done_is_refused_before_any_stage(tmp_path):
    asks = ("generate.imagine.n=2", "es_manager.train.env_configs.tags=[Sudoku]")
    plan = plan_grid([training("planned", *asks, root=tmp_path / "x")])
    with pytest.raises(ConfigError, match="Sudoku has no state values"):
        run_grid(plan, devices=["cpu"], pool=pytest.fail, work=pytest.fail)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "x").exists()


def test_methods_share_what_they_do_not_change():
    spa = digests("spa")
    for name in ("masked_states", "states_only", "sft_epochs_1", "sft_epochs_5"):
        own = digests(name)
        assert own[0] == spa[0] and own[1] != spa[1] and own[2] != spa[2]
    for name in ("group_size_4", "no_filter", "answer_only", "base_format"):
        own = digests(name)
        assert own[:2] == spa[:2] and own[2] != spa[2]
    for name in (
        "predicted_states",
        "random_coordinates",
        "shuffled_states",
        "vanilla_format",
        "expert_data",
    ):
        assert not set(digests(name)) & set(spa)
    for name in ("vanilla", "vanilla_grid", "state_estimation", "vanilla_wm", "online_world_model"):
        assert len(digests(name)) == 1
    assert digests("world_model_format") == spa  # what tiny does anyway


def test_methods_that_only_write_other_examples_share_the_self_play():
    names = ("spa", "shuffled_states", "predicted_states", "vanilla_format", "random_data")
    plan = plan_grid([training(name, root=Path("runs/x")) for name in names])
    played = {
        task.folder.parent.name: task.episodes for task in plan.tasks if task.stage == "selfplay"
    }
    source = Path("runs/x/spa/data")
    assert played == {
        "spa": None,
        "shuffled_states": source,
        "predicted_states": source,
        "vanilla_format": source,
        "random_data": None,
    }


def test_every_seed_has_stages_of_its_own():
    first, second = (tasks_of(training("spa", seed=seed)) for seed in (0, 1))
    assert not {task.digest for task in first} & {task.digest for task in second}


def test_names_and_places_do_not_matter_and_validation_puzzles_do():
    same = (
        "trainer.experiment_name=x",
        "trainer.run_dir=y",
        "sft.trainer.keep=3",
        "trainer.logger=[]",
    )
    assert digests("spa", *same) == digests("spa")
    assert not set(digests("spa", "seed.val=1")) & set(digests("spa"))


def test_world_models_learnt_elsewhere_play_here():
    made = training("from_SimpleSokoban")
    assert made.world_model is not None
    assert made.world_model.es_manager.train.env_configs.tags == ("SimpleSokoban",)
    assert made.ppo.es_manager.train.env_configs.tags == ("FrozenLakeNoSlip",)


def test_rounds_of_self_play_are_stages_of_their_own_and_the_first_is_shared():
    made = training("planned")
    folders = [task.folder.relative_to(made.folder).as_posix() for task in tasks_of(made)]
    assert folders == ["round_1/data", "round_1/sft", "data", "sft", "ppo"]
    alone, more = digests("spa"), digests("planned")
    assert more[:2] == alone[:2] and not set(more[2:]) & set(alone)
    plan = plan_grid([training(name) for name in ("spa", "planned")])
    links = {place.as_posix(): target.as_posix() for place, target in plan.links.items()}
    assert links == {
        f"runs/x/planned/round_1/{part}": f"runs/x/spa/{part}" for part in ("data", "sft")
    }


def test_rounds_of_a_bench_are_found_where_they_lie(tmp_path):
    for task in tasks_of(training("planned", root=tmp_path / "board/seed_0")):
        finish(task)
    found = [
        folder.relative_to(tmp_path / "board/seed_0/planned").as_posix()
        for folder, _ in finished_stages(tmp_path)
    ]
    assert sorted(found) == ["data", "ppo", "round_1/data", "round_1/sft", "sft"]


def test_what_was_planned_before_its_source_was_linked_to_an_older_record_stays_done(tmp_path):
    made = training("spa", root=tmp_path)
    data, sft, _ = tasks_of(made)
    finish(sft)  # as planned, before there was anything in the place of its data set
    finish(data)
    mark = json.loads((data.folder / MANIFEST).read_text())
    del mark["fingerprint"]["settings"]["generate.epsilon"]  # which was not there yet
    (data.folder / MANIFEST).write_text(json.dumps(mark))
    assert [task.done for task in tasks_of(made)][:2] == [True, True]


def test_what_learns_no_states_has_one_round_that_is_as_long_as_all():
    made = training("vanilla_format", "generate.rounds=3", "generate.imagine.n=4")
    data, sft, _ = tasks_of(made)
    (alone, _, _) = tasks_of(training("vanilla_format"))
    assert data.digest == alone.digest
    steps = sft.config.sft.trainer.total_training_steps
    assert steps == 3 * training("spa").ppo.sft.trainer.total_training_steps  # pyright: ignore[reportOperatorIssue]


def test_unknown_methods_are_named():
    with pytest.raises(ConfigError, match="masked_states"):
        method("masked_state")


def grid(tmp_path: Path) -> Plan:
    return plan_grid(
        [training(name, root=tmp_path) for name in ("spa", "masked_states", "vanilla")], [tmp_path]
    )


def test_every_stage_is_done_once_after_its_source(tmp_path):
    work, todo = Worker(), grid(tmp_path)
    assert len(todo.tasks) == 6 and todo.links == {
        tmp_path / "masked_states" / "data": tmp_path / "spa" / "data"
    }
    peaks = run_grid(todo, devices=["cpu", "gpu"], pool=in_this_process, work=work)
    assert sorted(work.order) == sorted(task.folder for task in todo.tasks)
    assert work.devices == {"cpu", "gpu"} and peaks == {1: 6}
    # nothing is left to do
    run_grid(grid(tmp_path), devices=["cpu"], pool=in_this_process, work=Worker(fails="x"))
    link = tmp_path / "masked_states" / "data"
    assert (
        link.is_symlink()
        and (link / MANIFEST).is_file()
        and not Path(link.readlink()).is_absolute()
    )


def test_a_failure_costs_what_depends_on_it_and_is_tried_again(tmp_path):
    todo = grid(tmp_path)
    broken = tmp_path / "masked_states" / "sft"
    with pytest.raises(TrainingError, match="2 of 6 stages") as caught:
        run_grid(todo, devices=["cpu"], pool=in_this_process, work=Worker(fails=str(broken)))
    assert "out of luck" in str(caught.value) and "skipped, because an earlier stage failed" in str(
        caught.value
    )
    assert [task.folder.name for task in grid(tmp_path).missing] == ["sft", "ppo"]
    again = Worker()
    run_grid(grid(tmp_path), devices=["cpu"], pool=in_this_process, work=again)
    assert len(again.order) == 2


def lose_result(folder: Path) -> None:
    """What a finished stage made is gone, its mark is not."""
    known = Manifest.read(folder)
    assert known is not None
    replace(known, result="global_step_2").write(folder)


def test_lost_checkpoints_are_made_again_as_far_back_as_they_are_needed(tmp_path):
    *world_model, ppo = tasks_of(training("planned", root=tmp_path))
    for task in world_model:
        finish(task)
        if task.stage == "sft":
            lose_result(task.folder)
    plan = plan_grid([training("planned", root=tmp_path)])
    folders = [task.folder.relative_to(tmp_path / "planned").as_posix() for task in plan.missing]
    assert folders == ["round_1/sft", "sft", "ppo"]
    finish(ppo)
    assert plan.missing == []  # what nobody needs any more may be removed


def test_a_lost_data_set_is_made_again_for_what_reads_it(tmp_path):
    asks = (
        "actor_rollout_ref.actor.replay.examples=4",
        "actor_rollout_ref.actor.replay.source=data",
    )
    spa, replay = (
        training("spa", *more, root=tmp_path / name)
        for name, more in (("plain", ()), ("replay", asks))
    )
    for made in (spa, replay):
        data, sft, ppo = tasks_of(made)
        finish(data)
        lose_result(data.folder)
        assert [task.stage for task in plan_grid([made]).missing] == ["selfplay", "sft", "ppo"]
        finish(sft)
        plan = plan_grid([made])
        expected = ["selfplay", "ppo"] if made is replay else ["ppo"]
        assert [task.stage for task in plan.missing] == expected
        finish(ppo)
        assert plan.missing == []


def test_a_link_is_refused_like_any_work_and_nothing_is_written_through_it(tmp_path):
    run_grid(grid(tmp_path), devices=["cpu"], pool=in_this_process, work=Worker())
    changes, link = (
        ("generate.num_batches=9", "trainer.resume_mode=disable"),
        tmp_path / "masked_states" / "data",
    )
    refused, anew = (
        plan_grid([training("masked_states", *changes[:count], root=tmp_path)], [tmp_path])
        for count in (1, 2)
    )
    for stage in ("sft", "ppo"):
        (tmp_path / "masked_states" / stage).rename(tmp_path / f"old_{stage}")
    with pytest.raises(ConfigError, match=r"generate\.num_batches: 8 → 9"):
        run_grid(refused, devices=["cpu"], pool=in_this_process, work=Worker())
    assert link.is_symlink()
    run_grid(anew, devices=["cpu"], pool=in_this_process, work=Worker())
    assert not link.is_symlink() and grid(tmp_path).tasks[0].done


def test_what_only_rounds_differently_is_said_of_linked_work_too(tmp_path, caplog):
    run_grid(grid(tmp_path), devices=["cpu"], pool=in_this_process, work=Worker())
    key = "critic.model.enable_gradient_checkpointing"
    names = ("spa", "masked_states", "vanilla")
    other = plan_grid([training(name, f"{key}=true", root=tmp_path) for name in names], [tmp_path])
    run_grid(other, devices=["cpu"], pool=in_this_process, work=Worker(fails="x"))
    said = [message for message in caplog.messages if f"{key}: false → true" in message]
    assert sorted(message.partition(" was made with")[0] for message in said) == [
        str(tmp_path / name / "ppo") for name in sorted(names)
    ]


def test_errors_of_ours_are_not_hidden(tmp_path):
    def work(task: StageJob, device: str) -> tuple[int, int]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_grid(grid(tmp_path), devices=["cpu"], pool=in_this_process, work=work)


def killed_with_data(task: StageJob, device: str) -> tuple[int, int]:
    """A stage whose process is killed while it makes data for one of the trainings; the others take longer."""
    if task.stage == "selfplay":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    finish(task)
    return os.getpid(), 1


def test_a_worker_that_is_killed_costs_its_stage_and_the_others_go_on(tmp_path):
    alone = [
        training(name, root=tmp_path) for name in ("vanilla", "vanilla_wm", "vanilla_grid", "spa")
    ]
    plan = plan_grid(alone)
    with pytest.raises(TrainingError, match="3 of 6 stages failed") as caught:
        run_grid(plan, devices=["cpu", "cpu"], work=killed_with_data)
    assert "spa, data: the worker process was killed" in str(caught.value)
    assert [task.folder.parent.name for task in plan.missing] == ["spa"] * 3


def test_when_every_worker_was_killed_the_rest_is_named_and_nothing_waits(tmp_path):
    plan = plan_grid([training(name, root=tmp_path) for name in ("spa", "vanilla")])
    with pytest.raises(TrainingError, match="vanilla, ppo: not started, because every worker"):
        run_grid(plan, devices=["cpu"], work=killed_with_data)


def test_each_process_has_a_device_of_its_own(monkeypatch):
    assert free_devices(2) == ["cpu", "cpu"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert free_devices(2) == free_devices(2, "cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    assert free_devices(2, "cpu") == ["cpu", "cpu"] and free_devices(2, "cuda:1") == ["cuda:1"]
    assert free_devices(1, per_gpu=2) == ["cuda:0", "cuda:1", "cuda:2"] * 2
    assert (
        free_devices(1, "cuda:1", per_gpu=3) == ["cuda:1"] * 3
        and free_devices(2, "cpu", per_gpu=3) == ["cpu"] * 2
    )
    with pytest.raises(ConfigError, match="--parallel is 0"):
        free_devices(0)


def test_a_grid_runs_on_the_device_of_its_configuration(monkeypatch):
    on_cpu = plan_grid([training("vanilla", "trainer.device=cpu")])
    two_each = plan_grid([training("vanilla", "compare.per_gpu=2")])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert on_cpu.devices(2) == ["cpu", "cpu"]
    assert two_each.devices(1) == ["cuda:0", "cuda:1"] * 2


@pytest.mark.parametrize("gpu", [None, 80e9])
def test_a_stage_of_a_grid_has_the_token_budgets_of_its_device(gpu, monkeypatch, tmp_path):
    [job] = tasks_of(training("vanilla", preset="base", root=tmp_path))
    if gpu:
        monkeypatch.setattr(
            "torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=gpu)
        )
    seen = []
    monkeypatch.setattr("spa.recipes.ppo_run.run_ppo", lambda cfg, **_: seen.append(cfg))
    monkeypatch.setattr(StageJob, "unread", lambda *_: [])
    do_task(job, "cuda" if gpu else "cpu")
    actor = seen[0].actor_rollout_ref.actor
    assert job.config.actor_rollout_ref.actor.use_dynamic_bsz == "auto"
    assert actor.use_dynamic_bsz is bool(gpu)
    assert seen[0].sft.data.max_token_len_per_gpu == (16384 if gpu else None)


def test_results_are_found_after_the_grid_was_moved(tmp_path):
    folder = tmp_path / "new" / "sft-abc"
    (folder / "extra_1" / "global_step_3").mkdir(parents=True)
    (folder / "extra_1" / "global_step_3" / "complete.json").write_text('{"sha256": {}}')
    mark_finished(folder, result="extra_1/global_step_3")
    assert result_of(folder) == folder / "extra_1" / "global_step_3"


WORKER = """
import os, signal, time
from spa_sweeps.grid import own_process
def work():
    return os.getpid()
if __name__ == "__main__":
    print(own_process(None).submit(work).result(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_ends_with_the_process_that_made_it(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(WORKER)
    parent = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL
    worker = Path("/proc") / parent.stdout.strip()
    for _ in range(100):
        if not worker.exists() or "\nState:\tZ" in (worker / "status").read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"the worker {worker.name} is still there")
