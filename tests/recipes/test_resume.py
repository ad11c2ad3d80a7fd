"""A run goes on where it stopped, ends as if nothing had happened, and is not mixed with another one."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.runs import small_config

from spa.config.load import load_config
from spa.config.stages import StageName
from spa.errors import ConfigError, ModelError
from spa.launch.job import Job
from spa.recipes import pipeline, ppo, ppo_run, selfplay, setup, sft, sft_probes
from spa.recipes.ppo_models import Models
from spa.recipes.ppo_rollouts import GameRollouts
from spa.run.checkpoint import MARKER, latest_checkpoint, load_state, save_checkpoint
from spa.run.fingerprint import differences
from spa.run.hashing import fingerprint_of
from spa.run.manifest import MANIFEST, Manifest, refuse_other_work, result_of
from spa.run.signals import StopRequested
from spa.run.stage import Stage
from spa_integrations.ray_train import attempt

FOUR = (
    "trainer.total_training_steps=4",
    "trainer.save_freq=2",
    "trainer.test_freq=3",
    "trainer.max_actor_ckpt_to_keep=2",
)


def content(folder: Path) -> dict[str, str]:
    """Everything that must not depend on interruptions: records, episodes, data, sums of checkpoints."""
    found = {}
    for pattern in (
        "metrics.jsonl",
        "trajectories/*",
        "token_scores/*",
        "*.parquet",
        "summary.json",
        f"*/{MARKER}",
    ):
        for path in folder.glob(pattern):
            found[str(path.relative_to(folder))] = path.read_bytes().hex()
    return found


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def asking_at(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, call: int, *, after: bool = False
) -> None:
    """SIGTERM comes when (or right after) `target.name` is called for the `call`-th time."""
    real, calls = getattr(target, name), []

    def patched(*args, **kwargs):
        calls.append(1)
        if len(calls) == call and not after:
            ask_to_stop()
        value = real(*args, **kwargs)
        if len(calls) == call and after:
            ask_to_stop()
        return value

    monkeypatch.setattr(target, name, patched)


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory) -> Path:
    """An undisturbed run: data, fine-tuning, PPO from the base model."""
    folder = tmp_path_factory.mktemp("whole")
    cfg = small_config(base, folder, *FOUR)
    selfplay.run_self_play(cfg, directory=folder / "data")
    pipeline.run_sft_stage(cfg, directory=folder / "sft", data=folder / "data")
    ppo_run.run_ppo(cfg)
    return folder


@pytest.mark.parametrize(
    ("where", "call", "saved"),
    [
        # the fourth: validation, step 1, step 2, step 3 ... of the turns that are played
        ("rollout", 4, 3),
        ("update", 5, 3),  # of critic and policy each
        ("validation", 2, 3),
        ("first validation", 1, None),
        ("save", 1, 2),
    ],
)
def test_sigterm_in_ppo_saves_and_the_run_goes_on(
    base, whole, tmp_path, monkeypatch, where, call, saved
):
    cfg = small_config(base, tmp_path, *FOUR)
    with monkeypatch.context() as patch:
        target, name = {
            "rollout": (setup, "training_specs"),
            "update": (ppo, "update"),
            "validation": (GameRollouts, "validate"),
            "first validation": (GameRollouts, "validate"),
            "save": (Models, "snapshot"),
        }[where]
        asking_at(patch, target, name, call)
        with pytest.raises(StopRequested) as stop:
            ppo_run.run_ppo(cfg)
    newest = latest_checkpoint(tmp_path / "ppo")
    assert (newest.name if newest else None) == (f"global_step_{saved}" if saved else None)
    if where in ("rollout", "update", "validation"):
        assert stop.value.saved == str(newest)
    ppo_run.run_ppo(cfg)
    assert content(tmp_path / "ppo") == content(whole / "ppo")


def test_sigterm_in_fine_tuning(base, whole, tmp_path, monkeypatch):
    cfg = small_config(base, tmp_path)
    for target, name, call in (
        (sft, "update", 1),
        (sft_probes, "world_model_check", 1),
        (sft, "update", 1),
    ):
        with monkeypatch.context() as patch:
            asking_at(patch, target, name, call)
            with pytest.raises(StopRequested):
                pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=whole / "data")
    pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=whole / "data")
    assert content(tmp_path / "sft") == content(whole / "sft")


def test_sigterm_in_self_play(base, whole, tmp_path, monkeypatch):
    cfg = small_config(base, tmp_path)
    with monkeypatch.context() as patch:
        asking_at(patch, setup, "training_specs", 2)
        with pytest.raises(StopRequested):
            selfplay.run_self_play(cfg, directory=tmp_path / "data")
    played = []
    with monkeypatch.context() as patch:
        real = setup.training_specs
        patch.setattr(
            setup,
            "training_specs",
            lambda *args, **kw: played.append(kw["step"]) or real(*args, **kw),
        )
        selfplay.run_self_play(cfg, directory=tmp_path / "data")
    assert played == [1]  # the first batch was not played again
    assert content(tmp_path / "data") == content(whole / "data")


def unfinish(stage: Path) -> None:
    """As when the process was killed before its stage was marked as finished."""
    known = Manifest.read(stage)
    assert known is not None
    replace(known, result=None).write(stage)


@pytest.mark.parametrize("stage", ["sft", "ppo"])
def test_lines_that_a_checkpoint_counts_on_and_that_are_gone_are_named(
    base, whole, tmp_path, stage, caplog
):
    shutil.copytree(whole / stage, tmp_path / stage)
    unfinish(tmp_path / stage)
    path = tmp_path / stage / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"step":2,' not in line))
    cfg = small_config(base, tmp_path, *FOUR)
    if stage == "ppo":
        ppo_run.run_ppo(cfg)
    else:
        pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=whole / "data")
    assert f"{stage}/metrics.jsonl has lost lines since global_step_4 was saved" in caplog.text


def test_a_damaged_newest_checkpoint_costs_only_its_own_steps(base, whole, tmp_path):
    cfg = small_config(base, tmp_path, *FOUR)
    ppo_run.run_ppo(cfg)
    weights = tmp_path / "ppo" / "global_step_4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    ppo_run.run_ppo(cfg)
    assert content(tmp_path / "ppo") == content(whole / "ppo")
    assert (tmp_path / "ppo" / "previous" / "1" / "global_step_4").is_dir()


def test_what_a_killed_process_left_is_removed_when_the_stage_is_opened(base, whole, tmp_path):
    stage = Path(shutil.copytree(whole / "ppo", tmp_path / "ppo"))
    unfinish(stage)
    # killed between the rename of the newest and the removal of those beyond the limit
    for step in (1, 3):
        shutil.copytree(whole / "ppo" / "global_step_2", stage / f"global_step_{step}")
    mark = stage / "global_step_3" / MARKER
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"preemption": True}))
    shutil.copytree(stage / "global_step_4", stage / ".saving_global_step_4")
    (stage / "trajectories" / ".train-000004.jsonl.77.tmp").write_text("half")
    ppo_run.run_ppo(small_config(base, tmp_path, *FOUR))
    files = {
        str(path.relative_to(stage))
        for path in stage.rglob("*")
        if path.name not in (".lock", "log.txt")
    }
    expected = {str(path.relative_to(whole / "ppo")) for path in (whole / "ppo").rglob("*")}
    assert files == expected - {".lock", "log.txt"}


def test_a_run_may_become_longer(base, whole, tmp_path):
    cfg = small_config(
        base, tmp_path, *FOUR, "trainer.test_freq=-1", "trainer.val_before_train=false"
    )
    shorter = replace(cfg, trainer=replace(cfg.trainer, total_training_steps=2))
    stage = tmp_path / "ppo"
    assert [ppo_run.run_ppo(one).name for one in (shorter, cfg)] == [
        "global_step_2",
        "global_step_4",
    ]
    ours = (stage / "global_step_4" / "model.safetensors").read_bytes()
    assert ours == (whole / "ppo" / "global_step_4" / "model.safetensors").read_bytes()


def test_resume_path_begins_there_and_goes_on_from_its_own(base, whole, tmp_path):
    start = whole / "ppo" / "global_step_2"
    named = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={start}")
    cfg = small_config(base, tmp_path, *FOUR, *named)
    three = replace(cfg, trainer=replace(cfg.trainer, total_training_steps=3))
    ppo_run.run_ppo(three)
    own, known = tmp_path / "ppo", fingerprint_of(cfg, "ppo")
    earlier = shutil.copytree(own / "global_step_3", own / "global_step_1")
    for named, expected in ((start, own / "global_step_3"), (earlier, earlier)):
        with Stage(cfg, own, known, resume_path=str(named), again=True) as stage:
            assert stage.resume_from == expected
    assert (own / "previous" / "1" / "global_step_3").is_dir()  # rolled back
    # What was made since is kept when the same command is started again.
    since = shutil.copytree(own / "previous" / "1" / "global_step_3", own / "global_step_3")
    with Stage(cfg, own, known, resume_path=str(earlier), again=True) as stage:
        assert stage.resume_from == since
    shutil.rmtree(since)
    shutil.rmtree(earlier)
    with (
        pytest.raises(ModelError, match=r"training cannot resume from .* \(complete\.json"),
        Stage(cfg, own, known, resume_path=str(base), again=True),
    ):
        pass


@pytest.mark.parametrize(
    ("stage", "changes", "message"),
    [
        ("sft", (), "is a checkpoint of sft, so ppo cannot resume from it. Start from its weights"),
        ("ppo", ("trainer.total_training_steps=2",), "is at step 2 already, and training ends at"),
        ("ppo", ("actor_rollout_ref.model.lora_rank=4",), "has no LoRA adapters. Set actor_roll"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_cure(
    base, whole, tmp_path, stage, changes, message
):
    start = f"trainer.resume_from_path={whole / stage / 'global_step_2'}"
    cfg = small_config(base, tmp_path, *FOUR, "trainer.resume_mode=resume_path", start, *changes)
    with pytest.raises((ConfigError, ModelError), match=message):
        ppo_run.run_ppo(cfg)


def test_fine_tuning_that_has_nothing_left_to_do_is_refused(base, whole, tmp_path):
    start = f"sft.trainer.resume_path={whole / 'sft' / 'global_step_2'}"
    cfg = small_config(
        base,
        tmp_path,
        "trainer.resume_mode=resume_path",
        start,
        "trainer.resume_from_path=unused",
        "sft.trainer.total_training_steps=2",
    )
    with pytest.raises(ConfigError, match="is at step 2 already, and training ends at step 2"):
        pipeline.run_sft_stage(cfg, data=whole / "data")


def test_a_checkpoint_without_the_critic_that_is_needed_is_refused(base, tmp_path):
    one = ("trainer.total_training_steps=1", "trainer.val_before_train=false")
    without = "algorithm.adv_estimator=reinforce_plus_plus"
    start = ppo_run.run_ppo(small_config(base, tmp_path / "first", *one, without))
    with pytest.raises(ModelError, match="has no critic, which adv_estimator=gae needs"):
        ppo_run.load_models(small_config(base, tmp_path / "second", *FOUR), start)


def test_settings_that_are_new_count_after_resume_path(base, whole, tmp_path):
    asked = (
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.kl_coef=0.05",
        "actor_rollout_ref.actor.optim.weight_decay=0.3",
    )
    cfg = small_config(base, tmp_path, *FOUR, *asked)
    models, _ = ppo_run.load_models(cfg, whole / "ppo" / "global_step_2")
    assert models.kl.coef == 0.05
    assert {group["weight_decay"] for group in models.actor.optimizer.parts[0].param_groups} == {
        0.3
    }
    assert models.actor.optimizer.steps > 0


def test_the_coefficient_that_an_adaptive_penalty_has_reached_is_restored(base, tmp_path):
    cfg = small_config(
        base,
        tmp_path,
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.kl_coef=0.05",
        "algorithm.kl_ctrl.target_kl=0.02",
        "algorithm.kl_ctrl.horizon=100",
    )
    last = ppo_run.run_ppo(cfg)
    reached = load_state(last)["kl_coef"]
    models, _ = ppo_run.load_models(cfg, last)
    assert models.kl.coef == reached != 0.05


def test_ppo_that_began_at_a_checkpoint_of_another_run_is_not_taken_for_one_from_the_beginning(
    base, whole, tmp_path
):
    start = whole / "ppo" / "global_step_2"
    named = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={start}")
    three = (*FOUR, "trainer.total_training_steps=3", "trainer.val_before_train=false")
    last = ppo_run.run_ppo(small_config(base, tmp_path, *three, *named))
    assert (
        ppo_run.run_ppo(small_config(base, tmp_path, *three, *named))
        == last
        == tmp_path / "ppo" / "global_step_3"
    )
    with pytest.raises(ConfigError, match=r"trainer\.resume_from_path: content \w+ → null"):
        ppo_run.run_ppo(small_config(base, tmp_path, *three))
    longer = ppo_run.run_ppo(small_config(base, tmp_path, *FOUR, *named))
    assert longer == tmp_path / "ppo" / "global_step_4"
    assert longer.joinpath("model.safetensors").read_bytes() == (
        (whole / "ppo/global_step_4/model.safetensors").read_bytes()
    )


@pytest.mark.parametrize(
    ("stage", "key"), [("ppo", "trainer.resume_from_path"), ("sft", "sft.trainer.resume_path")]
)
def test_a_checkpoint_to_go_on_from_counts_by_its_content_if_it_is_another_runs(
    base, whole, tmp_path, stage, key
):
    mode, own = "trainer.resume_mode=resume_path", whole / stage / "global_step_2"
    plain = fingerprint_of(small_config(base, whole), stage)
    named = fingerprint_of(
        small_config(base, tmp_path / "run", mode, f"{key}={own}", NO_OTHER[stage]), stage
    )
    assert differences(plain, named).keys() == {key}
    moved = Path(shutil.copytree(own, tmp_path / "global_step_2"))
    assert (
        fingerprint_of(
            small_config(base, tmp_path / "run", mode, f"{key}={moved}", NO_OTHER[stage]), stage
        )
        == named
    )
    (moved / MARKER).write_text("another")
    other = fingerprint_of(
        small_config(base, tmp_path / "run", mode, f"{key}={moved}", NO_OTHER[stage]), stage
    )
    assert differences(named, other).keys() == {key}
    rolled_back = fingerprint_of(
        small_config(base, whole, mode, f"{key}={own}", NO_OTHER[stage]), stage
    )
    assert rolled_back.digest == plain.digest


NO_OTHER = {"ppo": "sft.trainer.resume_path=null", "sft": "trainer.resume_from_path=unused"}


def test_disable_begins_anew_and_loses_nothing(base, tmp_path):
    short = (
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
    )
    ppo_run.run_ppo(small_config(base, tmp_path, *short, "seed.train=5"))
    again = ppo_run.run_ppo(
        small_config(base, tmp_path, *short, "seed.train=6", "trainer.resume_mode=disable")
    )
    assert again == tmp_path / "ppo" / "global_step_1"
    kept = sorted(
        str(path.relative_to(tmp_path / "ppo"))
        for path in (tmp_path / "ppo" / "previous").glob("*/*")
    )
    assert {
        "previous/1/global_step_1",
        "previous/1/metrics.jsonl",
        "previous/1/manifest.json",
    } <= set(kept)


def test_ppo_from_an_sft_checkpoint_begins_anew_too(base, tmp_path):
    short = (
        "trainer.total_training_steps=1",
        "sft.trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "generate.policy=random",
    )
    pipeline.run(small_config(base, tmp_path, *short))
    changed = small_config(
        base,
        tmp_path,
        *short,
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "trainer.resume_mode=disable",
    )
    assert pipeline.run(changed, generate_data=False) == tmp_path / "ppo" / "global_step_1"
    assert (tmp_path / "ppo/previous/1/global_step_1").is_dir()
    assert not (tmp_path / "sft/previous").exists()


def test_an_attempt_after_the_first_goes_on_with_what_the_first_began_anew(tmp_path, monkeypatch):
    before, anew = (
        ("generate.policy=random", "seed.train=5"),
        ("generate.policy=random", "trainer.resume_mode=disable"),
    )
    selfplay.run_self_play(small_config("none", tmp_path, *before))
    cfg, note = small_config("none", tmp_path, *anew), tmp_path / "ray" / "begun"
    with monkeypatch.context() as once, pytest.raises(StopRequested):
        asking_at(once, Stage, "commit", 1, after=True)
        attempt(cfg, Job(stage="generate"), note)
    first = (tmp_path / "data" / "trajectories" / "generate-000001.jsonl").stat().st_mtime_ns
    assert attempt(cfg, Job(stage="generate"), note) == tmp_path / "data"
    assert (
        tmp_path / "data" / "trajectories" / "generate-000001.jsonl"
    ).stat().st_mtime_ns == first
    assert [path.name for path in (tmp_path / "data" / "previous").iterdir()] == ["1"]


def test_ppo_does_not_go_on_from_another_model_and_sft_not_on_other_data(base, whole, tmp_path):
    cfg = small_config(base, whole, *FOUR)
    with pytest.raises(ConfigError, match=r"model_path \(weights\): content \w+ → content"):
        ppo_run.run_ppo(
            cfg, model_path=str(whole / "sft" / "global_step_4"), directory=whole / "ppo"
        )
    other = small_config(base, tmp_path, "seed.train=4242")
    selfplay.run_self_play(other, directory=tmp_path / "data")
    with pytest.raises(ConfigError, match=r"seed\.train: 10000 → 4242"):
        pipeline.run_sft_stage(
            small_config(base, whole, *FOUR), directory=whole / "sft", data=tmp_path / "data"
        )


BEGUN = ("_3_frozen_lake", ["trainer.run_dir=runs/x"])


def begun(folder: Path, stage: StageName, name: str, overrides: list[str]) -> None:
    """The folder of a finished stage."""
    Manifest(fingerprint=fingerprint_of(load_config(name, overrides), stage), result=".").write(
        folder
    )


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("ppo", "algorithm.gamma=0.5"),
        ("ppo", "seed.train=1"),
        ("ppo", "actor_rollout_ref.actor.optim.lr=1e-3"),
        ("ppo", "custom_envs.FrozenLake.env_config.size=5"),
        ("ppo", "trainer.validation_steps=7"),
        ("sft", "sft.optim.lr=1"),
        ("sft", "sft.trainer.total_epochs=9"),
        ("selfplay", "model_path=other"),
        ("selfplay", "generate.num_batches=9"),
        ("selfplay", "state_text=grid"),
    ],
)
def test_a_change_that_results_depend_on_is_refused_and_named(tmp_path, stage, change):
    name, overrides = BEGUN
    begun(tmp_path, stage, name, overrides)
    key = change.partition("=")[0]
    changed = fingerprint_of(load_config(name, [*overrides, change]), stage)
    with pytest.raises(
        ConfigError, match=rf"another configuration[\s\S]*{key}[\s\S]* → [\s\S]*spa compare CONFIG"
    ):
        refuse_other_work([(tmp_path, changed)])


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        (
            "ppo",
            ["trainer.total_training_steps=5000", "trainer.save_freq=1", "trainer.test_freq=7"],
        ),
        (
            "ppo",
            [
                "trainer.logger=[]",
                "trainer.run_dir=runs/y",
                "trainer.device=cpu",
                "trainer.experiment_name=z",
            ],
        ),
        (
            "ppo",
            [
                "micro_batch_size_per_gpu=2",
                "generate.num_batches=3",
                "sft.optim.lr=1",
                "gate.enable=true",
            ],
        ),
        ("ppo", ["custom_envs.SimpleSokoban.env_config.dim_x=9", "es_manager.env_workers=2"]),
        (
            "sft",
            [
                "algorithm.gamma=0.5",
                "sft.trainer.save_freq=1",
                "actor_rollout_ref.rollout.temperature=0.5",
            ],
        ),
        ("selfplay", ["sft.optim.lr=1", "actor_rollout_ref.rollout.rollout_filter_ratio=0.5"]),
    ],
)
def test_other_changes_are_welcome(tmp_path, stage, changes):
    name, overrides = BEGUN
    begun(tmp_path, stage, name, overrides)
    refuse_other_work(
        [(tmp_path, fingerprint_of(load_config(name, [*overrides, *changes]), stage))]
    )


def test_what_only_rounds_differently_is_said(tmp_path, caplog):
    name, overrides = BEGUN
    begun(tmp_path, "ppo", name, overrides)
    changed = fingerprint_of(
        load_config(name, [*overrides, "actor_rollout_ref.model.packing=true"]), "ppo"
    )
    for _ in range(2):
        refuse_other_work(
            [(tmp_path, replace(changed, environment={**changed.environment, "threads": 99}))]
        )
    assert [
        "actor_rollout_ref.model.packing: null → true" in message for message in caplog.messages
    ] == [True]
    assert "threads: " in caplog.text and "the last digits of results differ" in caplog.text


@pytest.mark.parametrize("mark", ["", "{", "[]", '{"seconds": 1}'])
def test_a_torn_mark_means_that_the_stage_is_not_finished(tmp_path, mark):
    cfg = small_config("none", tmp_path)
    known = fingerprint_of(cfg, "ppo")
    Manifest(fingerprint=known, result=".").write(tmp_path)
    (tmp_path / MANIFEST).write_text(mark)
    with Stage(cfg, tmp_path, known) as stage:
        assert stage.result is None
        save_checkpoint(tmp_path, 1, model=Empty(), tokenizer=Empty())
        stage.finish()
    assert json.loads((tmp_path / MANIFEST).read_text())["result"] == "global_step_1"


def test_a_stage_whose_result_is_gone_or_damaged_is_done_again(tmp_path, caplog):
    folder, cfg = tmp_path / "stage", small_config("none", tmp_path)
    known = fingerprint_of(cfg, "sft")

    def work() -> Path:
        with Stage(cfg, folder, known) as stage:
            assert stage.result is None
            notes = {"fingerprint": known.to_json()}
            save_checkpoint(folder, 3, model=Empty(), tokenizer=Empty(), state=notes)
            return stage.finish()

    result = work()
    assert result == folder / "global_step_3" == result_of(folder)
    for harm in (
        lambda: shutil.rmtree(result),
        (result / MARKER).unlink,
        lambda: (result / MARKER).write_text("torn"),
    ):
        harm()
        assert result_of(folder) is None
        assert work() == result_of(folder) == result
    assert (
        "the result is missing" in caplog.text
        and "complete.json is missing or unreadable" in caplog.text
    )


class Empty:
    """A model and tokenizer without anything to save."""

    def save_pretrained(self, folder: Path, **settings: object) -> None:
        (folder / "config.json").write_text("{}")
