"""The local engine against the plain forward pass: whatever it caches, shares or drops, the numbers are the model's."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.families import NAMES, small_model, template, windowed_model
from helpers.model_folders import without_sdpa
from helpers.play import groups, one_group, play

from spa.engines import local
from spa.engines.kv_cache import shared_beginnings
from spa.engines.local import LocalEngine
from spa.errors import ModelError
from spa.prompts.template import ChatTemplate
from spa.types import Completion, Episode, Prompt, SamplingParams

SAMPLING = SamplingParams(max_tokens=12)


def ending_template(name: str, share: int = 8) -> ChatTemplate:
    """The family's template, with many tokens that end a response, so that random models write responses of all lengths."""
    made = template(name)
    made.stop_ids = made.stop_ids | frozenset(range(0, len(made.tokenizer), share))
    return made


def prompts(made: ChatTemplate, count: int, *, same: bool = False, seed: int = 0) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        text = "The rules." if same else "the state of play "[: int(rng.integers(2, 18))] + str(i)
        messages = ({"role": "system", "content": "You play."}, {"role": "user", "content": text})
        ids = np.asarray(made.start(messages, "<think>"), dtype=np.int32)
        out.append(
            Prompt(
                episode_id=f"e{i}",
                messages=messages,
                token_ids=ids,
                prefill="<think>",
                seed=100 + i,
                turns_left=2,
            )
        )
    return out


def forward_logprobs(model, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Of the response's ids after the prompt, by one forward pass over one row, without any cache."""
    ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].float()
    logprobs = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    return logprobs.gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()


