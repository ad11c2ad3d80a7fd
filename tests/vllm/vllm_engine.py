"""vLLM for real, on a CPU: `make test-extra NAME=vllm`. Not collected by `make test`, because it needs an environment of its own."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.families import small_model
from helpers.model_folders import save_family

from spa.config.load import load_config
from spa.engines.factory import make_engine
from spa.engines.local import LocalEngine
from spa.errors import TrainingError
from spa.models.build import load_actor
from spa.models.forward import PLAIN, token_logprobs
from spa.models.lora import add_adapters
from spa.prompts.template import appended, joined_borders, prefill_of
from spa.prompts.template_parts import CONVERSATIONS, SYSTEM_TURN, alternate
from spa.recipes import ppo_run
from spa.types import Completion, Prompt, SamplingParams
from spa_engines.vllm import VllmEngine, vllm_engine

CPU = torch.device("cpu")
SETTINGS = (
    "state_text=coords",
    "ctx_manager.example=false",
    "agent_proxy.max_turn=2",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=4",
    "es_manager.train.env_configs.tags=[FrozenLakeNoSlip]",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=1",
    "es_manager.val.env_configs.tags=[FrozenLakeNoSlip]",
    "ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.optim.lr=0.01",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.response_length=12",
    "actor_rollout_ref.rollout.max_model_len=2048",
    "actor_rollout_ref.rollout.max_num_seqs=16",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "trainer.total_training_steps=3",
    "trainer.validation_steps=1",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.logger=[]",
    "trainer.kl_stop=0.0001",
)


@pytest.fixture(scope="module", params=["qwen2", "llama3"])
def family(request, tmp_path_factory) -> Path:
    """A tied and an untied model, with the narrowest heads that vLLM's attention has on a CPU."""
    folder = tmp_path_factory.mktemp("families") / request.param
    save_family(request.param, folder)
    tied = request.param == "qwen2"
    small_model(
        request.param, hidden_size=128, head_dim=32, tie_word_embeddings=tied
    ).save_pretrained(folder)
    return folder


def config(model: Path, run: Path, *overrides: str):
    return load_config(
        "base", [*SETTINGS, f"model_path={model}", f"trainer.run_dir={run}", *overrides]
    )


@pytest.fixture(scope="module")
def loaded(family, tmp_path_factory):
    """(trainer's model, engine, prompts): one engine for all tests of a family, because starting one takes long."""
    cfg = config(family, tmp_path_factory.mktemp("run"))
    model, template = load_actor(cfg, str(family), CPU)
    engine = make_engine(cfg, str(family), template, CPU)
    assert isinstance(engine, VllmEngine)
    prompts = []
    for number in range(6):
        text = "The state of play. " * (number % 3 + 1) + str(number)
        messages = ({"role": "system", "content": "You play."}, {"role": "user", "content": text})
        ids = np.asarray(template.start(messages, "<think>"), np.int32)
        prompts.append(
            Prompt(
                episode_id=f"e{number}",
                messages=messages,
                token_ids=ids,
                prefill="<think>",
                seed=number,
            )
        )
    yield model, engine, prompts
    engine.close()


def gaps(
    model,
    prompts: list[Prompt],
    responses: list[Completion],
    sampling: SamplingParams | None = None,
) -> float:
    """The largest difference of the engine's log-probs and those of the model that samples like this."""
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        assert response.token_ids is not None and response.logprobs is not None
        ids = torch.from_numpy(
            np.concatenate([prompt.token_ids, response.token_ids]).astype(np.int64)
        )[None]
        mask = torch.zeros((1, ids.shape[1] - 1), dtype=torch.bool)
        mask[0, len(prompt.token_ids) - 1 :] = True
        with torch.no_grad():
            expected = token_logprobs(model, ids, mask, sampling=sampling or PLAIN)[0][mask].numpy()
        found.append(np.abs(expected - response.logprobs).max())
    return float(max(found))


def test_log_probs_are_those_of_the_policy_that_samples(loaded):
    model, engine, prompts = loaded
    for how in (
        {},
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"top_k": 5},
        {"temperature": 1.3, "top_p": 0.6},
    ):
        sampling = SamplingParams(max_tokens=16, **how)
        responses = engine.generate(prompts, sampling)
        assert gaps(model, prompts, responses, sampling) < 1e-3, how
        assert {response.version for response in responses} == {engine.version}


def test_draws_belong_to_the_row(loaded):
    _, engine, prompts = loaded
    sampling = SamplingParams(max_tokens=16)
    together = engine.generate(prompts, sampling)
    alone = engine.generate(prompts[3:4], sampling)
    assert together[3].token_ids.tolist() == alone[0].token_ids.tolist()
    assert len({tuple(response.token_ids.tolist()) for response in together}) > 3


