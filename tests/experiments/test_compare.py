"""Methods side by side: what they share, what they differ in, and what the summary says."""

import json
import math
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.grids import in_this_process, run_small
from helpers.runs import SMALL

from spa import cli
from spa.config.fields import flatten
from spa.config.schema import TrainerConfig, to_plain
from spa.errors import ConfigError, SpaError, TrainingError
from spa.evaluation.passk import outcomes
from spa.formats.base import CONTROLS
from spa.methods import Method
from spa.run.manifest import Manifest
from spa.worldmodel.sft_files import read_examples
from spa_bench.paper.verdicts import mean_curve
from spa_bench.q_learning.baseline import comparison_lines, q_learning
from spa_report.reading import open_run
from spa_sweeps.budget import budget, learnt_tokens
from spa_sweeps.compare import (
    changed_selfplay,
    continued,
    methods_compared,
    self_play_batches,
    sibling_folder,
)
from spa_sweeps.grid import Plan, TrainingRun, run_grid
from spa_sweeps.methods import (
    METHODS,
    baseline_config,
    configured,
    controls_of,
    method,
    of_comparison,
)
from spa_sweeps.results import (
    SeedResult,
    difference,
    episodes_played,
    mean_over_seeds,
    read_curve,
    read_training,
)
from spa_sweeps.tables import print_table, sentences

STEPS = (
    "trainer.total_training_steps=1",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.eval_episodes=4",
    "generate.num_batches=1",
)


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def overrides(base: Path | str, root: Path, *more: str) -> list[str]:
    return [*SMALL, f"model_path={base}", f"trainer.run_dir={root}", *STEPS, *more]


@pytest.fixture(scope="module")
def compared(base, tmp_path_factory) -> tuple[Path, dict]:
    """SPA, plain PPO, two controls and the format alone, in this process, and their summary."""
    root = tmp_path_factory.mktemp("compare") / "run"
    made = methods_compared("base", overrides(base, root), names=[*CONTROLS, "vanilla_format"])
    return root, json.loads(json.dumps(run_small(made)))


def test_q_learning_takes_as_many_actions_as_the_trainings(base, compared):
    root, _ = compared
    made = methods_compared("base", overrides(base, root), names=[*CONTROLS, "vanilla_format"])
    (line,) = comparison_lines(made.trainings[made.reference])
    played = re.fullmatch(
        r"Tabular Q-learning \(seed 0\) solves ([\d.]+)% of held-out puzzles after ([\d,]+) actions in training "
        r"puzzles\. After ([\d,]+) tries of each .*",
        line,
    )
    assert played and 0 <= float(played[1]) <= 100
    steps = max(used.environment_steps for used in budget(made.trainings["spa"][0]).values())
    assert played[2] == f"{round(steps):,}"
    again = comparison_lines(made.trainings[made.reference])
    assert again == [line]


def test_every_arm_plays_as_many_episodes_and_the_same_puzzles(compared):
    root, summary = compared
    assert set(summary["methods"]) == {
        "vanilla",
        "vanilla_wm",
        "vanilla_format",
        "spa",
        "spa_shuffled",
    }
    assert {arm: played["ppo"] for arm, played in summary["episodes"].items()} == dict.fromkeys(
        summary["methods"], 12
    )
    assert {arm: played["self_play"] for arm, played in summary["episodes"].items()} == {
        "vanilla": 0,
        "vanilla_wm": 0,
        "vanilla_format": 12,
        "spa": 12,
        "spa_shuffled": 12,
    }
    seen = {}
    for arm in summary["methods"]:
        for step in (0, 1):
            path = root / arm / "ppo" / "trajectories" / f"val-{step:06d}.jsonl"
            seen[arm, step] = [
                (row["puzzle_hash"], row["turns"][0]["state"]) for row in lines_of(path)
            ]
        # Arms without self-play go on until they have played as many episodes in all.
        steps = [row["step"] for row in lines_of(root / arm / "ppo" / "metrics.jsonl")]
        assert steps == ([0, 1, 2] if arm in ("vanilla", "vanilla_wm") else [0, 1])
    assert len({json.dumps(value) for value in seen.values()}) == 1