def check_against_forward(model, asked: list[Prompt], found: list[Completion]) -> None:
    for prompt, completion in zip(asked, found, strict=True):
        expected = forward_logprobs(model, prompt.token_ids, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def check_episodes(model, episodes: list[Episode]) -> None:
    for episode in episodes:
        expected = forward_logprobs(model, episode.token_ids[:1], episode.token_ids[1:])
        sampled = episode.sampled[1:]
        np.testing.assert_allclose(episode.logprobs[1:][sampled], expected[sampled], atol=1e-4)


def texts(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in completions]


@pytest.mark.parametrize("name", NAMES)
def test_logprobs_over_several_turns_are_those_of_one_forward_pass(name):
    made, model = ending_template(name), small_model(name)
    engine = LocalEngine(model, made)
    assert not engine.safe
    episodes = play(groups(2, 3), engine, made, max_turn=3, max_tokens=10)
    assert {len(episode.turns) for episode in episodes} == {3}
    # of many lengths
    assert len({len(turn.response_text) for episode in episodes for turn in episode.turns}) > 3
    check_episodes(model, episodes)


class Forgetful(LocalEngine):
    """Keeps no cache from turn to turn."""

    def generate(self, prompts, sampling):
        answers = super().generate(prompts, sampling)
        self.forget([prompt.episode_id for prompt in prompts])
        return answers


def test_cached_and_uncached_play_agree():
    made, model = ending_template("qwen2"), small_model("qwen2")
    cached = play(groups(2, 3), LocalEngine(model, made), made, max_turn=3, max_tokens=10)
    fresh = play(groups(2, 3), Forgetful(model, made), made, max_turn=3, max_tokens=10)
    for a, b in zip(cached, fresh, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def counting(monkeypatch, engine: LocalEngine) -> list[tuple[int, int]]:
    """The shapes [rows, tokens] of everything that the model is asked to read from now on."""
    shapes, sampler = [], type(engine.sampler)
    forward = sampler.__call__

    def counted(*args, input_ids, **kwargs):
        shapes.append(tuple(input_ids.shape))
        return forward(*args, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(sampler, "__call__", counted)
    return shapes


def test_a_turn_reads_only_its_new_tokens(monkeypatch):
    made = template("qwen2")
    engine = LocalEngine(small_model("qwen2"), made)
    shapes = counting(monkeypatch, engine)
    (episode,) = play(one_group(), engine, made, max_turn=2, max_tokens=4)
    first = int(np.flatnonzero(episode.sampled)[0])
    second = len(made.follow(episode.messages[3]["content"], "<think>", response=()))
    reads = [tokens for _, tokens in shapes if tokens > 1]
    # and the last token of the first response, which nobody had read yet
    assert reads == [first, second + 1]


def test_the_prompt_of_a_group_is_read_once(monkeypatch):
    made = template("qwen2")
    engine = LocalEngine(small_model("qwen2"), made)
    shapes = counting(monkeypatch, engine)
    asked = prompts(made, 5, same=True)
    shared = engine.generate(asked, SAMPLING)
    assert [rows for rows, tokens in shapes if tokens > 1] == [1]
    assert len({tuple(ids) for ids in texts(shared)}) == 5  # yet all five say something else
    alone = [LocalEngine(engine.model, made).generate([prompt], SAMPLING)[0] for prompt in asked]
    assert texts(shared) == texts(alone)
    check_against_forward(engine.model, asked, shared)


def test_what_some_prompts_begin_with_alike_is_read_once(monkeypatch):
    monkeypatch.setattr(local, "_HELD_ONCE", 0)
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made)
    shapes = counting(monkeypatch, engine)
    asked = [
        replace(
            prompt,
            episode_id=f"{prompt.episode_id}#{n}",
            token_ids=np.append(prompt.token_ids, more),
        )
        for prompt in prompts(made, 3)
        for n, more in enumerate(([5], [6, 7], [5, 6]))
    ]
    order = (4, 0, 8, 2, 6, 1, 3, 7, 5)
    responses = engine.generate([asked[i] for i in order], SAMPLING)
    read = [shape for shape in shapes if shape[1] > 1]
    found = [responses[order.index(i)] for i in range(9)]
    check_against_forward(model, asked, found)
    assert texts(found) == texts(
        [LocalEngine(model, made).generate([prompt], SAMPLING)[0] for prompt in asked]
    )
    assert 2 * sum(rows * tokens for rows, tokens in read) < sum(
        len(prompt.token_ids) for prompt in asked
    )


def test_rows_are_grouped_by_what_they_begin_with_if_that_is_less_to_read():
    places = [list(range(place, place + 20)) for place in (0, 100)]
    rows = [np.array([*place, *rest]) for rest in ([1], [2, 3], [2, 4]) for place in places]
    assert shared_beginnings(rows) == [(0, 20), (1, 20)] * 3
    assert shared_beginnings(rows[:2]) is None  # two places and no more: nothing is alike
    # every row keeps a token for itself
    assert shared_beginnings([rows[0], rows[2], rows[4][:15]]) == [(0, 14)] * 3
    assert shared_beginnings([row[12:] for row in rows]) == [(0, 8), (1, 8)] * 3
    three, near = (
        [rows[0], rows[2], rows[4]],
        [np.append(rows[0][:share], [99] * 5) for share in (15, 16)],
    )
    # three would lose five tokens, one gain 15
    assert shared_beginnings([*three, near[0]]) == [*[(0, 20)] * 3, (1, 19)]
    assert shared_beginnings([*three, near[1]]) == [(0, 16)] * 4


def test_rows_that_were_cached_beside_others_share_what_they_have_in_common_now(monkeypatch):
    monkeypatch.setattr(local, "_HELD_ONCE", 0)
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made)
    alike, others = (
        prompts(made, 3, same=True),
        [replace(p, episode_id=f"o{p.seed}") for p in prompts(made, 3)],
    )
    for part in (alike, others, others[:1]):
        told = engine.generate(part, SAMPLING)
        for prompt, response in zip(part, told, strict=True):
            ids = np.concatenate([prompt.token_ids, response.token_ids, prompt.token_ids[-8:]])
            asked = alike if part is alike else others
            asked[[each.seed for each in asked].index(prompt.seed)] = replace(prompt, token_ids=ids)
    heads = {
        name: kv.store.head[0][0].shape[1] for name, kv in engine._episodes.items() if kv.store.head
    }
    assert heads["e0"] > heads["o101"] > 0 and "o100" not in heads  # a row alone shares nothing
    new = [replace(prompt, episode_id=f"n{prompt.seed}") for prompt in prompts(made, 2, seed=9)]
    together = [*others, *alike, *new]
    found = engine.generate(together, SAMPLING)
    check_against_forward(model, together, found)
    assert texts(found) == texts(
        [LocalEngine(model, made).generate([prompt], SAMPLING)[0] for prompt in together]
    )


def test_what_is_held_once_is_read_once_and_takes_no_room_in_a_row(monkeypatch):
    made, model = template("qwen2"), small_model("qwen2")
    asked = prompts(made, 5)
    engines = [LocalEngine(model, made) for _ in range(2)]
    engines[0].generate(asked, SAMPLING)
    monkeypatch.setattr(local, "_HELD_ONCE", 0)
    shapes = counting(monkeypatch, engines[1])
    engines[1].generate(asked, SAMPLING)
    usual, held = (
        {kv.store.keys[0].shape[2] for kv in engine._episodes.values()} for engine in engines
    )
    (rows, shared), (more, rest) = [shape for shape in shapes if shape[1] > 1]
    assert (rows, more) == (1, 5) and shared + rest == max(
        len(prompt.token_ids) for prompt in asked
    )
    assert max(held) + shared == max(usual)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_rows_that_leave_change_nothing_for_the_others(monkeypatch, threshold):
    made, model = ending_template("qwen2", share=6), small_model("qwen2")
    asked = prompts(made, 9)
    usual = LocalEngine(model, made).generate(asked, SAMPLING)
    assert len({len(completion.token_ids) for completion in usual}) > 2
    monkeypatch.setattr(local, "_SHRINK_AT", threshold)
    found = LocalEngine(model, made).generate(asked, SAMPLING)
    assert texts(found) == texts(usual)
    for a, b in zip(found, usual, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
    check_against_forward(model, asked, found)


def test_finished_rows_leave_the_batch(monkeypatch):
    made = ending_template("qwen2", share=3)
    engine = LocalEngine(small_model("qwen2"), made)
    shapes = counting(monkeypatch, engine)
    engine.generate(prompts(made, 9), SAMPLING)
    sizes = [rows for rows, tokens in shapes if tokens == 1]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 9


def test_draws_belong_to_the_row_and_not_to_the_batch():
    made, model = ending_template("qwen2"), small_model("qwen2")
    asked = prompts(made, 8)
    together = LocalEngine(model, made).generate(asked, SAMPLING)
    alone = [LocalEngine(model, made).generate([prompt], SAMPLING)[0] for prompt in asked]
    reversed_ = LocalEngine(model, made).generate(asked[::-1], SAMPLING)[::-1]
    by_threes = LocalEngine(model, made, max_rows=3).generate(asked, SAMPLING)
    assert texts(together) == texts(alone) == texts(reversed_) == texts(by_threes)
    other = LocalEngine(model, made).generate([replace(asked[0], seed=999)], SAMPLING)
    assert texts(other) != texts(together)[:1]
    assert LocalEngine(model, made).generate([], SAMPLING) == []


def test_a_completion_says_how_it_ended():
    made, model = ending_template("qwen2", share=6), small_model("qwen2")
    found = LocalEngine(model, made, version=7).generate(
        prompts(made, 12), SamplingParams(max_tokens=4)
    )
    assert {completion.finish_reason for completion in found} == {"stop", "length"}
    for completion in found:
        ids = completion.token_ids.tolist()
        ended = ids[-1] in made.stop_ids
        assert (completion.finish_reason == "stop") == ended
        assert ended or len(ids) == 4
        assert not any(i in made.stop_ids for i in ids[:-1])
        assert completion.text == made.decode_response(ids)
        assert (completion.token_ids.dtype, completion.logprobs.dtype) == (np.int32, np.float32)
        assert completion.version == 7


def test_greedy_responses_are_the_most_likely_tokens():
    made, model = template("llama3"), small_model("llama3")
    (prompt,) = prompts(made, 1)
    (found,) = LocalEngine(model, made).generate(
        [prompt], SamplingParams(max_tokens=6, temperature=0.0)
    )
    ids = prompt.token_ids.tolist()
    for token in found.token_ids.tolist():
        with torch.no_grad():
            assert model(input_ids=torch.tensor([ids])).logits[0, -1].argmax() == token
        ids.append(token)


def test_new_weights_make_the_engine_read_everything_anew():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made)
    (prompt,) = prompts(made, 1)
    (response,) = engine.generate([prompt], SAMPLING)
    ids = np.concatenate(
        [prompt.token_ids, response.token_ids, made.follow("on", "<think>", response=())]
    )
    later = replace(prompt, token_ids=ids.astype(np.int32))
    engine.load_weights(small_model("qwen2", seed=1), version=3)  # another model of the same shape
    (found,) = engine.generate([later], SAMPLING)
    assert found.version == 3
    check_against_forward(small_model("qwen2", seed=1), [later], [found])


def test_weights_changed_in_place_need_only_be_announced():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made)
    asked = prompts(made, 2)
    engine.generate(asked, SAMPLING)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    engine.load_weights(model, version=1)
    check_against_forward(model, asked, engine.generate(asked, SAMPLING))


