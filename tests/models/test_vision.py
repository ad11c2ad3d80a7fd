"""Vision-language models through every stage on the environment that is shown as pictures."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.model_folders import save_family
from helpers.vision import SEEING, save_seeing

from spa.config.load import load_config
from spa.config.schema import Config
from spa.engines.local import local_engine
from spa.errors import ConfigError, ModelError
from spa.models.build import load_actor, load_template
from spa.models.forward import pack_rows, token_logprobs
from spa.models.load import load_policy
from spa.models.vision import from_png, to_png
from spa.prompts.render import Prompter
from spa.recipes import evaluate, pipeline, ppo_rollouts, ppo_run, selfplay, setup
from spa.recipes.policies import find_target
from spa.types import IMAGE, Episode, SamplingParams
from spa.worldmodel.sequences import training_sequences
from spa.worldmodel.sft_files import read_examples
from spa_engines.vllm import vllm_engine
from spa_games.sokoban import Sokoban

CPU = torch.device("cpu")
SETTINGS = (
    "state_text=grid",
    "ctx_manager.example=false",
    "agent_proxy.max_turn=2",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.train.env_configs.tags=[VisualSimpleSokoban]",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=1",
    "es_manager.val.env_configs.tags=[VisualSimpleSokoban]",
    "ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.response_length=8",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "generate.num_batches=1",
    "generate.policy=random",
    "generate.val_fraction=0.5",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.eval_episodes=1",
    "trainer.total_training_steps=2",
    "trainer.validation_steps=1",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.logger=[]",
    "trainer.kl_stop=0.0001",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_seeing("qwen2_vl", tmp_path_factory.mktemp("seeing") / "qwen2_vl")


@pytest.fixture(scope="module", params=SEEING)
def seen(request, tmp_path_factory):
    """A configuration, the model, its template, and two episodes that it has played."""
    run = tmp_path_factory.mktemp("seen")
    folder = save_seeing(request.param, run / request.param)
    cfg = config(folder, run)
    model, template = load_actor(cfg, str(folder), CPU)
    return cfg, model, template, played(cfg, model, template, slice(None))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """World-model data by the random policy: pictures in the prompts, states as text in the responses."""
    run = tmp_path_factory.mktemp("data")
    return selfplay.run_self_play(config(Path("random"), run), directory=run / "data")


def config(model: Path, run: Path, *overrides: str) -> Config:
    return load_config(
        "base", [*SETTINGS, f"model_path={model}", f"trainer.run_dir={run}", *overrides]
    )


def played(cfg: Config, model, template, part: slice):
    player = setup.make_worker(cfg, template, mode="base")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=7, step=0)
    engine = local_engine(cfg, model, template, CPU)
    return player.rollout(engine, specs[part], SamplingParams(max_tokens=8))


def test_prompts_show_the_picture_and_not_the_text():
    env = Sokoban(render_mode="rgb_array")
    env.reset(seed=3)
    first = Prompter(mode="base").first_messages(env)[1]["content"]
    assert f"State:\n{IMAGE}\n" in first and "#" not in first and "bricks are walls" in first
    assert (
        Prompter().next_message(env, turn=2, actions_left=9, reward=0)["content"].count(IMAGE) == 1
    )
    with_states = Prompter(mode="add_worldmodel").first_messages(env)[1]["content"]
    # responses write the state as text
    assert IMAGE in with_states and "Symbols: # wall" in with_states
    env = Sokoban()
    env.reset(seed=3)
    assert env.image() is None and IMAGE not in Prompter().first_messages(env)[1]["content"]


def test_a_png_is_the_frame():
    env = Sokoban(render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.image()
    assert frame is not None and frame.shape == (96, 96, 3)
    np.testing.assert_array_equal(from_png(to_png(frame)), frame)


def test_the_tokens_of_pictures_stand_in_the_episode(seen):
    _, _, template, episodes = seen
    for episode in episodes:
        ids = episode.token_ids
        assert ids is not None and episode.sampled is not None
        assert len(episode.images) == len(episode.turns) == 2
        assert (ids == template.images.image_id).sum() == sum(
            template.images.lengths(episode.images)
        )
        assert not (episode.sampled & (ids == template.images.image_id)).any()
        assert Episode.from_json(json.loads(json.dumps(episode.to_json()))).images == episode.images


def test_another_picture_gives_other_numbers(seen):
    """The model looks: the same tokens under another picture have other log-probs, and only from the picture on."""
    cfg, model, template, episodes = seen
    shown = ppo_rollouts.make_batch(cfg, episodes, template)
    other = [replace(episode, images=episodes[1 - i].images) for i, episode in enumerate(episodes)]
    swapped = ppo_rollouts.make_batch(cfg, other, template)
    with torch.no_grad():
        one, two = (
            token_logprobs(model, b.input_ids, b.mask, images=b.images)[0] for b in (shown, swapped)
        )
    assert ((one - two).abs().amax(1) > 1e-4).all()
    np.testing.assert_allclose(one[shown.mask], shown.sampler_logprobs[shown.mask], atol=1e-4)


def test_fine_tuning_reads_pictures(folder, data, tmp_path):
    examples = read_examples(data / "wm_train.parquet")
    assert all(
        len(example.images)
        == example.turn + 1
        == sum(m["content"].count(IMAGE) for m in example.prompt)
        for example in examples
    )
    cfg = config(folder, tmp_path)
    template = load_template(cfg, str(folder))
    (sequence, *_), dropped = training_sequences(
        examples, template, max_length=3000, merge_turns=True
    )
    assert dropped == 0 and len(sequence.images) == sequence.examples
    assert "#" in examples[0].response  # the states of the response are text
    checkpoint = pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    losses = [
        json.loads(line)["train/loss"]
        for line in (tmp_path / "sft/metrics.jsonl").read_text().splitlines()
    ]
    assert len(losses) == 2 and all(0 < loss < 20 for loss in losses)
    # its processor is saved too
    assert load_template(cfg, str(checkpoint)).images is not None


def test_self_play_ppo_and_evaluation(folder, tmp_path):
    cfg = config(folder, tmp_path, "generate.policy=self")
    # random weights never write the format; they do play
    with pytest.raises(Exception, match="format"):
        selfplay.run_self_play(cfg, directory=tmp_path / "data")
    checkpoint = ppo_run.run_ppo(cfg, directory=tmp_path / "ppo")
    steps = [
        json.loads(line) for line in (tmp_path / "ppo" / "metrics.jsonl").read_text().splitlines()
    ][1:]
    assert len(steps) == 2
    assert all(step["rollout/logprob_gap_max"] < 1e-3 for step in steps)
    assert all(step["actor/grad_norm"] > 0 and step["critic/grad_norm"] > 0 for step in steps)
    before, after = (load_policy(str(path)).state_dict() for path in (folder, checkpoint))
    vision = [key for key in before if "visual" in key or "vision_tower" in key]
    # gradients reach the eyes
    assert any(not torch.equal(before[key], after[key]) for key in vision)
    result = evaluate.evaluate_target(
        cfg, find_target(str(checkpoint)), output=tmp_path / "eval.json", ks=[1]
    )
    assert result["tags"]["VisualSimpleSokoban"]["episodes"] == 2


def test_batches_do_not_change_responses_and_rows_are_not_packed(seen):
    *parts, episodes = seen
    (alone,) = played(*parts, slice(1, None))
    assert alone.token_ids.tolist() == episodes[1].token_ids.tolist()
    assert not pack_rows(parts[1])


def test_who_does_not_see_is_told(folder, tmp_path):
    text = save_family("qwen2", tmp_path / "text")
    with pytest.raises(ModelError, match=r"reads only text.*render_mode: text"):
        ppo_run.run_ppo(config(text, tmp_path), directory=tmp_path / "ppo")
    blind = shutil.copytree(folder, tmp_path / "blind")
    (blind / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="image processor"):
        ppo_run.run_ppo(config(blind, tmp_path), directory=tmp_path / "ppo")
    cfg = config(folder, tmp_path)
    with pytest.raises(ConfigError, match="name=local"):
        vllm_engine(cfg, str(folder), load_template(cfg, str(folder)), CPU)


def test_pictures_need_the_history(folder, tmp_path):
    alone = ("ctx_manager.history=false", "algorithm.adv_estimator=reinforce_plus_plus")
    with pytest.raises(ConfigError, match=r"history=true, or show text .*render_mode: text"):
        ppo_run.run_ppo(config(folder, tmp_path, *alone), directory=tmp_path / "ppo")


def test_text_games_with_a_model_that_sees(folder, tmp_path):
    tags = "=[FrozenLakeNoSlip]"
    tags = [f"es_manager.{part}.env_configs.tags{tags}" for part in ("train", "val")]
    ppo_run.run_ppo(
        config(folder, tmp_path, *tags, "trainer.total_training_steps=1"),
        directory=tmp_path / "ppo",
    )
    *_, step = [
        json.loads(line) for line in (tmp_path / "ppo" / "metrics.jsonl").read_text().splitlines()
    ]
    assert step["rollout/logprob_gap_max"] < 1e-3


def test_a_pinned_template_writes_pictures_too(folder, tmp_path):
    cfg = config(folder, tmp_path)
    before = load_template(cfg, str(folder))
    (folder_with_trim := tmp_path / "trimmed").mkdir()
    for path in folder.iterdir():
        (folder_with_trim / path.name).write_bytes(path.read_bytes())
    place = folder_with_trim / "chat_template.jinja"
    place.write_text(
        place.read_text().replace("{{- message['content'] -}}", "{{- message['content'] | trim -}}")
    )
    after = load_template(cfg, str(folder_with_trim))
    assert after.pinned and after.images is not None and not before.pinned
    parts = [{"type": "text", "text": "seen: "}, {"type": "image"}]
    talk = [{"role": "system", "content": "Rules."}, {"role": "user", "content": parts}]
    texts = [made.tokenizer.apply_chat_template(talk, tokenize=False) for made in (before, after)]
    assert texts[0] == texts[1] and "<|image_pad|>" in texts[0]


def test_the_models_image_token_in_a_text_is_text(folder, tmp_path):
    template = load_template(config(folder, tmp_path), str(folder))
    ids = template.start(({"role": "user", "content": "<|image_pad|>"},), "")
    assert template.images is not None and template.images.image_id not in ids
