"""A run goes on where it stopped, ends as if nothing had happened, and is not mixed with another one."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.runs import small_config

from spa.config.load import load_config
from spa.config.schema import Config
from spa.config.stages import Stage
from spa.errors import ConfigError, ModelError
from spa.identity import Identity, differences, identity_of
from spa.launch.job import Job
from spa.launch.ray_train import attempt
from spa.recipes import generate, ppo, setup, sft
from spa.recipes.resume import resume_point
from spa.recipes.stage import DONE, IDENTITY, check_identity, finished, mark_done, record_identity, recorded_identity
from spa.signals import StopRequested
from spa.training.checkpoint import MARKER, latest_checkpoint, load_note, save_checkpoint

FOUR = (
    "trainer.total_training_steps=4",
    "trainer.save_freq=2",
    "trainer.test_freq=3",
    "trainer.max_actor_ckpt_to_keep=2",
)


def content(folder: Path) -> dict[str, str]:
    """Everything that must not depend on interruptions: records, episodes, data, sums of checkpoints."""
    found = {}
    for pattern in ("metrics.jsonl", "trajectories/*", "token_scores/*", "*.parquet", "summary.json", f"*/{MARKER}"):
        for path in folder.glob(pattern):
            found[str(path.relative_to(folder))] = path.read_bytes().hex()
    return found


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def asking_at(monkeypatch: pytest.MonkeyPatch, target: object, name: str, call: int, *, after: bool = False) -> None:
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
    generate.main(cfg, directory=folder / "data")
    sft.main(cfg, directory=folder / "sft", data=folder / "data")
    ppo.main(cfg)
    return folder


@pytest.mark.parametrize(
    ("where", "call", "saved"),
    [
        ("rollout", 4, 3),  # the fourth: validation, step 1, step 2, step 3 ... of the turns that are played
        ("update", 5, 3),  # of critic and policy each
        ("validation", 2, 3),
        ("first validation", 1, None),
        ("save", 1, 2),
    ],
)
def test_sigterm_in_ppo_saves_and_the_run_goes_on(base, whole, tmp_path, monkeypatch, where, call, saved):
    cfg = small_config(base, tmp_path, *FOUR)
    with monkeypatch.context() as patch:
        target, name = {
            "rollout": (setup, "training_specs"),
            "update": (ppo, "update"),
            "validation": (ppo, "validate"),
            "first validation": (ppo, "validate"),
            "save": (ppo, "save_models"),
        }[where]
        asking_at(patch, target, name, call)
        with pytest.raises(StopRequested) as stop:
            ppo.main(cfg)
    newest = latest_checkpoint(tmp_path / "ppo")
    assert (newest.name if newest else None) == (f"global_step_{saved}" if saved else None)
    if where in ("rollout", "update", "validation"):
        assert stop.value.saved == str(newest)
        assert newest is not None and (load_note(newest, "unlogged") is not None) is (where != "rollout")
    ppo.main(cfg)
    assert content(tmp_path / "ppo") == content(whole / "ppo")


def test_sigterm_in_fine_tuning(base, whole, tmp_path, monkeypatch):
    cfg = small_config(base, tmp_path)
    for target, name, call in ((sft, "update", 1), (sft, "world_model_check", 1), (sft, "update", 1)):
        with monkeypatch.context() as patch:
            asking_at(patch, target, name, call)
            with pytest.raises(StopRequested):
                sft.main(cfg, directory=tmp_path / "sft", data=whole / "data")
    sft.main(cfg, directory=tmp_path / "sft", data=whole / "data")
    assert content(tmp_path / "sft") == content(whole / "sft")


def test_sigterm_in_self_play(base, whole, tmp_path, monkeypatch):
    cfg = small_config(base, tmp_path)
    with monkeypatch.context() as patch:
        asking_at(patch, setup, "training_specs", 2)
        with pytest.raises(StopRequested):
            generate.main(cfg, directory=tmp_path / "data")
    played = []
    with monkeypatch.context() as patch:
        real = setup.training_specs
        patch.setattr(setup, "training_specs", lambda *args, **kw: played.append(kw["step"]) or real(*args, **kw))
        generate.main(cfg, directory=tmp_path / "data")
    assert played == [1]  # the first batch was not played again
    assert content(tmp_path / "data") == content(whole / "data")


def test_a_batch_whose_episodes_are_damaged_is_played_again(base, whole, tmp_path, monkeypatch):
    cfg = small_config(base, tmp_path)
    generate.main(cfg, directory=tmp_path / "data")
    path = tmp_path / "data" / "trajectories" / "generate-000002.jsonl"
    path.write_bytes(path.read_bytes()[:-100])
    (tmp_path / "data" / DONE).unlink()  # as after a crash
    generate.main(cfg, directory=tmp_path / "data")
    assert content(tmp_path / "data") == content(whole / "data")


@pytest.mark.parametrize("harm", ["broken", "missing", "gone", "torn", "again"])
@pytest.mark.parametrize("stage", ["sft", "ppo"])
def test_lines_that_a_checkpoint_counts_on_are_named_and_restored(base, whole, tmp_path, stage, harm, caplog):
    shutil.copytree(whole / stage, tmp_path / stage)
    path = tmp_path / stage / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "broken": [lines[0][:-9] + "x" + lines[0][-8:], *lines[1:]],
        "missing": lines[1:],
        "gone": [],
        "torn": [*lines[:-1], lines[-1][:20]],
        "again": [*lines, lines[-1]],
    }[harm]
    path.write_text("".join(changed)) if changed else path.unlink()
    cfg = small_config(base, tmp_path, *FOUR)
    if stage == "ppo":
        ppo.main(cfg)
    else:
        sft.main(cfg, directory=tmp_path / "sft", data=whole / "data")
    assert content(tmp_path / stage) == content(whole / stage)
    said = [record.getMessage() for record in caplog.records if "damaged or lost" in record.getMessage()]
    assert len(said) == (0 if harm == "again" else 1)


def test_a_damaged_newest_checkpoint_costs_only_its_own_steps(base, whole, tmp_path):
    cfg = small_config(base, tmp_path, *FOUR)
    ppo.main(cfg)
    weights = tmp_path / "ppo" / "global_step_4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    ppo.main(cfg)
    assert content(tmp_path / "ppo") == content(whole / "ppo")
    assert (tmp_path / "ppo" / "previous" / "1" / "global_step_4").is_dir()


def test_an_identity_in_a_damaged_checkpoint_is_not_believed(base, whole, tmp_path, caplog):
    shutil.copytree(whole / "ppo", tmp_path / "ppo")
    (tmp_path / "ppo" / DONE).unlink()  # as when it was killed before the end
    state = tmp_path / "ppo" / "global_step_4" / "state" / "state.json"
    state.write_text(state.read_text().replace("actor_rollout_ref.actor.optim.lr", "actor_rollout_rdf.actor.optim.lr"))
    ppo.main(small_config(base, tmp_path, *FOUR))
    assert content(tmp_path / "ppo") == content(whole / "ppo")
    assert "global_step_4 is not usable (state/state.json has changed since it was written)" in caplog.text


@pytest.mark.parametrize("mark", [DONE, IDENTITY])
def test_an_identity_with_a_changed_bit_is_no_identity(tmp_path, mark):
    identity = identity_of(Config(), "selfplay")
    (tmp_path / "x.parquet").touch()
    mark_done(tmp_path, identity, tmp_path, since=time.monotonic())
    record_identity(tmp_path, identity, kept=False)
    other = DONE if mark == IDENTITY else IDENTITY
    (tmp_path / mark).write_text((tmp_path / mark).read_text().replace('"generate.', '"generatd.'))
    assert recorded_identity(tmp_path) == Identity.from_json(json.loads(json.dumps(identity.to_json())))
    (tmp_path / other).unlink()
    with pytest.raises(ConfigError, match="its record: missing or damaged"):
        check_identity([(tmp_path, identity)])


def test_a_run_may_become_longer(base, whole, tmp_path):
    cfg = small_config(base, tmp_path, *FOUR, "trainer.test_freq=-1", "trainer.val_before_train=false")
    shorter = replace(cfg, trainer=replace(cfg.trainer, total_training_steps=2))
    stage = tmp_path / "ppo"
    assert [ppo.main(one).name for one in (shorter, cfg)] == ["global_step_2", "global_step_4"]
    ours = (stage / "global_step_4" / "model.safetensors").read_bytes()
    assert ours == (whole / "ppo" / "global_step_4" / "model.safetensors").read_bytes()


def test_resume_path_begins_there_and_goes_on_from_its_own(base, whole, tmp_path):
    start = whole / "ppo" / "global_step_2"
    named = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={start}")
    cfg = small_config(base, tmp_path, *FOUR, *named)
    three = replace(cfg, trainer=replace(cfg.trainer, total_training_steps=3))
    ppo.main(three)
    identity = identity_of(cfg, "ppo")
    assert resume_point(identity, tmp_path / "ppo", named=str(start)) == tmp_path / "ppo" / "global_step_3"
    other = str(whole / "ppo" / "global_step_4")
    assert resume_point(identity, tmp_path / "ppo", named=other) == Path(other)
    with pytest.raises(ModelError, match=r"training cannot resume from here \(complete\.json"):
        resume_point(identity, tmp_path / "ppo", named=str(base))


def test_ppo_that_began_at_a_checkpoint_of_another_run_is_not_taken_for_one_from_the_beginning(base, whole, tmp_path):
    start = whole / "ppo" / "global_step_2"
    named = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={start}")
    three = (*FOUR, "trainer.total_training_steps=3", "trainer.val_before_train=false")
    last = ppo.main(small_config(base, tmp_path, *three, *named))
    assert ppo.main(small_config(base, tmp_path, *three, *named)) == last == tmp_path / "ppo" / "global_step_3"
    with pytest.raises(ConfigError, match=r"trainer\.resume_from_path: content \w+ → null"):
        ppo.main(small_config(base, tmp_path, *three))
    longer = ppo.main(small_config(base, tmp_path, *FOUR, *named))
    assert longer == tmp_path / "ppo" / "global_step_4"
    assert longer.joinpath("model.safetensors").read_bytes() == (
        (whole / "ppo/global_step_4/model.safetensors").read_bytes()
    )


@pytest.mark.parametrize(("stage", "key"), [("ppo", "trainer.resume_from_path"), ("sft", "sft.trainer.resume_path")])
def test_a_checkpoint_to_go_on_from_counts_by_its_content_if_it_is_another_runs(base, whole, tmp_path, stage, key):
    mode, own = "trainer.resume_mode=resume_path", whole / stage / "global_step_2"
    plain = identity_of(small_config(base, whole), stage)
    named = identity_of(small_config(base, tmp_path / "run", mode, f"{key}={own}", NO_OTHER[stage]), stage)
    assert differences(plain, named).keys() == {key}
    moved = Path(shutil.copytree(own, tmp_path / "global_step_2"))
    assert identity_of(small_config(base, tmp_path / "run", mode, f"{key}={moved}", NO_OTHER[stage]), stage) == named
    (moved / MARKER).write_text("another")
    other = identity_of(small_config(base, tmp_path / "run", mode, f"{key}={moved}", NO_OTHER[stage]), stage)
    assert differences(named, other).keys() == {key}
    rolled_back = identity_of(small_config(base, whole, mode, f"{key}={own}", NO_OTHER[stage]), stage)
    assert rolled_back.digest == plain.digest


NO_OTHER = {"ppo": "sft.trainer.resume_path=null", "sft": "trainer.resume_from_path=unused"}


def test_disable_begins_anew_and_loses_nothing(base, tmp_path):
    short = ("trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.test_freq=-1")
    ppo.main(small_config(base, tmp_path, *short, "seed.train=5"))
    again = ppo.main(small_config(base, tmp_path, *short, "seed.train=6", "trainer.resume_mode=disable"))
    assert again == tmp_path / "ppo" / "global_step_1"
    kept = sorted(str(path.relative_to(tmp_path / "ppo")) for path in (tmp_path / "ppo" / "previous").glob("*/*"))
    assert {"previous/1/global_step_1", "previous/1/metrics.jsonl", "previous/1/identity.json"} <= set(kept)


def test_an_attempt_after_the_first_goes_on_with_what_the_first_began_anew(tmp_path, monkeypatch):
    before, anew = ("generate.policy=random", "seed.train=5"), ("generate.policy=random", "trainer.resume_mode=disable")
    generate.main(small_config("none", tmp_path, *before))
    cfg, note = small_config("none", tmp_path, *anew), tmp_path / "ray" / "begun"
    with monkeypatch.context() as once, pytest.raises(StopRequested):
        asking_at(once, generate, "note_played", 1, after=True)
        attempt(cfg, Job(stage="generate"), note)
    first = (tmp_path / "data" / "trajectories" / "generate-000001.jsonl").stat().st_mtime_ns
    assert attempt(cfg, Job(stage="generate"), note) == tmp_path / "data"
    assert (tmp_path / "data" / "trajectories" / "generate-000001.jsonl").stat().st_mtime_ns == first
    assert [path.name for path in (tmp_path / "data" / "previous").iterdir()] == ["1"]


def test_ppo_does_not_go_on_from_another_model_and_sft_not_on_other_data(base, whole, tmp_path):
    cfg = small_config(base, whole, *FOUR)
    with pytest.raises(ConfigError, match=r"model_path \(weights\): content \w+ → content"):
        ppo.main(cfg, model_path=str(whole / "sft" / "global_step_4"), directory=whole / "ppo")
    other = small_config(base, tmp_path, "seed.train=4242")
    generate.main(other, directory=tmp_path / "data")
    with pytest.raises(ConfigError, match="the stage before it: "):
        sft.main(small_config(base, whole, *FOUR), directory=whole / "sft", data=tmp_path / "data")


BEGUN = ("_3_frozen_lake", ["trainer.run_dir=runs/x"])


def begun(folder: Path, stage: Stage, name: str, overrides: list[str]) -> None:
    """A folder in which a stage has left its record and a mark."""
    identity = identity_of(load_config(name, overrides), stage)
    record_identity(folder, identity, kept=False)
    (folder / DONE).write_text(json.dumps({"result": ".", "identity": identity.to_json()}))


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
    changed = identity_of(load_config(name, [*overrides, change]), stage)
    with pytest.raises(ConfigError, match=rf"another configuration[\s\S]*{key}[\s\S]* → [\s\S]*spa try CONFIG"):
        check_identity([(tmp_path, changed)])


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("ppo", ["trainer.total_training_steps=5000", "trainer.save_freq=1", "trainer.test_freq=7"]),
        ("ppo", ["trainer.logger=[]", "trainer.run_dir=runs/y", "trainer.device=cpu", "trainer.experiment_name=z"]),
        ("ppo", ["micro_batch_size_per_gpu=2", "generate.num_batches=3", "sft.optim.lr=1", "gate.enable=true"]),
        ("ppo", ["custom_envs.SimpleSokoban.env_config.dim_x=9", "es_manager.env_workers=2"]),
        ("sft", ["algorithm.gamma=0.5", "sft.trainer.save_freq=1", "actor_rollout_ref.rollout.temperature=0.5"]),
        ("selfplay", ["sft.optim.lr=1", "actor_rollout_ref.rollout.rollout_filter_ratio=0.5"]),
    ],
)
def test_other_changes_are_welcome(tmp_path, stage, changes):
    name, overrides = BEGUN
    begun(tmp_path, stage, name, overrides)
    check_identity([(tmp_path, identity_of(load_config(name, [*overrides, *changes]), stage))])


def test_what_only_rounds_differently_is_said(tmp_path, caplog):
    name, overrides = BEGUN
    begun(tmp_path, "ppo", name, overrides)
    changed = identity_of(load_config(name, [*overrides, "actor_rollout_ref.model.packing=true"]), "ppo")
    for _ in range(2):
        check_identity([(tmp_path, replace(changed, environment={**changed.environment, "threads": 99}))])
    assert ["actor_rollout_ref.model.packing: null → true" in message for message in caplog.messages] == [True]
    assert "threads: " in caplog.text and "the last digits differ" in caplog.text


@pytest.mark.parametrize("mark", ["", "{", "[]", '{"seconds": 1}'])
def test_a_torn_mark_means_that_the_stage_is_not_done(tmp_path, mark):
    identity = identity_of(Config(), "ppo")
    record_identity(tmp_path, identity, kept=False)
    (tmp_path / DONE).write_text(mark)
    assert finished(tmp_path, identity) is None
    assert mark_done(tmp_path, identity, tmp_path / "x", since=time.monotonic()) == tmp_path / "x"
    assert json.loads((tmp_path / DONE).read_text())["result"] == "x"


def test_a_stage_whose_result_is_gone_or_has_no_checksums_is_done_again(tmp_path, caplog):
    stage, identity = tmp_path / "stage", identity_of(Config(), "sft")

    def work() -> Path:
        result = save_checkpoint(stage, 3, model=Empty(), tokenizer=Empty())
        return mark_done(stage, identity, result, since=time.monotonic())

    result = work()
    assert result == stage / "global_step_3"
    assert finished(stage, identity) == result
    for harm in (lambda: shutil.rmtree(result), (result / MARKER).unlink, lambda: (result / MARKER).write_text("torn")):
        harm()
        assert finished(stage, identity) is None
        assert work() == finished(stage, identity) == result
    assert "it is gone" in caplog.text and "complete.json is missing or unreadable" in caplog.text


class Empty:
    """A model and tokenizer without anything to save."""

    def save_pretrained(self, folder: Path, **settings: object) -> None:
        (folder / "config.json").write_text("{}")
