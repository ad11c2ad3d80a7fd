"""A model trained under a pinned template, read by plain transformers: token for token what it was trained on."""

import shutil

import numpy as np
import pytest
from helpers.families import random_model
from helpers.runs import small_config
from helpers.template_families import styled_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from spa.models.build import load_template
from spa.prompts.template import appended, joined_borders
from spa.recipes import pipeline, selfplay
from spa.recipes.setup import make_worker
from spa.worldmodel import sft_data
from spa.worldmodel.sft_files import read_examples

LONG = (
    "actor_rollout_ref.rollout.max_model_len=4096",
    "sft.data.max_length=4096",
    "sft.trainer.test_freq=9",
)


@pytest.fixture(scope="module")
def data(base, tmp_path_factory):
    return selfplay.run_self_play(
        small_config(base, tmp_path_factory.mktemp("generate"), "generate.num_batches=1")
    )


def save_styled(name, folder):
    """A folder with a tiny random model of a style, and its generation config."""
    made = styled_tokenizer(name)
    model = random_model(
        LlamaConfig(
            vocab_size=len(made),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=48,
            max_position_embeddings=8192,
            pad_token_id=made.pad_token_id,
            bos_token_id=made.bos_token_id,
            eos_token_id=made.eos_token_id,
        ),
        seed=0,
    )
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["mistral_v03", "chatglm2", "llama2"])
def test_plain_transformers_read_from_the_checkpoint_what_was_trained(name, data, tmp_path):
    model = save_styled(name, tmp_path / "model")
    cfg = small_config(
        model, tmp_path, *LONG, "sft.trainer.total_training_steps=1", "sft.data.merge_turns=false"
    )
    template = load_template(cfg, str(model))
    assert template.pinned
    pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    checkpoint = tmp_path / "sft" / "global_step_1"
    shutil.rmtree(model)  # whoever serves the checkpoint has nothing else
    plain = AutoTokenizer.from_pretrained(checkpoint)
    examples = read_examples(data / selfplay.TRAIN_FILE)
    trained, _ = sft_data.load_data(cfg, template, data)
    assert len(examples) == len(trained) and max(example.turn for example in examples) > 0
    for example, sequence in zip(examples, trained, strict=True):
        talk = [*example.prompt, {"role": "assistant", "content": example.response}]
        text = plain.apply_chat_template(talk, tokenize=False)
        ids, mask = sequence.token_ids.tolist(), sequence.mask
        served = plain(text, add_special_tokens=False)["input_ids"]
        assert plain.decode(served) == plain.decode(ids)
        prompt, borders = appended(template, example.prompt)
        assert prompt == ids[: borders[-1]] and int(np.flatnonzero(mask)[0]) == borders[-1]
        joined_borders(ids, served, [*borders, len(ids) - len(template.end_ids)])
        asked = plain.apply_chat_template(
            [*example.prompt, {"role": "assistant", "content": "<think>"}],
            tokenize=False,
            continue_final_message=True,
        )
        joined_borders(prompt, plain(asked, add_special_tokens=False)["input_ids"], borders[:-1])
    ends = AutoModelForCausalLM.from_pretrained(checkpoint).generation_config.eos_token_id
    assert set(ends) == template.stop_ids


def test_the_next_stage_prompts_as_the_one_before(data, tmp_path):
    model = save_styled("mistral_v03", tmp_path / "model")
    cfg = small_config(model, tmp_path, *LONG, "sft.trainer.total_training_steps=1")
    before = load_template(cfg, str(model))
    pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    after = load_template(cfg, str(tmp_path / "sft" / "global_step_1"))
    assert not after.pinned
    player = make_worker(cfg, before, mode="add_worldmodel")
    ((tag, prompter),) = player.prompters.items()
    env = player.make_env(tag)
    env.reset(seed=1)
    messages, later = (
        prompter.first_messages(env),
        prompter.next_message(env, turn=2, actions_left=3, reward=0.0),
    )
    assert after.start(messages, "<think>") == before.start(messages, "<think>")
    assert after.follow(later["content"], "<think>") == before.follow(later["content"], "<think>")
