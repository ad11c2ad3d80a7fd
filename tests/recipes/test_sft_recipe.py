"""Self-play data and fine-tuning as a whole: true states, the same gradient however it is cut, resumable."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from helpers.runs import small_config
from helpers.stages import metrics
from safetensors.torch import load_file

from spa.config.schema import Config
from spa.envs.eval_sets import eval_set_hashes
from spa.errors import DataError, TrainingError
from spa.models.load import load_policy, load_tokenizer
from spa.prompts.template import ChatTemplate
from spa.recipes import build, gate, pipeline, selfplay, setup, sft, sft_run, sft_updates
from spa.rollout.loop import puzzle_hash
from spa.run.checkpoint import load_state
from spa.training.optim import Optimizer
from spa.training.update import MicroBatching, Trainable
from spa.types import StopReason
from spa.worldmodel import sft_data
from spa.worldmodel.sft_files import read_examples

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(base, tmp_path_factory) -> Path:
    return selfplay.run_self_play(small_config(base, tmp_path_factory.mktemp("generate")))


@pytest.fixture(scope="module")
def four_steps(base, data, tmp_path_factory) -> Path:
    """The folder of an undisturbed run of four steps."""
    folder = tmp_path_factory.mktemp("sft")
    pipeline.run_sft_stage(small_config(base, folder), directory=folder, data=data)
    return folder


def rows_of(data: Path):
    return read_examples(data / selfplay.TRAIN_FILE), read_examples(data / selfplay.VAL_FILE)


def test_the_data_tells_the_truth(base, data):
    train, val = rows_of(data)
    player = setup.make_worker(small_config(base, data), None, mode="add_worldmodel")
    assert len(train) > 10
    for example in (*train, *val):
        env = player.make_env(example.tag)
        env.reset(seed=example.puzzle_seed)
        assert puzzle_hash(env) == example.puzzle_hash
        if example.turn == 0:
            assert example.state == env.state_text("coords")
        assert f"<observation>\n{example.state}\n</observation>" in example.response
        assert f"<prediction>\n{example.next_state}\n</prediction>" in example.response
        assert f"State:\n{example.state}\n" in example.prompt[-1]["content"]
        assert example.response.endswith(f"<answer>{' || '.join(example.executed)}</answer>")


def test_no_puzzle_is_on_both_sides_and_none_is_validated_on(base, data):
    train, val = rows_of(data)
    assert not {example.puzzle_hash for example in train} & {example.puzzle_hash for example in val}
    cfg = small_config(base, data)
    used = setup.validation_hashes(cfg, setup.make_worker(cfg, None, mode="add_worldmodel"))
    assert len(used - eval_set_hashes()) == 2
    assert not {example.puzzle_hash for example in (*train, *val)} & used


def test_the_model_is_looked_at_on_puzzles_that_are_neither_in_its_examples_nor_validated_on(
    base, data, four_steps
):
    trained = {example.puzzle_hash for part in rows_of(data) for example in part}
    cfg = small_config(base, data)
    player = setup.make_worker(cfg, None, mode="add_worldmodel")
    sampled, _ = setup.probe_specs(cfg, player, frozenset())
    contents = [player.peek_reset(spec).hash for spec in sampled]
    probes, seen = setup.probe_specs(cfg, player, frozenset(contents[:2]))
    assert seen == 0 and probes[2:] == sampled[2:]
    assert not {player.peek_reset(spec).hash for spec in probes} & {
        *contents[:2],
        *setup.validation_hashes(cfg, player),
    }
    last = metrics(four_steps)[-1]
    assert (last["val/puzzles"], last["val/puzzles_seen"]) == (4, 0)
    played = (four_steps / "trajectories" / "sft_eval-000004.jsonl").read_text().splitlines()
    assert len(played) == 4 and not {json.loads(line)["puzzle_hash"] for line in played} & trained


def test_puzzles_seen_in_training_are_counted_where_the_game_has_no_others(base, tmp_path):
    twelve = (
        "custom_envs.FrozenLakeNoSlip.env_config.size=2",
        "custom_envs.FrozenLakeNoSlip.env_config.p=1.0",
    )
    cfg = small_config(base, tmp_path, *twelve, "generate.num_batches=16")
    data = selfplay.run_self_play(cfg, directory=tmp_path / "data")
    pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    last = metrics(tmp_path / "sft")[-1]
    assert last["val/puzzles_seen"] == 4
    told = gate.judge(cfg, gate.measurements(tmp_path / "sft" / "metrics.jsonl")).text
    assert "on 4 puzzles, of which 4 were seen in training (prediction " in told


def test_validation_puzzles_are_left_out_of_the_data(base, tmp_path):
    # the first batch's puzzles
    cfg = small_config(base, tmp_path, "seed.val=10000", "es_manager.val.env_groups=3")
    folder = selfplay.run_self_play(cfg)
    held_out = setup.validation_hashes(cfg, setup.make_worker(cfg, None, mode="add_worldmodel"))
    assert len(held_out - eval_set_hashes()) == 3
    examples = [example for part in rows_of(folder) for example in part]
    assert examples and not held_out & {example.puzzle_hash for example in examples}
    assert {10003, 10004, 10005} & {example.puzzle_seed for example in examples}


def test_everything_that_was_played_is_accounted_for(data):
    summary = json.loads((data / "summary.json").read_text())
    turns = [
        turn
        for path in sorted((data / "trajectories").iterdir())
        for line in path.read_text().splitlines()
        for turn in json.loads(line)["turns"]
    ]
    assert summary["examples_train"] + summary["examples_val"] + sum(
        summary["dropped"].values()
    ) == len(turns)
    assert summary["episodes"] == 24


def test_self_play_is_the_same_twice(base, data, tmp_path):
    again = selfplay.run_self_play(small_config(base, tmp_path))
    assert rows_of(again) == rows_of(data)
    assert (again / "metrics.jsonl").read_bytes() == (data / "metrics.jsonl").read_bytes()


def test_the_control_has_next_states_of_other_turns(base, data, tmp_path):
    folder = selfplay.run_self_play(
        small_config(base, tmp_path, "generate.shuffle_next_states=true")
    )
    changed = total = 0
    for true, shuffled in zip(rows_of(data)[0], rows_of(folder)[0], strict=True):
        assert shuffled.prompt[-1] == true.prompt[-1]
        assert f"<observation>\n{true.state}\n</observation>" in shuffled.response
        changed += f"<prediction>\n{true.next_state}\n</prediction>" not in shuffled.response
        total += 1
    assert changed > 0.8 * total


def test_uniformly_random_play_needs_no_good_model(base, tmp_path):
    folder = selfplay.run_self_play(small_config(base, tmp_path, "generate.policy=random"))
    assert json.loads((folder / "summary.json").read_text())["dropped"] == {}


def test_a_model_that_does_not_follow_the_format_is_named(base, tmp_path):
    with pytest.raises(DataError, match=r"None of the 24 episodes.*malformed.*instruct model"):
        selfplay.run_self_play(small_config(base, tmp_path, "generate.sampling.response_length=2"))


def test_a_game_that_fails_in_every_episode_is_named(base, tmp_path, monkeypatch):
    (tmp_path / "broken_lake.py").write_text(
        "from spa.envs.frozen_lake import FrozenLake\n\n\n"
        "class BrokenLake(FrozenLake):\n"
        "    def step(self, action):\n"
        "        *rest, info = super().step(action)\n"
        "        return (rest[0], None, *rest[2:], info)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    lake = "custom_envs.FrozenLakeNoSlip.env_type=broken_lake:BrokenLake"
    with pytest.raises(DataError, match=r"returned None as the reward.*spa env check") as error:
        selfplay.run_self_play(small_config(base, tmp_path, lake, "generate.policy=random"))
    assert "episode_error" in str(error.value) and "instruct model" not in str(error.value)


def test_fine_tuning_lowers_the_loss_and_measures_itself(base, four_steps):
    lines = metrics(four_steps)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [("val/loss" in line) for line in lines] == [False, True, False, True]
    assert lines[3]["train/loss"] < lines[0]["train/loss"]
    assert {"val/wm/obs_exact", "val/wm/prediction_em", "val/sampled_nll"} <= lines[3].keys()
    forced = {f"val/teacher_forced/{kind}" for kind in ("observation", "prediction", "answer")}
    assert forced <= lines[3].keys() and not forced & lines[2].keys()
    folders = sorted(path.name for path in four_steps.glob("global_step_*"))
    assert folders == ["global_step_2", "global_step_4"]
    for folder in folders:  # plain folders of transformers
        load_policy(str(four_steps / folder))
        load_tokenizer(str(four_steps / folder))


def test_without_validation_rows_there_is_no_validation_loss(base, data, tmp_path, caplog):
    (tmp_path / "data").mkdir()
    train, val = (pq.read_table(data / name) for name in (selfplay.TRAIN_FILE, selfplay.VAL_FILE))
    pq.write_table(train, tmp_path / "data" / selfplay.TRAIN_FILE)
    pq.write_table(val.slice(0, 0), tmp_path / "data" / selfplay.VAL_FILE)
    cfg = small_config(base, tmp_path, "sft.trainer.total_training_steps=2")
    pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=tmp_path / "data")
    last = metrics(tmp_path / "sft")[-1]
    assert "val/loss" not in last and "val/wm/obs_exact" in last
    assert "no validation example" in caplog.text


def test_the_same_seed_gives_the_same_model(base, data, four_steps, tmp_path):
    pipeline.run_sft_stage(small_config(base, tmp_path), directory=tmp_path, data=data)
    assert_same_run(tmp_path, four_steps)


def test_a_run_that_was_killed_goes_on_as_if_nothing_had_happened(
    base, data, four_steps, tmp_path, monkeypatch
):
    cfg = small_config(base, tmp_path)
    with monkeypatch.context() as patch:
        real, calls = sft.update, []

        def killed(*args):
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return real(*args)

        patch.setattr(sft, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run_sft_stage(cfg, directory=tmp_path, data=data)
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3]
    pipeline.run_sft_stage(cfg, directory=tmp_path, data=data)
    assert_same_run(tmp_path, four_steps)


def assert_same_run(a: Path, b: Path) -> None:
    assert (a / "metrics.jsonl").read_bytes() == (b / "metrics.jsonl").read_bytes()
    for name in ("model.safetensors", "state/tensors.safetensors"):
        left, right = (load_file(folder / "global_step_4" / name) for folder in (a, b))
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    assert load_state(a / "global_step_4")["optimizer"]["steps"] == 4


class Recording(Optimizer):
    """Keeps the gradients that it is asked to step with, and does not step."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__([torch.optim.SGD(model.parameters(), lr=0.0)], lambda step: 1.0)
        self.model, self.seen = model, []

    def step(self) -> None:
        self.seen.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]).clone())