def test_the_arms_differ_in_what_they_are_meant_to_differ_in(compared):
    root, summary = compared
    modes = {
        arm: lines_of(root / arm / "ppo" / "trajectories" / "val-000000.jsonl")[0]["mode"]
        for arm in summary["methods"]
    }
    known = dict.fromkeys(("vanilla_wm", "spa", "spa_shuffled"), "add_worldmodel")
    assert modes == {"vanilla": "base", "vanilla_format": "base", **known}
    true = (root / "spa" / "data" / "wm_train.parquet").read_bytes()
    for arm in ("spa_shuffled", "vanilla_format"):  # other rows of the same self-play
        assert (root / arm / "data" / "wm_train.parquet").read_bytes() != true
        assert not (root / arm / "data" / "trajectories").exists()


def test_the_format_alone_gets_as_many_steps_of_the_same_conversations(compared):
    from spa.worldmodel.sft_files import read_examples

    root, _ = compared
    taught, true = (
        read_examples(root / arm / "data" / "wm_train.parquet") for arm in ("vanilla_format", "spa")
    )
    assert [(example.episode_id, example.turn) for example in taught] == [
        (example.episode_id, example.turn) for example in true
    ]
    played = lines_of(root / "vanilla_format" / "ppo" / "trajectories" / "val-000000.jsonl")[0][
        "messages"
    ]
    for example, other in zip(taught, true, strict=True):
        text = json.dumps([*example.prompt, example.response])
        assert "<observation>" not in text and "<prediction>" not in text
        assert example.response.partition("<answer>")[2] == other.response.partition("<answer>")[2]
        assert example.prompt[0] == played[0] and "your thoughts" in example.prompt[1]["content"]
        assert example.state in example.prompt[-1]["content"] and len(example.prompt) == len(
            other.prompt
        )
    steps = [
        len(lines_of(root / arm / "sft" / "metrics.jsonl")) for arm in ("vanilla_format", "spa")
    ]
    assert steps == [2, 2]


def test_responses_without_states_have_no_world_model_to_tell_of(base, compared):
    root, _ = compared
    made = methods_compared("base", overrides(base, root), names=["vanilla_format"])
    found = {name: read_training(made.trainings[name][0], 0) for name in ("vanilla_format", "spa")}
    without = found["vanilla_format"]
    assert without is not None and not without.world_model
    assert found["spa"] is not None and found["spa"].world_model
    said = {name: (root / name / "sft" / "log.txt").read_text() for name in found}
    assert re.search(r"sft step \d+: entropy", said["vanilla_format"])
    assert re.search(r"sft step \d+: observation .*\(copy baseline: ", said["spa"])


