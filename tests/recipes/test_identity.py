"""A run is what it says it is: finished work of another identity is neither reused nor touched."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.runs import small_config
from safetensors.torch import load_file, save_file

from spa.errors import ConfigError, DataError, ModelError
from spa.launch.job import Job
from spa.launch.start import launch
from spa.models.load import load_policy
from spa.recipes import pipeline, ppo_run, selfplay, sft_run
from spa.run.checkpoint import load_note
from spa.run.fingerprint import Fingerprint, differences
from spa.run.hashing import model_content, own_code, stage_fingerprint
from spa.run.manifest import MANIFEST, Manifest
from spa.run.stage import Stage

STEPS = (
    "trainer.total_training_steps=1",
    "sft.trainer.total_training_steps=2",
    "generate.num_batches=1",
)


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory) -> tuple[Path, Path]:
    """A base model of its own and a run of all three stages."""
    root = tmp_path_factory.mktemp("identity")
    model = Path(shutil.copytree(base, root / "model"))
    pipeline.run(small_config(model, root / "run", *STEPS))
    return model, root / "run"


@pytest.fixture
def run(finished, tmp_path) -> tuple[Path, Path]:
    """A copy of the base model and of the run, to be harmed."""
    return tuple(Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in finished)  # type: ignore[return-value]


@pytest.fixture
def no_work(monkeypatch) -> Iterator[None]:
    """Whatever would play or train fails the test."""
    for target, name in (
        (Stage, "_prepare"),
        (selfplay, "self_play"),
        (sft_run, "fine_tune"),
        (ppo_run, "train_ppo"),
    ):
        monkeypatch.setattr(target, name, lambda *args, **kwargs: pytest.fail("work was begun"))
    yield


def recorded(folder: Path) -> Fingerprint:
    """The fingerprint of the work in a folder."""
    known = Manifest.read(folder)
    assert known is not None
    return known.fingerprint


def sums(folder: Path) -> dict[str, str]:
    """The checksums and times of all files but the lock."""
    return {
        f"{path.relative_to(folder)} {path.stat().st_mtime_ns}": hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize(
    ("replay", "counts"),
    [((), ()), (("source=data",), ("sft",)), (("source=rollouts",), ("sft", "generate"))],
)
def test_ppo_depends_on_what_makes_the_examples_that_it_replays(base, tmp_path, replay, counts):
    section = "actor_rollout_ref.actor.replay"
    on = [f"{section}.{each}" for each in ("examples=2", *replay)] if replay else []

    def digest(*more: str) -> str:
        return stage_fingerprint(small_config(base, tmp_path, *on, *more), "ppo").digest

    for name, key in (("sft", "sft.data.max_length=99"), ("sft", "sft.data.loss_on=states_only")):
        assert (digest(key) != digest()) == (name in counts)
    assert (digest("generate.success_only=true") != digest()) == ("generate" in counts)


def test_a_repeated_start_writes_nothing(finished, no_work):
    model, root = finished
    before = sums(root)
    pipeline.run(small_config(model, root, *STEPS))
    launch(small_config(model, root, *STEPS), Job(stage="generate"))
    launch(small_config(model, root, *STEPS), Job(stage="sft"))
    assert sums(root) == before


def test_ppo_alone_from_the_base_model_is_not_the_ppo_of_a_run(finished, no_work):
    model, root = finished
    before = sums(root)
    with pytest.raises(ConfigError, match=r"the previous stage: content \w+ → null"):
        launch(small_config(model, root, *STEPS), Job(stage="ppo"))
    assert sums(root) == before


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("actor_rollout_ref.actor.optim.lr=0.5", "actor_rollout_ref.actor.optim.lr: 0.0003 → 0.5"),
        ("sft.optim.lr=0.5", "sft.optim.lr: 0.003 → 0.5"),
        ("generate.split_seed=7", "generate.split_seed: 42 → 7"),
        ("actor_rollout_ref.model.dtype=bfloat16", "sft.model.dtype: float32 → bfloat16"),
    ],
)
def test_a_changed_setting_is_refused_and_changes_no_file(finished, no_work, override, named):
    model, root = finished
    before = sums(root)
    with pytest.raises(ConfigError) as refused:
        pipeline.run(small_config(model, root, *STEPS, override))
    text = str(refused.value)
    assert named in text and "spa compare CONFIG" in text and "trainer.run_dir=FOLDER" in text
    assert "the previous stage" not in text and text.count(named) == 1
    assert sums(root) == before


@pytest.mark.parametrize("gone", [("data",), ("data", "sft")])
def test_a_change_of_an_earlier_stage_whose_folder_is_gone_is_named(run, no_work, gone):
    model, root = run
    for stage in gone:
        shutil.rmtree(root / stage)
    before = sums(root)
    with pytest.raises(ConfigError, match=r"generate\.split_seed: 42 → 7") as refused:
        pipeline.run(small_config(model, root, *STEPS, "generate.split_seed=7"))
    assert str(refused.value).startswith(str(root / ("ppo" if "sft" in gone else "sft")))
    assert "spa compare CONFIG --sweep generate.split_seed=42,7" in str(refused.value)
    assert sums(root) == before


@pytest.mark.parametrize("gone", [("data",), ("data", "sft")])
def test_a_changed_setting_of_a_stage_that_is_gone_is_named(run, no_work, gone):
    model, root = run
    for folder in gone:
        shutil.rmtree(root / folder)
    with pytest.raises(ConfigError) as refused:
        pipeline.run(small_config(model, root, *STEPS, "generate.num_batches=2"))
    assert "generate.num_batches: 1 → 2" in str(refused.value)
    assert "spa compare CONFIG --sweep generate.num_batches=1,2" in str(refused.value)


def test_what_changes_no_result_is_taken_as_it_is(finished, no_work, caplog):
    model, root = finished
    before = sums(root)
    free = (
        "micro_batch_size_per_gpu=2",
        "es_manager.env_timeout_s=5",
        "trainer.test_freq=1",
        "trainer.logger=[]",
    )
    pipeline.run(small_config(model, root, *STEPS, *free))
    assert sums(root) == before
    assert (
        "micro_batch_size_per_gpu: 4 → 2" in caplog.text
        and "es_manager.env_timeout_s: 60.0 → 5.0" in caplog.text
    )


def test_a_moved_run_and_model_are_the_same(run, no_work):
    model, root = run
    pipeline.run(small_config(model, root, *STEPS))


@pytest.mark.parametrize(
    ("file", "part"), [("model.safetensors", "weights"), ("tokenizer.json", "tokenizer"),
                       ("chat_template.jinja", "chat template")],
)  # fmt: skip
def test_a_base_model_swapped_under_its_path_is_refused(run, no_work, file, part):
    model, root = run
    with (model / file).open("ab") as out:
        out.write(b" ")
    with pytest.raises(ConfigError, match=rf"model_path \({part}\): content \w+ → content"):
        pipeline.run(small_config(model, root, *STEPS))


def test_a_chat_template_file_counts_by_its_content(run, tmp_path, no_work):
    model, root = run
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    with pytest.raises(
        ConfigError, match=r"actor_rollout_ref\.model\.chat_template: null → content"
    ):
        pipeline.run(
            small_config(model, root, *STEPS, f"actor_rollout_ref.model.chat_template={template}")
        )


@pytest.mark.parametrize("text", ['{"base_model_name', "[]"])
def test_an_adapter_that_does_not_say_whose_it_is_ends_in_one_message(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"adapter_config\.json: "):
        model_content(str(tmp_path))


def test_an_imported_model_counts_by_what_its_files_hold(base, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = Path(shutil.copytree(base, tmp_path / ".cache/spa/models/mine"))
    first = model_content("mine")
    assert first == model_content(str(kept)) and model_content("nobody") == {
        "weights": "name nobody"
    }
    with (kept / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    assert {part for part, value in model_content("mine").items() if value != first[part]} == {
        "tokenizer"
    }


def test_swapped_data_are_refused_and_lost_data_are_made_again(run, monkeypatch):
    model, root = run
    cfg, file = small_config(model, root, *STEPS), root / "data" / selfplay.TRAIN_FILE
    true = file.read_bytes()
    file.write_bytes((root / "data" / selfplay.VAL_FILE).read_bytes())
    for start in (lambda: pipeline.run(cfg), lambda: launch(cfg, Job(stage="sft"))):
        with pytest.raises(DataError, match=r"bytes, but the stage wrote.*data\.train_files=FILE"):
            start()
    file.unlink()
    monkeypatch.setattr(
        selfplay.setup, "training_specs", lambda *args, **kwargs: pytest.fail("played again")
    )
    pipeline.run(cfg)
    assert file.read_bytes() == true


def test_weights_in_a_subfolder_count(base, tmp_path):
    model = Path(shutil.copytree(base, tmp_path / "model"))
    (model / "parts").mkdir()
    moved = model / "parts" / "model-00001-of-00001.safetensors"
    (model / "model.safetensors").rename(moved)
    index = model / "model.safetensors.index.json"
    names = list(load_file(moved))
    index.write_text(
        json.dumps(
            {"metadata": {}, "weight_map": dict.fromkeys(names, str(moved.relative_to(model)))}
        )
    )
    load_policy(str(model))
    first = model_content(str(model))
    weights = load_file(moved)
    weights[names[0]] += 1
    save_file(weights, moved, metadata={"format": "pt"})
    assert model_content(str(model))["weights"] != first["weights"]


def test_configured_data_count_by_their_content(base, finished, tmp_path):
    _, root = finished
    for name in (selfplay.TRAIN_FILE, selfplay.VAL_FILE):
        shutil.copy(root / "data" / name, tmp_path / name)
    files = (
        f"data.train_files={tmp_path / selfplay.TRAIN_FILE}",
        f"data.val_files={tmp_path / selfplay.VAL_FILE}",
    )
    cfg = small_config(base, tmp_path / "run", *STEPS, *files)
    launch(cfg, Job(stage="sft"))
    shutil.copy(tmp_path / selfplay.VAL_FILE, tmp_path / selfplay.TRAIN_FILE)
    with pytest.raises(ConfigError, match=r"data\.train_files: content \w+ → content"):
        launch(cfg, Job(stage="sft"))


@pytest.mark.parametrize(
    "harm", ["truncated config.yaml", "no manifest.json", "torn manifest.json"]
)
def test_a_damaged_record_does_not_switch_the_guard_off(run, no_work, harm):
    model, root = run
    path = root / "ppo" / harm.split()[-1]
    if harm.startswith("no"):
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.actor\.optim\.lr: 0\.0003 → 0\.5"):
        pipeline.run(small_config(model, root, *STEPS, "actor_rollout_ref.actor.optim.lr=0.5"))


def test_a_record_is_restored_from_the_checkpoint(run):
    model, root = run
    known = recorded(root / "ppo")
    (root / "ppo" / MANIFEST).write_text("{")
    before = (root / "ppo" / "config.yaml").stat().st_mtime_ns
    last = pipeline.run(small_config(model, root, *STEPS))
    assert recorded(root / "ppo") == known
    assert load_note(last, "fingerprint") == json.loads(json.dumps(known.to_json()))
    assert (root / "ppo" / "config.yaml").stat().st_mtime_ns == before


def test_work_without_any_record_is_refused(run, no_work):
    model, root = run
    (root / "data" / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="record of the stage: missing or damaged"):
        pipeline.run(small_config(model, root, *STEPS))


def test_anew_does_what_changed_again_and_archives_the_old(run):
    model, root = run
    before = sums(root)
    changed = ("actor_rollout_ref.actor.optim.lr=0.001", "trainer.resume_mode=disable")
    pipeline.run(small_config(model, root, *STEPS, *changed))
    after = sums(root)
    kept = {
        name.replace("ppo/", "ppo/previous/1/", 1): value
        for name, value in before.items()
        if "log.txt" not in name and not name.startswith("plan.json")
    }
    assert kept.items() <= after.items()
    assert recorded(root / "ppo").settings["actor_rollout_ref.actor.optim.lr"] == 0.001
    pipeline.run(small_config(model, root, *STEPS, changed[0]))
    assert sums(root) == after


def test_seconds_of_a_longer_run_are_those_of_both_parts(run):
    model, root = run
    mark = root / "ppo" / MANIFEST
    content = json.loads(mark.read_text())
    mark.write_text(json.dumps(content | {"seconds": 1000.0}))
    pipeline.run(small_config(model, root, *STEPS, "trainer.total_training_steps=2"))
    assert json.loads(mark.read_text())["seconds"] > 1000.0


def test_ppo_from_another_checkpoint_of_the_same_stage_is_another_result(
    finished, tmp_path, monkeypatch
):
    model, root = finished
    cfg = small_config(model, root, *STEPS)
    last, named = (
        pipeline.ppo_fingerprint(cfg, root / "sft" / f"global_step_{n}", root / "sft")
        for n in (2, 1)
    )
    assert last.parent == named.parent == recorded(root / "sft")
    assert differences(last, named) == {"the checkpoint it starts from": (None, "global_step_1")}
    foreign = pipeline.ppo_fingerprint(cfg, model, root / "sft")
    assert foreign.parent is None and "model_path (weights)" in foreign.content


def test_code_of_the_users_own_counts_by_its_content(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    code = tmp_path / "bonus_of_mine.py"
    code.write_text("def bonus(message, ids, template):\n    return 1.0\n")
    own = "sft.data.loss_on=bonus_of_mine:bonus"
    cfg = small_config("builtin:tiny", tmp_path / "run", own)
    before = stage_fingerprint(cfg, "sft")
    assert stage_fingerprint(cfg, "sft") == before
    assert "the code of bonus_of_mine" in before.content
    code.write_text("def bonus(message, ids, template):\n    return 20.0\n")
    assert differences(before, stage_fingerprint(cfg, "sft"))
    plain = stage_fingerprint(small_config("builtin:tiny", tmp_path / "run"), "sft")
    assert not any(name.startswith("the code") for name in plain.content)


def test_code_of_our_packages_counts_by_its_version_alone():
    packages = [
        path.parent.name for path in (Path(__file__).parents[2] / "src").glob("spa*/__init__.py")
    ]
    assert len(packages) > 8
    for name in packages:
        assert own_code("custom_envs.Mine.env_type", f"{name}:Game") == {}


def test_an_edited_reward_is_another_reward(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    code = tmp_path / "reward_of_mine.py"
    code.write_text("def idle(turn):\n    return 1.0\n")
    cfg = small_config("builtin:tiny", tmp_path / "run")
    (tag,) = cfg.es_manager.train.env_configs.tags
    spec = replace(cfg.custom_envs[tag], reward={"game": 1.0, "reward_of_mine:idle": 0.1})
    cfg = replace(cfg, custom_envs={**cfg.custom_envs, tag: spec})
    before = stage_fingerprint(cfg, "ppo")
    code.write_text("def idle(turn):\n    return 20.0\n")
    found = differences(before, stage_fingerprint(cfg, "ppo"))
    assert found.keys() == {"the code of reward_of_mine"}


def test_history_counts_for_self_play_where_its_examples_have_it(tmp_path):
    def digests(*overrides: str) -> set[str]:
        runs = (
            small_config(
                "builtin:tiny",
                tmp_path,
                f"ctx_manager.history={history}",
                "ctx_manager.mode=base",
                *overrides,
            )
            for history in ("true", "false")
        )
        return {stage_fingerprint(cfg, "selfplay").digest for cfg in runs}

    assert len(digests()) == 1
    assert len(digests("generate.example_format=base")) == 2