def one_step(
    cfg: Config, base: Path, data: Path, micro: MicroBatching
) -> tuple[dict, torch.Tensor]:
    model = load_policy(str(base))
    sequences, _ = sft_data.load_data(cfg, ChatTemplate(load_tokenizer(str(base))), data)
    optimizer = Recording(model)
    found = sft.update(
        Trainable(model=model, optimizer=optimizer, grad_clip=1e9), sequences, micro, CPU
    )
    return found, optimizer.seen[0]


@pytest.mark.parametrize(
    "micro", [MicroBatching(rows=1), MicroBatching(rows=4), MicroBatching(max_tokens=900)]
)
@pytest.mark.parametrize("merge", [True, False])
def test_neither_cutting_nor_merging_changes_loss_or_gradient(base, data, micro, merge):
    cfg = small_config(base, data)
    expected, gradient = one_step(cfg, base, data, MicroBatching())
    changed = replace(cfg, sft=replace(cfg.sft, data=replace(cfg.sft.data, merge_turns=merge)))
    found, other = one_step(changed, base, data, micro)
    assert expected["train/grad_norm"] > 0.1
    assert found == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(other, gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("micro", [MicroBatching(rows=1), MicroBatching(max_tokens=900)])
def test_the_validation_loss_does_not_depend_on_the_cut(base, data, micro):
    cfg, template = small_config(base, data), ChatTemplate(load_tokenizer(str(base)))
    part = Trainable(model=(model := load_policy(str(base))), optimizer=Recording(model))
    rows, _ = sft_data.load_data(cfg, template, data)
    expected = sft_updates.validation_loss(part, rows, MicroBatching(), CPU)
    assert sft_updates.validation_loss(part, rows, micro, CPU) == pytest.approx(expected, rel=1e-5)


def test_the_model_of_stage_two_may_be_another(base, data, four_steps, tmp_path):
    """`sft.model.partial_pretrain`, as in the original; the policy of PPO is named apart."""
    start = four_steps / "global_step_4"
    pipeline.run_sft_stage(
        small_config("none", tmp_path, f"sft.model.partial_pretrain={start}"),
        directory=tmp_path / "sft",
        data=data,
    )
    first, again = metrics(four_steps)[0]["train/loss"], metrics(tmp_path / "sft")[0]["train/loss"]
    assert again < first


def test_fine_tuning_has_an_attention_kernel_of_its_own(base, tmp_path):
    cfg = small_config(base, tmp_path, "sft.model.attn_implementation=eager")
    model, _ = sft_run.load_model(cfg, None, torch.device("cpu"))
    assert model.config._attn_implementation == "eager"


def test_epsilon_reaches_the_optimizer(base, data, tmp_path):
    cfg = small_config(base, tmp_path, "sft.optim.eps=0.001", "sft.optim.name=adamw")
    made = build.sft_optimizer(torch.nn.Linear(2, 2), cfg.sft.optim, 10)
    assert made.parts[0].param_groups[0]["eps"] == 0.001


def test_an_epoch_has_as_many_steps_when_turns_are_merged(base, data, tmp_path):
    counted = {}
    for merge in (True, False):
        cfg = small_config(
            base,
            tmp_path / str(merge),
            f"sft.data.merge_turns={merge}",
            "sft.trainer.total_training_steps=null",
            "sft.trainer.total_epochs=1",
            "sft.trainer.eval_episodes=0",
        )
        pipeline.run_sft_stage(cfg, directory=tmp_path / str(merge), data=data)
        counted[merge] = [line["train/examples"] for line in metrics(tmp_path / str(merge))]
    rows = len(rows_of(data)[0])
    assert sum(counted[True]) == sum(counted[False]) == rows
    assert len(counted[True]) == len(counted[False]) == -(-rows // 8)
    assert max(counted[True]) <= 8


@pytest.mark.parametrize(
    "spoil", [lambda found: found * float("nan"), lambda found: found - float("inf")]
)
def test_a_loss_that_is_not_finite_ends_with_a_message_and_an_unharmed_checkpoint(
    base, data, tmp_path, monkeypatch, spoil
):
    """The second has a finite gradient."""
    real, calls = sft_updates.token_logprobs, []

    def broken(model, ids, mask, **settings):
        logprobs, entropy = real(model, ids, mask, **settings)
        calls.append(1)
        return (spoil(logprobs) if model.training and len(calls) > 8 else logprobs), entropy

    monkeypatch.setattr(sft_updates, "token_logprobs", broken)
    cfg = small_config(
        base, tmp_path, "sft.trainer.total_training_steps=9", "sft.trainer.eval_episodes=0"
    )
    with pytest.raises(TrainingError, match="NaN or infinite in 3 consecutive steps"):
        pipeline.run_sft_stage(cfg, directory=tmp_path, data=data)
    lines = metrics(tmp_path)
    assert any(
        line["train/nonfinite_steps"] == 1 and not isinstance(line["train/loss"], float)
        for line in lines
    )
    last = sorted(tmp_path.glob("global_step_*"))[-1]
    assert all(p.isfinite().all() for p in load_policy(str(last)).parameters())


@pytest.mark.parametrize("content", [None, b"not parquet"])
def test_data_that_is_missing_or_corrupt_is_one_clear_message(base, tmp_path, content):
    if content is not None:
        (tmp_path / "wm_train.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"wm_train\.parquet"):
        pipeline.run_sft_stage(
            small_config(base, tmp_path), directory=tmp_path / "sft", data=tmp_path
        )


def test_dropped_examples_are_counted(base, data, tmp_path, caplog):
    single = "sft.data.merge_turns=false"
    examples = sft_data.load_data(small_config(base, data, single), template_of(base), data)[0]
    # One of the shortest still fits; an example loses its oldest turns and is then dropped.
    shortest = min(len(example.token_ids) for example in examples)
    cfg = small_config(base, tmp_path, single, f"sft.data.max_length={shortest}")
    caplog.clear()
    left = sft_data.load_data(cfg, template_of(base), data)[0]
    assert 0 < len(left) < len(examples)
    said = next(line for line in caplog.messages if "wm_train.parquet" in line)
    assert f"{len(examples) - len(left)} examples do not fit" in said
    assert f"sft.data.max_length = {shortest} tokens" in said and f"{len(left)} sequences" in said


def test_probes_that_cannot_be_played_do_not_end_the_fine_tuning(
    base, data, tmp_path, monkeypatch, caplog
):
    real = setup.RolloutWorker.rollout

    def down(*args, **kw):
        return [
            replace(episode, stop=StopReason.ERROR, error="the server is down")
            for episode in real(*args, **kw)
        ]

    monkeypatch.setattr(setup.RolloutWorker, "rollout", down)
    cfg = small_config(base, tmp_path, "sft.trainer.total_training_steps=1")
    assert pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data).is_dir()
    assert "none of the held-out puzzles could be played: the server is down" in caplog.text


def no_token(message, token_ids, template) -> list[bool]:
    return [False] * len(token_ids)


def test_examples_without_a_token_to_train_on_are_refused(base, data, tmp_path):
    cfg = small_config(base, tmp_path, f"sft.data.loss_on={__name__}:no_token")
    with pytest.raises(DataError, match=r"no_token selects no token of the .* training examples"):
        sft_data.load_data(cfg, template_of(base), data)


def test_examples_that_are_too_long_stop_only_where_that_is_asked_for(base, data, tmp_path):
    longest = max(
        len(example.token_ids)
        for example in sft_data.load_data(small_config(base, data), template_of(base), data)[0]
    )
    cut = small_config(base, tmp_path, f"sft.data.max_length={longest - 1}")
    sequences, _ = sft_data.load_data(cut, template_of(base), data)
    assert sum(sequence.examples for sequence in sequences) == len(rows_of(data)[0])
    strict = small_config(
        base, tmp_path, f"sft.data.max_length={longest - 1}", "sft.data.truncation=error"
    )
    with pytest.raises(
        DataError, match=re.escape(f"longer than sft.data.max_length = {longest - 1}")
    ):
        sft_data.load_data(strict, template_of(base), data)
    with pytest.raises(
        DataError, match=r"wm_train\.parquet: none of the \d+ training examples fits"
    ):
        sft_data.load_data(
            small_config(base, tmp_path, "sft.data.max_length=20"), template_of(base), data
        )
    none = tmp_path / "none.parquet"
    pq.write_table(pq.read_table(data / selfplay.TRAIN_FILE).slice(0, 0), none)
    files = [f"sft.data.train_files={none}", f"sft.data.val_files={data / selfplay.VAL_FILE}"]
    with pytest.raises(DataError, match=r"none\.parquet: the file has no training example"):
        sft_data.load_data(small_config(base, tmp_path, *files), template_of(base), data)


def template_of(base: Path) -> ChatTemplate:
    return ChatTemplate(load_tokenizer(str(base)))


def test_world_model_data_of_others_can_be_trained_on(base, data, tmp_path):
    files = [
        f"data.train_files=[{data / selfplay.TRAIN_FILE}]",
        f"data.val_files={data / selfplay.VAL_FILE}",
    ]
    cfg = small_config(base, tmp_path, *files)
    sequences, val = sft_data.load_data(cfg, template_of(base), None)
    assert (len(sequences), len(val)) == tuple(
        len(part)
        for part in sft_data.load_data(small_config(base, tmp_path), template_of(base), data)
    )


def test_edited_data_can_be_trained_on_where_they_are_named(base, data, tmp_path):
    edited = tmp_path / "data"
    shutil.copytree(data, edited)
    train = edited / selfplay.TRAIN_FILE
    pq.write_table(pq.read_table(train).slice(1), train)
    with pytest.raises(DataError, match="run --stages sft,ppo with data"):
        sft_run.sft_fingerprint(small_config(base, tmp_path), edited)
    files = [f"data.train_files={train}", f"data.val_files={edited / selfplay.VAL_FILE}"]
    known = sft_run.sft_fingerprint(small_config(base, tmp_path, *files), edited)
    assert "data.train_files" in known.content