def test_the_summary_holds_what_its_readers_need(compared):
    root, summary = compared
    for moments in summary["methods"].values():
        assert {"before", "after"} <= moments.keys()
        assert all(0 <= moment["pass@1"] <= 1 for moment in moments.values())
    assert {"observation_exact", "prediction_exact"} <= summary["world_model"].keys()
    assert {"vanilla", "vanilla_same_total_episodes", "vanilla_wm", "spa_shuffled"} <= summary[
        "difference"
    ].keys()
    for gap in summary["difference"].values():
        assert gap["low"] <= gap["mean"] <= gap["high"]
        assert math.isfinite(gap["mean"])
    assert summary["seconds"]["total"] > summary["seconds"]["spa/sft"] > 0
    assert summary["peak_memory_gb"] > 0 and summary["reference"] == "spa"
    assert {"python", "torch", "transformers"} <= summary["versions"].keys()
    assert summary == json.loads((root / "summary.json").read_text())


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("trajectories/val-000001.jsonl", "torn"),
        ("trajectories/val-000001.jsonl", "gone"),
        ("metrics.jsonl", "torn"),
    ],
)
def test_results_that_are_not_those_of_the_stage_are_not_counted(compared, base, name, harm):
    root, _ = compared
    path = root / "spa" / "ppo" / name
    whole = path.read_text()
    try:
        path.write_text(whole[: len(whole) // 2]) if harm == "torn" else path.unlink()
        made = methods_compared("base", overrides(base, root), names=[*CONTROLS, "vanilla_format"])
        with pytest.raises(SpaError, match=rf"(?s){path}.*Restore the file"):
            run_small(made)
    finally:
        path.write_text(whole)


def test_the_summary_has_accuracy_before_and_after_ppo(compared):
    root, summary = compared
    lines = {line["step"]: line for line in lines_of(root / "spa" / "ppo" / "metrics.jsonl")}
    expected = {
        f"{name}_{moment}": lines[step][f"val-env/FrozenLakeNoSlip/wm/{name}"]
        for name in ("prediction_em", "obs_exact", "format_rate")
        for moment, step in (("before", 0), ("after", 1))
    }
    assert expected == pytest.approx(
        {name: summary["world_model"][name] for name in expected}, abs=1e-4
    )


@pytest.mark.parametrize("content", ["", '{"steps": 4', "[]"])
def test_what_is_kept_beside_a_training_and_damaged_counts_as_missing(compared, base, content):
    root, _ = compared
    training = methods_compared("base", overrides(base, root), names=["spa"]).trainings["spa"][0]
    kept = training.folder.parent / "q_learning.json"
    kept.write_text(content)
    try:
        assert q_learning(training, 4, learn=False) is None
    finally:
        kept.unlink()


def test_a_finished_comparison_is_not_touched_by_the_same_command(compared, base):
    root, summary = compared
    files = {
        path: path.stat().st_mtime_ns
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    more = ("trainer.experiment_name=renamed", "trainer.save_freq=7")
    made = methods_compared(
        "base", overrides(base, root, *more), names=[*CONTROLS, "vanilla_format"]
    )
    assert made.grid.missing == [] and run_small(made) == summary
    again = {
        path: path.stat().st_mtime_ns
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert again == files


def checksums(root: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_changed_settings_are_refused_by_name_and_nothing_is_written(compared, base):
    root, _ = compared
    before = checksums(root)
    made = methods_compared("base", overrides(base, root, "actor_rollout_ref.actor.optim.lr=0.5"))
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.actor\.optim\.lr: 0.0003 → 0.5"):
        run_small(made)
    assert checksums(root) == before


def test_a_run_in_the_folder_of_a_comparison_is_its_recipe(compared, base, capsys):
    root, _ = compared
    before = checksums(root)
    assert cli.main(["run", "base", *overrides(base, root)]) == 0
    assert (
        capsys.readouterr().out == f"The result is in {root / 'spa' / 'ppo' / 'global_step_1'}.\n"
    )
    assert checksums(root) == before


def test_a_run_whose_stages_lie_elsewhere_is_not_that_of_the_comparison(compared, base, tmp_path):
    root, _ = compared
    for key in (
        "generate.output_dir",
        "sft.trainer.default_local_dir",
        "trainer.default_local_dir",
    ):
        cfg = configured("base", (*overrides(base, root), f"{key}={tmp_path}"))
        assert of_comparison(cfg) == cfg
    assert of_comparison(configured("base", tuple(overrides(base, root)))).trainer.run_dir == str(
        root / "spa"
    )


def test_methods_that_learn_no_states_have_no_control():
    assert METHODS["spa"].has_control and METHODS["planned"].has_control
    for name in ("vanilla", "vanilla_format"):
        with pytest.raises(ConfigError, match=f"method {name} is not fine-tuned on states"):
            method(f"{name}_shuffled")


def test_a_comparison_links_to_what_a_run_has_done_and_refuses_other_settings(base, tmp_path):
    root = tmp_path / "run"
    assert cli.main(["run", "base", *overrides(base, root, "--quiet")]) == 0
    made = methods_compared("base", overrides(base, root))
    assert [str(task.folder.relative_to(root)) for task in made.grid.missing] == ["vanilla/ppo"]
    assert {
        str(place.relative_to(root)): str(where.relative_to(root))
        for place, where in made.grid.links.items()
    } == {f"spa/{name}": name for name in ("data", "sft", "ppo")}
    summary = run_small(made)
    assert (root / "spa" / "data").is_symlink()
    own = Manifest.read(root / "ppo")
    assert own and summary["seconds"]["spa/ppo"] == round(own.seconds, 1) > 0
    before = checksums(root)
    made = methods_compared("base", overrides(base, root, "generate.sampling.temperature=0.5"))
    with pytest.raises(ConfigError, match=r"generate\.sampling\.temperature: 1\.0 → 0\.5"):
        run_small(made)
    assert checksums(root) == before


def test_a_data_file_that_is_lost_before_it_was_learnt_is_made_again(base, tmp_path):
    asked = overrides(base, tmp_path, "generate.policy=random", "compare.arms=[spa]")
    made = methods_compared("base", asked)
    data = made.trainings["spa"][0].folder / "data"
    run_grid(Plan(tasks=made.grid.tasks[:1]), devices=["cpu"], pool=in_this_process)
    whole = (data / "wm_train.parquet").read_bytes()
    (data / "wm_train.parquet").unlink()
    learnt = Plan(tasks=methods_compared("base", asked).grid.tasks[:2])
    run_grid(learnt, devices=["cpu"], pool=in_this_process)
    assert (data / "wm_train.parquet").read_bytes() == whole
    (data / "wm_train.parquet").unlink()
    assert [task.stage for task in methods_compared("base", asked).grid.missing] == ["ppo"]


def test_a_data_file_that_was_changed_is_not_learnt_from(base, tmp_path):
    asked = overrides(base, tmp_path, "generate.policy=random", "compare.arms=[spa]")
    made = methods_compared("base", asked)
    run_grid(Plan(tasks=made.grid.tasks[:1]), devices=["cpu"], pool=in_this_process)
    (made.trainings["spa"][0].folder / "data" / "wm_train.parquet").write_bytes(b"PAR1")
    assert [task.stage for task in made.grid.missing] == ["selfplay", "sft", "ppo"]
    with pytest.raises(TrainingError, match="bytes, but the stage wrote"):
        run_small(methods_compared("base", asked))


def test_an_ablation_uses_what_the_comparison_has_done(compared, base):
    root, _ = compared
    before = checksums(root)
    made = methods_compared("base", overrides(base, root), only=["spa", "masked_states"])
    assert [(task.folder.parent.name, task.stage) for task in made.grid.missing] == [
        ("masked_states", "sft"),
        ("masked_states", "ppo"),
    ]
    summary = run_small(made)
    assert set(summary["methods"]) == {"spa", "masked_states"} and set(summary["difference"]) == {
        "masked_states"
    }
    assert (made.root / "spa" / "ppo").resolve() == (root / "spa" / "ppo").resolve()
    assert checksums(root) == before


def test_rounds_of_self_play_are_compared_and_all_of_them_counted(base, tmp_path):
    rounds = ("generate.rounds=2", "generate.imagine.n=2", "generate.policy=random")
    made = methods_compared(
        "base", overrides(base, tmp_path, *rounds, "compare.arms=[vanilla_format, spa]")
    )
    summary = run_small(made)
    assert {arm: played["self_play"] for arm, played in summary["episodes"].items()} == {
        "spa": 24,
        "vanilla_format": 12,
    }
    spa, plain = (made.trainings[name][0] for name in ("spa", "vanilla_format"))
    folders = ("round_1/data", "data")
    first, second = (
        json.loads((spa.folder / name / "summary.json").read_text()) for name in folders
    )
    own = [part["played"]["episodes"] * part["played"]["num_actions"] for part in (first, second)]
    planned = second["imagination"]["tokens_per_episode"] * second["played"]["episodes"]
    assert budget(spa)[0] == pytest.approx((sum(own), planned, 24))
    assert budget(plain)[0] == pytest.approx((own[0], 0.0, 12))
    end = spa.ppo.trainer.total_training_steps
    assert summary["sampled_tokens"]["spa"] == {"after": round(budget(spa)[end].tokens)}
    steps = {
        name: len(lines_of(spa.folder / name / "metrics.jsonl")) for name in ("round_1/sft", "sft")
    }
    assert sum(steps.values()) == len(lines_of(plain.folder / "sft/metrics.jsonl")) == 4
    learnt = [lines_of(spa.folder / name / "metrics.jsonl") for name in steps]
    assert learnt_tokens(spa) == round(
        sum(line["train/tokens"] for part in learnt for line in part)
    )
    assert [part["round"] for part in json.loads((spa.folder / "sft/rounds.json").read_text())] == [
        1,
        2,
    ]
    assert (
        not made.grid.missing
        and not methods_compared(
            "base", overrides(base, tmp_path, *rounds, "compare.arms=[vanilla_format, spa]")
        ).grid.missing
    )


def test_a_control_in_rounds_has_the_examples_of_all_of_them(base, tmp_path):
    rounds = (
        "generate.rounds=2",
        "generate.policy=random",
        "compare.arms=[spa, spa_shuffled]",
    )
    made = methods_compared("base", overrides(base, tmp_path, *rounds))
    run_small(made)

    def told(arm: str, folder: str) -> dict:
        return json.loads((tmp_path / arm / folder / "summary.json").read_text())

    early, control = told("spa", "round_1/data"), told("spa_shuffled", "round_1/data")
    assert (early["examples_train"], early["examples_val"]) == (
        control["examples_train"],
        control["examples_val"],
    )
    assert "episodes_in" not in early and control["episodes_in"] == "../../../spa/round_1/data"
    found = read_examples(tmp_path / "spa_shuffled/data/wm_train.parquet")
    assert {example.episode_id.split("/")[1] for example in found} == {"0", "1"} and all(
        example.extra["shuffled"] for example in found
    )
    shutil.rmtree(tmp_path / "spa_shuffled/round_1/sft/global_step_2")
    shutil.rmtree(tmp_path / "spa_shuffled/data")
    again = methods_compared("base", overrides(base, tmp_path, *rounds))
    missing = [task.folder.relative_to(tmp_path).as_posix() for task in again.grid.missing]
    # what cannot be gone on from is done anew
    assert missing == ["spa_shuffled/round_1/sft", "spa_shuffled/data"]
    run_small(again)
    assert told("spa_shuffled", "data")["examples_train"] == len(found)
    assert [stage.arm for stage in open_run(tmp_path).stages if stage.name == "sft"] == [
        "spa",
        "spa_shuffled",
    ]


def test_seeds_differ_in_everything_that_is_drawn_and_in_nothing_else(tmp_path):
    made = methods_compared("base", overrides("builtin:tiny", tmp_path), seeds=3)
    configs = [training.ppo for training in made.trainings["spa"]]
    assert [training.folder for training in made.trainings["spa"]] == [
        tmp_path / f"seed_{n}" / "spa" for n in range(3)
    ]
    assert (
        len({config.seed.train for config in configs})
        == len({config.seed.val for config in configs})
        == 3
    )
    assert len({config.sft.trainer.seed for config in configs}) == 3
    one, other = (
        configured("base", tuple(overrides("builtin:tiny", tmp_path)), seed) for seed in (0, 2)
    )
    plain, changed = (flatten(to_plain(cfg)) for cfg in (one, other))
    assert {key for key in plain if plain[key] != changed[key]} == {
        "seed.train",
        "seed.val",
        "sft.trainer.seed",
    }


def test_methods_without_self_play_go_on_as_long_as_it_took(tmp_path):
    def longer(*settings: str) -> TrainerConfig:
        cfg = configured("base", tuple(overrides("builtin:tiny", tmp_path, *settings)))
        plain = TrainingRun(folder=tmp_path, world_model=None, ppo=cfg)
        return continued(plain, self_play_batches(cfg)).ppo.trainer

    more = longer("generate.num_batches=7")
    assert (more.total_training_steps, more.also_test_at) == (8, 1)
    rounds = longer("generate.num_batches=7", "generate.rounds=3", "generate.later_batches=2")
    assert rounds.total_training_steps == 1 + 7 + 2 + 2


@pytest.mark.parametrize(
    ("preset", "reference", "more"),
    [
        ("tiny", "spa", 8),
        ("tiny", "planned", 16),
        ("demo", "vanilla_format", 8),  # examples in base format have one round
        ("smol_frozen_lake", "search_simulator", 0),
        ("smol_frozen_lake", "search_model", 16),  # single moves, then searches without play
    ],
)
def test_a_baseline_goes_on_as_long_as_the_reference_plays(preset, reference, more, tmp_path):
    made = methods_compared(preset, [f"trainer.run_dir={tmp_path}"], only=[reference, "vanilla"])
    spa, vanilla = (made.trainings[name][0].ppo.trainer for name in (reference, "vanilla"))
    assert vanilla.total_training_steps == spa.total_training_steps + more
    assert (vanilla.also_test_at is None) == (more == 0)


def test_controls_and_baselines_follow_the_response_format(caplog):
    search, states = (configured(f"smol_frozen_lake{kind}", ()) for kind in ("", "_states"))
    assert controls_of(search) == ("search_dealt", "search_other_puzzle")
    assert controls_of(states) == ("vanilla_wm", "spa_shuffled")
    baseline_config("smol_frozen_lake_states", [], "vanilla")
    assert not caplog.messages
    baseline_config("smol_frozen_lake", [], "vanilla")
    assert "The baseline of this configuration is random_format" in caplog.text
    for name in ("random_format", "random_states"):
        generate = configured("smol_frozen_lake", METHODS[name].overrides).generate
        assert (generate.policy, generate.rounds) == ("random", 1)
        assert generate.search.dynamics == "simulator"


def test_two_methods_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="two methods are called vanilla"):
        methods_compared("tiny", [], only=["vanilla", f"{__name__}:vanilla"], root=tmp_path)


vanilla = Method(description="plain PPO, once more", overrides=("ctx_manager.mode=base",))


def test_self_play_that_starts_again_is_announced_with_the_changed_setting(base, compared):
    root, _ = compared
    fewer = overrides(base, root, "es_manager.val.env_groups=1")
    (line,) = changed_selfplay(methods_compared("base", fewer, only=["spa"]))
    assert "self-play runs again" in line and "es_manager.val.env_groups: 2 → 1" in line
    assert not changed_selfplay(methods_compared("base", overrides(base, root), only=["spa"]))


def test_a_baseline_with_as_many_sampled_tokens_has_more_ppo_steps(base, tmp_path, capsys):
    made = methods_compared(
        "base", overrides(base, tmp_path / "run"), only=["vanilla", "vanilla_x3", "spa"]
    )
    trainers = {name: ones[0].ppo.trainer for name, ones in made.trainings.items()}
    steps = {name: trainer.total_training_steps for name, trainer in trainers.items()}
    # vanilla goes on to as many episodes in all; the other has its steps and no more
    assert (steps["spa"], steps["vanilla_x3"], steps["vanilla"]) == (1, 3, 2)
    assert trainers["vanilla_x3"].also_test_at is None
    assert episodes_played(made.trainings["vanilla_x3"][0]) == {"ppo": 36, "self_play": 0}
    assert method("spa_x2").steps == 2 and method("spa_x2").world_model == method("spa").world_model
    for name in ("vanilla_x0", "nothing_x2"):
        with pytest.raises(ConfigError, match="no method"):
            method(name)


def test_the_line_of_who_trained_longer_counts_what_it_played(tmp_path, capsys):
    asked = (
        f"trainer.run_dir={tmp_path}",
        "model_path=builtin:tiny",
        "compare.arms=[vanilla, spa, planned]",
    )
    made = methods_compared("tiny", asked)
    played = {name: episodes_played(trainings[0]) for name, trainings in made.trainings.items()}
    assert played["vanilla"] == {"ppo": 15_360, "self_play": 0, "ppo_longer": 17_408}
    assert sum(played["planned"].values()) == 19_456
    rate = {"pass@1": 0.5}
    moments = {"before": rate, "after": rate}
    summary = {
        "name": "x",
        "reference": "spa",
        "methods": {**dict.fromkeys(played, moments), "vanilla": {**moments, "after_total": rate}},
        "episodes": played,
        "descriptions": {},
        "difference": {},
        "seconds": {"total": 1.0},
        "peak_memory_gb": 1,
    }
    print_table(summary)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "trained longer" in line]
    assert line.count("17,408") == 2 and "50.0 → 50.0" in line
    del played["vanilla"]["ppo_longer"]  # as older summaries are
    print_table(summary)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "trained longer" in line]
    assert line.count("19,456") == 2


def test_baselines_change_the_format_and_the_state_text_alone():
    chosen = {
        name: METHODS[name].overrides for name in ("vanilla", "vanilla_grid", "state_estimation")
    }
    assert chosen == {
        "vanilla": ("ctx_manager.mode=base",),
        "vanilla_grid": ("ctx_manager.mode=base", "state_text=grid"),
        "state_estimation": ("ctx_manager.mode=base", "state_text=grid_and_coords"),
    }


def test_who_has_not_learnt_from_states_replays_none():
    preset = "smol_frozen_lake_states"
    assert configured(preset, ()).actor_rollout_ref.actor.replay.examples > 0
    for name in ("vanilla", "vanilla_wm", "vanilla_format"):
        assert (
            configured(preset, METHODS[name].changes[1]).actor_rollout_ref.actor.replay.examples
            == 0
        )
    assert baseline_config(preset, [], "vanilla").actor_rollout_ref.actor.replay.examples == 0
    asked = ["actor_rollout_ref.actor.replay.examples=4"]
    assert baseline_config(preset, asked, "vanilla_wm").actor_rollout_ref.actor.replay.examples == 4


def test_what_a_baseline_plays_is_what_it_says_whatever_the_originals_keys_say(tmp_path):
    (tmp_path / "old.yaml").write_text(
        "defaults: [tiny]\nrender_mode: text\nenable_response_mask: true\n"
    )
    preset = str(tmp_path / "old.yaml")
    assert baseline_config(preset, [], "state_estimation").state_text == "grid_and_coords"
    changed = configured(preset, METHODS["answer_only"].changes[1])
    assert changed.actor_rollout_ref.actor.loss_mask == "answer_only"
    with pytest.raises(
        ConfigError, match="state_text=grid contradicts the baseline state_estimation"
    ):
        baseline_config("tiny", ["render_mode=text"], "state_estimation")


def test_episodes_that_a_fault_ended_are_no_attempts():
    episodes = [
        {"tag": "T", "puzzle_seed": 1, "puzzle_hash": "a", "success": won, "stop": stop}
        for won, stop in ((1, "done"), (0, "error"))
    ]
    assert outcomes(episodes) == {"T/1/a": (1, 1)}


def test_puzzles_of_one_seed_in_other_settings_are_not_paired():
    one, other = ({f"T/1/{content}": (8, 2)} for content in "ab")
    results = [
        SeedResult(seed=0, moments={"after": found}, curve={}, world_model={})
        for found in (one, other)
    ]
    assert (
        difference(results[:1], results[:1]) is not None
        and difference(results[:1], results[1:]) is None
    )


def test_equal_seeds_have_an_interval_over_puzzles_and_the_sentence_says_so():
    won = {"a": (8, 4), "b": (8, 2)}
    lost = {"a": (8, 2), "b": (8, 0)}
    ours, theirs = (
        [
            SeedResult(seed=seed, moments={"after": found}, curve={}, world_model={})
            for seed in range(3)
        ]
        for found in (won, lost)
    )
    gap = difference(ours, theirs)
    assert gap is not None and gap.over == "puzzles"
    summary = {
        "reference": "spa",
        "seeds": [{}] * 3,
        "difference": {"vanilla": asdict(gap)},
        "seconds": {"total": 1},
        "peak_memory_gb": 1,
    }
    line = sentences(summary)[0]
    assert "over 6 puzzles" in line and "does not include the variation" in line


def test_a_curve_has_no_pass_at_8_of_fewer_attempts(tmp_path):
    lines = [
        {"step": 0, "val-env/T/pass@1": 0.5},
        {"step": 2, "val-env/T/pass@1": 0.5, "val-env/T/pass@8": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = read_curve(tmp_path / "metrics.jsonl")
    assert curve == {0: (0.5, None), 2: (0.5, 1.0)}
    rows = mean_curve([SeedResult(seed=0, moments={}, curve=curve, world_model={})])
    assert [row.get("pass@8") for row in rows] == [None, 1.0]


def test_a_mean_over_seeds_is_over_all_of_them_or_left_out():
    seeds = [{"after": {"pass@1": 0.2, "pass@8": 0.9}}, {"after": {"pass@1": 0.4}}]
    assert mean_over_seeds(seeds) == mean_over_seeds(seeds[::-1]) == {"after": {"pass@1": 0.3}}


@pytest.mark.parametrize("home", [".", ".."])
def test_a_sweep_of_the_current_folder_has_a_folder_next_to_it(home: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = configured("tiny", (f"trainer.run_dir={home}",))
    assert sibling_folder(cfg, "try-lr") == Path(f"{Path(home).resolve()}-try-lr")
