"""Every key of the schema says what it affects, and a fingerprint changes with the keys that say `semantics` alone."""

from collections.abc import Mapping
from copy import copy
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from spa.config.fields import Affects, Key
from spa.config.load import load_config
from spa.config.schema import APIModelConfig, Config, schema_keys
from spa.config.stages import SECTIONS, STAGES, stages_of
from spa.run.fingerprint import Fingerprint, differences, numerical_differences
from spa.run.hashing import fingerprint_of, stage_fingerprint

LEAVES = {name: (kind, key) for name, kind, key in schema_keys() if not is_dataclass(kind)}
CHANGED = [name for name in LEAVES if name not in ("custom_envs", "model_info")]
SWITCHES = ("trainer.resume_mode", *(name for name in LEAVES if ".replay." in name))
TAG, MODEL = "FrozenLakeNoSlip", "some-model"


@pytest.fixture(scope="module")
def cfg() -> Config:
    """tiny with rollouts replayed, examples in base format, and an API model whose settings can be
    changed."""
    entry = APIModelConfig(provider_name="openai", model_name="x")
    replay = "actor_rollout_ref.actor.replay"
    demo = load_config("tiny", [f"{replay}.source=rollouts", f"{replay}.examples=8"])
    chosen = replace(demo.model_config, model_name=MODEL)
    trainer = replace(demo.trainer, resume_mode="resume_path")
    demo = replace(demo, generate=replace(demo.generate, example_format="base"))
    return replace(
        demo, trainer=trainer, model_info={MODEL: entry, "other": entry}, model_config=chosen
    )


@pytest.fixture(scope="module")
def before(cfg: Config) -> dict[str, Fingerprint]:
    return {stage: fingerprint_of(cfg, stage) for stage in STAGES}