def test_episodes_that_are_over_are_forgotten():
    made = template("qwen2")
    engine = LocalEngine(small_model("qwen2"), made)
    engine.generate(prompts(made, 3), SAMPLING)
    assert set(engine._episodes) == {"e0", "e1", "e2"}
    engine.forget(["e1", "never seen"])
    assert set(engine._episodes) == {"e0", "e2"}
    engine.close()
    assert not engine._episodes
    play(groups(1, 2), engine, made, max_turn=2, max_tokens=3)
    assert not engine._episodes  # collect forgets what is over


def test_what_nobody_asks_for_gives_its_memory_back_and_the_others_go_on():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine, asked = LocalEngine(model, made, max_rows=16), prompts(made, 8)
    told = engine.generate(asked, SAMPLING)
    engine.forget(["e0", "e2", "e3", "e4", "e6", "e7"])
    kept = [engine._episodes[name] for name in ("e1", "e5")]
    assert sum(len(store.keys[0]) for store in {each.store for each in kept}) < 8
    longer = [
        replace(p, token_ids=np.concatenate([p.token_ids, told[i].token_ids, p.token_ids]))
        for i, p in ((1, asked[1]), (5, asked[5]))
    ]
    check_against_forward(model, longer, engine.generate(longer, SAMPLING))