def test_a_second_turn_reads_what_the_first_has_written(loaded):
    model, engine, prompts = loaded
    responses = engine.generate(prompts, SamplingParams(max_tokens=8))
    later = [
        Prompt(
            episode_id=prompt.episode_id,
            messages=prompt.messages,
            token_ids=np.concatenate([prompt.token_ids, response.token_ids, prompt.token_ids[-5:]]),
            prefill=prompt.prefill,
            seed=prompt.seed + 100,
        )
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    assert gaps(model, later, engine.generate(later, SamplingParams(max_tokens=8))) < 1e-3


def test_weights_really_change_and_the_prefix_cache_is_dropped(loaded):
    model, engine, prompts = loaded
    sampling = SamplingParams(max_tokens=16)
    before = engine.generate(prompts, sampling)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    assert gaps(model, prompts, before) > 0.01
    engine.load_weights(model, version=engine.version + 1)
    after = engine.generate(prompts, sampling)
    assert gaps(model, prompts, after) < 1e-3
    assert after[0].version == before[0].version + 1


def test_an_engine_with_other_weights_is_refused(loaded):
    model, engine, _ = loaded
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.5)
    with pytest.raises(TrainingError, match="does not sample from the trainer's weights"):
        engine.check(model)
    engine.load_weights(model, version=engine.version + 1)
    assert engine.check(model) < 1e-3


def test_adapters_are_merged_on_the_way(loaded):
    model, engine, prompts = loaded
    add_adapters(model, rank=4, alpha=8, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(1))
    engine.load_weights(model, version=engine.version + 1)
    assert gaps(model, prompts, engine.generate(prompts, SamplingParams(max_tokens=8))) < 1e-3


def test_vllm_alone_serves_a_checkpoint_as_it_was_trained(tmp_path):
    """A model whose own template would cut earlier thoughts: text in, through vLLM's own tokenizer and template, gives
    the ids that episodes have, and the greedy ids of this process's engine."""
    import vllm

    folder = tmp_path / "model"
    save_family("qwen3", folder)
    small_model("qwen3", hidden_size=128, head_dim=32).save_pretrained(folder)
    model, template = load_actor(config(folder, tmp_path), str(folder), CPU)
    assert template.pinned
    model.save_pretrained(tmp_path / "checkpoint")
    template.save_pretrained(tmp_path / "checkpoint")
    served = vllm.LLM(
        model=str(tmp_path / "checkpoint"), dtype="float32", max_model_len=2048, enforce_eager=True
    )
    greedy = vllm.SamplingParams(temperature=0, max_tokens=8)
    engine = LocalEngine(model, template)
    for users, responses in CONVERSATIONS[:4]:
        talk = [SYSTEM_TURN, *alternate(users, responses)]
        prefill = prefill_of(talk) or "<think>"
        begun = [*talk, {"role": "assistant", "content": prefill}]
        (found,) = served.chat(
            begun, greedy, add_generation_prompt=False, continue_final_message=True, use_tqdm=False
        )
        ids, borders = appended(template, talk)
        ids = ids if prefill_of(talk) else template.start(tuple(talk), prefill)
        assert joined_borders(ids, list(found.prompt_token_ids), borders) == 0
        asked = Prompt(
            episode_id=str(len(talk)),
            messages=tuple(talk),
            token_ids=np.asarray(ids, np.int32),
            prefill=prefill,
            seed=0,
        )
        (expected,) = engine.generate([asked], SamplingParams(temperature=0.0, max_tokens=8))
        assert list(found.outputs[0].token_ids) == expected.token_ids.tolist()
    served.llm_engine.engine_core.shutdown()


def test_three_ppo_steps(family, tmp_path):
    checkpoint = ppo_run.run_ppo(config(family, tmp_path), directory=tmp_path / "ppo")
    assert checkpoint.name == "global_step_3"
    lines = [
        json.loads(line) for line in (tmp_path / "ppo" / "metrics.jsonl").read_text().splitlines()
    ]
    steps = [line for line in lines if "rollout/mismatch_kl" in line]
    assert len(steps) == 3
    assert all(line["rollout/logprob_gap_max"] < 1e-3 for line in steps)
    assert all(line["actor/grad_norm"] > 0 for line in steps)


def test_the_factory_says_when_the_model_does_not_fit(family, tmp_path):
    cfg = config(family, tmp_path, "actor_rollout_ref.rollout.engine_kwargs={max_model_len: 99999}")
    _, template = load_actor(config(family, tmp_path), str(family), CPU)
    with pytest.raises(Exception, match=r"max_model_len|vLLM cannot load"):
        vllm_engine(cfg, str(family), template, CPU)