def other(kind: Any, key: Key | None, value: Any) -> Any:
    """A value of the same type inside its range that is not `value`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return other(next(arg for arg in args if arg is not NoneType), key, value)
    if origin is Literal:
        return next(arg for arg in args if arg != value)
    if origin is tuple:
        return tuple(other(args[0], key, item) for item in value or ["x"])
    if origin is Mapping:
        return {**(value or {}), "another": 1}
    if kind is bool:
        return not value
    if kind in (int, float):
        steps = (1, -1) if kind is int else (0.125, -0.125)
        tried = [kind((value or 0) + step) for step in (*steps, *(3 * step for step in steps))]
        return next(item for item in tried if fits(kind, key, item))
    return f"{value}x"


def fits(kind: Any, key: Key | None, value: Any) -> bool:
    try:
        TypeAdapter(Annotated[kind, key]).validate_python(value)
    except ValidationError:
        return False
    return True


def changed(node: Any, path: list[str], value: Any) -> Any:
    """`node` with the value at the end of a path; returns what was there if `value` is a function of it."""
    name, *rest = path
    if isinstance(node, Mapping):
        return {**node, name: changed(node[name], rest, value) if rest else value(node[name])}
    old = getattr(node, name)
    new = copy(node)  # not `replace`: a value may need another one beside it
    object.__setattr__(new, name, changed(old, rest, value) if rest else value(old))
    return new


def test_every_key_says_what_it_affects():
    assert [name for name, (_, key) in LEAVES.items() if key is None] == []
    assert {key.affects for _, key in LEAVES.values() if key} == set(get_args(Affects))


def test_every_result_belongs_to_a_stage_and_every_row_of_the_table_to_a_key():
    assert [
        name
        for name, (_, key) in LEAVES.items()
        if key and key.affects == "semantics" and not stages_of(name)
    ] == []
    assert [
        row
        for row in SECTIONS
        if not any(name == row or name.startswith(f"{row}.") for name, _, _ in schema_keys())
    ] == []


@pytest.mark.parametrize("section", sorted({name.rpartition(".")[0] for name in CHANGED}))
def test_an_identity_changes_with_the_results_of_its_stage_alone(
    section: str, cfg: Config, before, tmp_path: Path
):
    """All keys of a section are changed at once, and each is found or not; keys that turn others on and off, by
    themselves."""
    names = [name for name in CHANGED if name.rpartition(".")[0] == section]
    alone = [[name] for name in names if name in SWITCHES]
    for group in ([name for name in names if name not in SWITCHES], *alone):
        check(group, cfg, before, tmp_path)


def check(names: list[str], cfg: Config, before: dict[str, Fingerprint], folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "file").write_text("new")
    paths, now = {}, cfg
    for name in names:
        kind, key = LEAVES[name]
        paths[name] = name.replace("custom_envs.*", f"custom_envs.{TAG}").replace(
            "model_info.*", f"model_info.{MODEL}"
        )
        content = {"model": str(folder), "value": None}.get(key.content, str(folder / "file"))
        now = changed(
            now,
            paths[name].split("."),
            lambda old, kind=kind, key=key, content=content: content or other(kind, key, old),
        )
    for stage in STAGES:
        after = fingerprint_of(now, stage)
        found = differences(before[stage], after), numerical_differences(before[stage], after)
        wanted = [
            {
                name
                for name in names
                if stage in stages_of(name) and LEAVES[name][1].affects == affects
            }
            for affects in ("semantics", "numerics")
        ]
        wanted[0].discard("trainer.total_training_steps")
        for keys, expected in zip(found, wanted, strict=True):
            seen = {
                name for name, path in paths.items() if any(key.startswith(path) for key in keys)
            }
            assert seen == expected, stage
        assert (after.digest != before[stage].digest) == bool(wanted[0]), stage


def test_a_fingerprint_comes_back_from_json(before):
    assert Fingerprint.from_json(before["ppo"].to_json()) == before["ppo"]


def test_only_played_environments_and_chosen_models_count(cfg: Config, before):
    now = changed(cfg, ["custom_envs", "Bandit", "max_tokens"], lambda old: old + 1)
    now = changed(now, ["model_info", "other", "model_name"], lambda old: "y")
    assert {stage: fingerprint_of(now, stage).digest for stage in STAGES} == {
        s: i.digest for s, i in before.items()
    }


def test_replay_counts_where_examples_are_replayed_and_their_states_where_they_are_of_rollouts(
    cfg: Config,
):
    replay = ["actor_rollout_ref", "actor", "replay"]
    off = changed(cfg, [*replay, "examples"], lambda old: 0)
    data = changed(cfg, [*replay, "source"], lambda old: "data")

    def moves(cfg: Config, path: list[str], value: object) -> bool:
        return (
            fingerprint_of(changed(cfg, path, lambda old: value), "ppo").digest
            != fingerprint_of(cfg, "ppo").digest
        )

    for path, value in (([*replay, "coef"], 0.7), ([*replay, "source"], "data")):
        assert moves(cfg, path, value) and not moves(off, path, value)
    record = fingerprint_of(off, "ppo")  # as older versions wrote them
    older = {
        f"{'.'.join(replay)}.{name}": value for name, value in {"examples": 0, "coef": 1.0}.items()
    }
    assert differences(replace(record, settings={**record.settings, **older}), record) == {}
    assert moves(cfg, ["generate", "states"], "model") and not moves(
        data, ["generate", "states"], "model"
    )


def test_the_number_of_steps_counts_where_a_learning_rate_ends(cfg: Config):
    longer = replace(cfg, trainer=replace(cfg.trainer, total_training_steps=9999))
    for section in (["actor_rollout_ref", "actor", "optim"], ["critic", "optim"]):
        for name, ending in (("warmup_style", "cosine"), ("lr_warmup_steps_ratio", 0.5)):
            pair = [
                changed(c, [*section, name], lambda old, ending=ending: ending)
                for c in (cfg, longer)
            ]
            assert differences(*(fingerprint_of(c, "ppo") for c in pair)) == {
                "trainer.total_training_steps": (cfg.trainer.total_training_steps, 9999)
            }


def test_a_setting_that_an_older_record_does_not_know_has_its_default():
    now = fingerprint_of(Config(), "ppo")
    older = replace(now, settings={k: v for k, v in now.settings.items() if k != "algorithm.gamma"})
    assert differences(older, now) == {} and older.digest == now.digest
    key = "custom_envs.FrozenLakeNoSlip.show_legal_actions"
    played = fingerprint_of(load_config("demo"), "ppo")
    older = replace(played, settings={k: v for k, v in played.settings.items() if k != key})
    assert key in played.settings and differences(older, played) == {}
    shown = fingerprint_of(load_config("demo", [f"{key}=true"]), "ppo")
    assert differences(replace(shown, settings=older.settings), shown) == {key: (False, True)}
    older = replace(now, settings={k: v for k, v in now.settings.items() if k != "algorithm.gamma"})
    other_gamma = replace(now, settings={**now.settings, "algorithm.gamma": 0.5})
    assert differences(older, other_gamma) == {"algorithm.gamma": (1.0, 0.5)}


def test_the_words_of_the_asked_format_count_in_self_play_whose_older_records_do_not_say_them():
    key, tiny = "ctx_manager.placeholders", load_config("tiny")
    words, brackets = (
        fingerprint_of(c, "selfplay") for c in (tiny, load_config("tiny", [f"{key}=brackets"]))
    )
    assert differences(words, brackets) == {key: ("words", "brackets")}
    assert words.settings[key] == "words" and words.digest != brackets.digest
    older = replace(words, settings={k: v for k, v in words.settings.items() if k != key})
    assert differences(older, words) == differences(older, brackets) == {}
    moved = replace(words, settings={**words.settings, "state_text": "grid"})
    assert differences(older, moved).keys() == {"state_text"}
    asked = fingerprint_of(tiny, "ppo")
    older = replace(asked, settings={k: v for k, v in asked.settings.items() if k != key})
    assert differences(older, asked) == {key: ("brackets", "words")}


def test_the_stage_before_and_the_revision_are_part_of_a_fingerprint():
    sft = [
        fingerprint_of(load_config("tiny", [f"sft.optim.lr={rate}"]), "sft") for rate in (0.1, 0.2)
    ]
    first, second = (fingerprint_of(Config(), "ppo", parent=parent) for parent in sft)
    alone = fingerprint_of(Config(), "ppo")
    assert len({first.digest, second.digest, alone.digest}) == 3
    assert differences(first, second) == {"sft.optim.lr": (0.1, 0.2)}
    assert differences(first, replace(first, parent=None)) == {
        "the previous stage": (sft[0].digest, None)
    }
    assert Fingerprint.from_json(first.to_json()) == first
    assert differences(first, replace(first, revision=99)).keys() == {
        "revision of ppo in this version of spa"
    }


@pytest.mark.parametrize(
    ("file", "part"),
    [("weights.safetensors", "weights"), ("config.json", "weights"), ("tokenizer.json", "tokenizer"),
     ("tokenizer_config.json", "tokenizer"), ("chat_template.jinja", "chat template")],
)  # fmt: skip
def test_swapped_model_files_under_the_same_path_are_seen(tmp_path: Path, file: str, part: str):
    for name in (
        "weights.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        (tmp_path / name).write_text("{}")
    cfg = replace(Config(), model_path=str(tmp_path))
    old = fingerprint_of(cfg, "selfplay")
    (tmp_path / "complete.json").write_text("not part of the model")
    assert fingerprint_of(cfg, "selfplay") == old
    (tmp_path / file).write_text("{ }")
    assert differences(old, fingerprint_of(cfg, "selfplay")).keys() == {f"model_path ({part})"}


def test_a_model_and_data_may_move_but_not_change(tmp_path: Path):
    cfgs = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("config.json", "m.safetensors", "wm_train.parquet"):
            (folder / file).write_text("{}")
        base = replace(Config(), model_path=str(folder))
        data = replace(
            base.sft.data, train_files=str(folder), val_files=str(folder / "wm_train.parquet")
        )
        model = replace(base.sft.model, partial_pretrain=str(folder))
        cfgs.append(replace(base, sft=replace(base.sft, data=data, model=model)))
    for stage in STAGES:
        assert fingerprint_of(cfgs[0], stage).digest == fingerprint_of(cfgs[1], stage).digest
    old = fingerprint_of(cfgs[1], "sft")
    (tmp_path / "b" / "wm_train.parquet").write_text("swapped")
    assert differences(old, fingerprint_of(cfgs[1], "sft")).keys() == {
        "sft.data.train_files",
        "sft.data.val_files",
    }


def test_files_among_an_environments_options_count_by_content(tmp_path: Path):
    file = tmp_path / "questions.json"
    file.write_text("1")
    demo = load_config("demo")
    spec = replace(demo.custom_envs[TAG], env_config={"path": str(file)})
    cfg = replace(demo, custom_envs={**demo.custom_envs, TAG: spec})
    old = fingerprint_of(cfg, "selfplay")
    file.write_text("2")
    assert differences(old, fingerprint_of(cfg, "selfplay")).keys() == {
        f"custom_envs.{TAG}.env_config.path"
    }


def test_what_is_on_the_hub_counts_by_its_content_from_the_first_start_on(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))

    def download(repository: str, file: str) -> Path:
        snapshot = cache / repository / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / file).write_text("{}")
        (cache / repository / "refs").mkdir(exist_ok=True)
        (cache / repository / "refs" / "main").write_text("0" * 40)
        return snapshot

    monkeypatch.setattr(
        "spa.run.hashing.download_data",
        lambda name: download("datasets--me--data", "train.parquet"),
    )
    monkeypatch.setattr(
        "spa.models.load.download_model",
        lambda name, **settings: download("models--me--base", "config.json"),
    )
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "me/base"}')
    names = ("train_files", "val_files")
    data = [f"{part}.{name}=me/data" for part in ("data", "sft.data") for name in names]
    cfg = load_config("tiny", [f"model_path={adapter}", *data], stages=["sft"])
    first = stage_fingerprint(cfg, "sft")
    assert not differences(first, stage_fingerprint(cfg, "sft"))
    assert "sft.data.train_files" in first.content
    assert not any("name me/" in value for value in first.content.values()), first.content