def test_episodes_that_are_not_asked_for_together_do_not_keep_what_the_others_had():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine, asked = LocalEngine(model, made), prompts(made, 8)
    for turn in range(4):
        some = asked if turn == 0 else asked[: 8 >> turn]
        told = engine.generate(some, SAMPLING)
        for i, (prompt, response) in enumerate(zip(some, told, strict=True)):
            asked[i] = replace(
                prompt,
                token_ids=np.concatenate([prompt.token_ids, response.token_ids, prompt.token_ids]),
            )
    stores = {kv.store for kv in engine._episodes.values()}
    assert sum(len(store.keys[0]) for store in stores) < 2 * len(engine._episodes) == 16
    engine.generate([replace(prompt, continued=False) for prompt in asked], SAMPLING)
    assert not engine._episodes  # nobody goes on


def test_a_cache_of_another_conversation_is_not_used():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made)
    engine.generate(prompts(made, 2, seed=1), SAMPLING)
    asked = [
        replace(prompt, episode_id=f"e{i}")
        for i, prompt in enumerate(prompts(made, 2, seed=5)[::-1])
    ]
    check_against_forward(model, asked, engine.generate(asked, SAMPLING))


@pytest.mark.parametrize("kind", ["windowed", "mistral"])
def test_models_with_a_window_take_the_safe_path_and_are_right(kind, caplog):
    name = "gemma" if kind == "windowed" else "mistral"
    model = windowed_model() if kind == "windowed" else small_model("mistral", sliding_window=16)
    made = ending_template(name)
    with caplog.at_level(logging.WARNING):
        engine = LocalEngine(model, made)
    assert engine.safe
    assert "windowed" in caplog.text
    episodes = play(groups(2, 2), engine, made, max_turn=2, max_tokens=10)
    assert min(len(episode.token_ids) for episode in episodes) > 32  # much more than the window
    check_episodes(model, episodes)
    assert not engine._episodes


LIKE_LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
LIKE_GPT = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 16}
OTHERS = {
    "mpt": (
        transformers.MptConfig,
        {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 4096},
    ),
    "bloom": (transformers.BloomConfig, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": (
        transformers.GPTNeoConfig,
        {**LIKE_GPT, "attention_types": [[["global", "local"], 1]]},
    ),
    "phi": (transformers.PhiConfig, LIKE_LLAMA),
    "mamba": (
        transformers.MambaConfig,
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    "rwkv": (transformers.RwkvConfig, {"hidden_size": 32, "num_hidden_layers": 2}),
    "deepseek_v3": (
        transformers.DeepseekV3Config,
        {
            **LIKE_LLAMA,
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "first_k_dense_replace": 2,
        }
        | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6},
    ),
}


def other_model(name: str) -> Any:
    config, settings = OTHERS[name]
    return without_sdpa(
        config(vocab_size=len(template("qwen2").tokenizer), initializer_range=0.15, **settings)
    )


@pytest.mark.parametrize(("name", "safe"), [("gpt_neo", 1), ("phi", 0), ("deepseek_v3", 0)])
def test_other_architectures_are_tried_out_and_are_right(name, safe):
    made, model, state = ending_template("qwen2"), other_model(name), torch.random.get_rng_state()
    engine = LocalEngine(model, made)
    assert engine.safe == bool(safe)
    assert not engine._episodes
    assert torch.equal(torch.random.get_rng_state(), state)
    check_episodes(model, play(groups(2, 3), engine, made, max_turn=3, max_tokens=10))


@pytest.mark.parametrize("name", ["mamba", "rwkv", "mpt", "bloom"])
def test_an_architecture_that_cannot_be_read_token_by_token_is_refused(name):
    with pytest.raises(ModelError, match=f"cannot sample from the architecture {name}"):
        LocalEngine(other_model(name), template("qwen2"))


def test_the_model_goes_back_to_the_mode_it_was_in():
    made, model = template("qwen2"), small_model("qwen2")
    for training in (True, False):
        model.train(training)
        LocalEngine(model, made).generate(prompts(made, 1), SAMPLING)
        assert model.training == training


def test_flash_attention_takes_the_safe_path_where_the_model_is_not_read_by_us():
    for name, safe in (("qwen3", True), ("qwen2", False)):
        model = small_model(name)
        # The kernels need a GPU; the engine looks at the name alone.
        model.config._attn_implementation = "flash_attention_2"
        assert LocalEngine(model, template(name)).safe == safe


def test_a_model_whose_numbers_overflow_is_named_and_not_the_learning_rate():
    model = small_model("qwen2")
    engine = LocalEngine(model, template("qwen2"))
    with torch.no_grad():
        model.model.norm.weight.fill_(float("inf"))
    with pytest.raises(
        ModelError, match="NaN or infinite, although its weights were finite when spa loaded them"
    ):
        engine.generate(prompts(template("qwen2"), 2), SAMPLING)
