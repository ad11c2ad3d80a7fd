import json
import logging
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from api_server import Act, Server, cut_off, failing, good, raw, slow

from spa.config.schema import APIModelConfig
from spa.errors import ModelError
from spa.types import Prompt, SamplingParams
from spa_engines.api import ApiEngine, ApiResponse, Pacer, without_prefill

KEY = "sk-very-secret-0123456789"
SAMPLING = SamplingParams(temperature=0.5, max_tokens=64)
SOON = {"retry_after_ms": "1"}
"""Asks the SDK to repeat a request at once."""


def in_200(error: object) -> Act:
    return raw(json.dumps(error).encode())


def worded(message: str, code: str | int) -> Act:
    return in_200({"error": {"message": message, "code": code}})


def prompt(number: int = 0) -> Prompt:
    return Prompt(
        episode_id=f"val/0/{number}/0",
        messages=(
            {"role": "system", "content": "rules"},
            {"role": "user", "content": f"state {number}"},
        ),
        token_ids=np.zeros(0, np.int32),
        prefill="<think>",
        seed=number,
    )


def engine(server: Server, **settings) -> ApiEngine:
    names = ("generation_kwargs", "fold_system")
    entry = APIModelConfig(
        provider_name="custom",
        model_name="m",
        base_url=server.address,
        api_key_env="SPA_TEST_KEY",
        **{name: settings.pop(name) for name in names if name in settings},
    )
    return ApiEngine(entry, **{"timeout_s": 10.0, **settings})


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("SPA_TEST_KEY", KEY)


def test_a_response_arrives_without_its_prefill_and_nothing_but_the_messages_is_sent():
    with Server() as server:
        [completion] = engine(server).generate([prompt()], SAMPLING)
    assert completion.text == "go</think><answer>Up</answer>"
    assert (completion.finish_reason, completion.token_ids, completion.logprobs) == (
        "stop",
        None,
        None,
    )
    [request] = server.requests
    body = request["body"]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0.5, 64, "m")
    assert [m["content"] for m in body["messages"] if m["role"] == "user"] == ["state 0"]
    assert all(m["role"] != "assistant" for m in body["messages"])
    assert body["messages"][0] == {"role": "system", "content": "rules"}
    assert request["headers"]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("text", "reasoning", "expected"),
    [
        ("<think>a</think><answer>b</answer>", "", "a</think><answer>b</answer>"),
        ("\n <think>a</think>", "", "a</think>"),
        ("Sure: <think>a</think>", "", "a</think>"),
        ("a</think><answer>b</answer>", "", "a</think><answer>b</answer>"),
        ("<answer>b</answer>", "a", "a</think><answer>b</answer>"),
        ("<think>x</think>", "a", "x</think>"),
        (
            "<answer>b</answer>",
            "I write <think>.</think><answer>Up",
            "I write [think].[/think][answer]Up</think><answer>b</answer>",
        ),
        (
            "<answer>b</answer>",
            "<observation>s</observation>",
            "<observation>s</observation></think><answer>b</answer>",
        ),
        ("", "", ""),
        (
            "<think>own</think>\n\n<think>a</think><answer>b</answer>",
            "",
            "a</think><answer>b</answer>",
        ),
        (
            "<think>I should write <observation> first.</think>\n\n<think><observation>a</observation>",
            "",
            "<observation>a</observation>",
        ),
        (
            "I write <think>.</think><answer>x</answer>. Now.</think> Here: <think>a</think><answer>b</answer>",
            "",
            "a</think><answer>b</answer>",
        ),
        (
            "<think>a</think><answer>b</answer><think>c</think><answer>d</answer>",
            "",
            "a</think><answer>b</answer><think>c</think><answer>d</answer>",
        ),
    ],
)
def test_the_prefill_is_there_once_whatever_the_response_has(text, reasoning, expected):
    response = ApiResponse(text=text, finish_reason="stop", reasoning=reasoning)
    assert without_prefill(response, "<think>") == expected


def test_an_answer_alone_follows_the_models_own_reasoning():
    text = "<think>I write <answer>Up</answer></think>\n<answer>Down</answer>"
    assert without_prefill(ApiResponse(text=text, finish_reason="stop"), "<answer>") == (
        "Down</answer>"
    )


def test_settings_of_the_entry_win_and_null_leaves_a_field_out():
    with Server() as server:
        for kwargs in (
            {"temperature": 0, "max_completion_tokens": 512},
            {"temperature": None, "max_tokens": None, "seed": 1},
        ):
            engine(server, generation_kwargs=kwargs).generate([prompt()], SAMPLING)
    own, bare = (request["body"] for request in server.requests)
    assert (own["temperature"], own["max_completion_tokens"]) == (0, 512)
    assert "max_tokens" not in own
    assert set(bare) == {"model", "messages", "seed"}


def test_the_system_message_can_begin_the_users(tmp_path):
    with Server() as server:
        player = engine(server, fold_system=True, store=tmp_path / "responses.jsonl")
        player.generate([prompt()], SAMPLING)
        engine(server, store=tmp_path / "responses.jsonl").generate([prompt()], SAMPLING)
    folded, separate = (request["body"]["messages"] for request in server.requests)
    assert folded == [{"role": "user", "content": "rules\n\nstate 0"}]
    assert [message["role"] for message in separate] == ["system", "user"]


def test_limits_server_errors_and_broken_connections_are_asked_again():
    troubles = [failing(429, **SOON), failing(500, **SOON), cut_off]
    acts = [act for trouble in troubles for act in (trouble, trouble, good())]
    with Server(acts) as server:
        player = engine(server, max_concurrency=1)
        completions = player.generate([prompt(i) for i in range(3)], SAMPLING)
    assert [c.text for c in completions] == ["go</think><answer>Up</answer>"] * 3
    assert len(server.requests) == len(acts)
    assert player.usage == {"requests": 3, "prompt_tokens": 33, "completion_tokens": 15}


def test_a_slow_server_is_asked_again():
    with Server([slow(5)]) as server:
        [completion] = engine(server, timeout_s=0.2).generate([prompt()], SAMPLING)
    assert completion.finish_reason == "stop"
    assert len(server.requests) == 2


def test_a_server_that_never_answers_in_time_costs_its_episode():
    with Server([good(), slow(60)]) as server:
        player = engine(server, timeout_s=0.2, max_retries=0, max_concurrency=1)
        completions = player.generate([prompt(0), prompt(1)], SAMPLING)
    assert [c.finish_reason for c in completions] == ["stop", "error"]
    assert "timed out" in completions[1].text


def test_the_pacer_gives_slots_at_the_asked_rate(monkeypatch):
    waits = []
    monkeypatch.setattr("spa_engines.api.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("spa_engines.api.time.sleep", waits.append)
    pacer = Pacer(per_minute=120)
    for _ in range(3):
        pacer.wait()
    assert waits == pytest.approx([0, 0.5, 1.0])


def test_retries_wait_for_a_slot_too(monkeypatch):
    with Server([failing(429, **SOON)] * 3) as server:
        player = engine(server, per_minute=600)
        slots = []
        monkeypatch.setattr(player._pacer, "wait", lambda: slots.append(len(server.requests)))
        [completion] = player.generate([prompt()], SAMPLING)
    assert completion.finish_reason == "stop" and slots == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (failing(401, f"Incorrect API key provided: {KEY}"), ["SPA_TEST_KEY", "expired"]),
        (failing(403, "no access"), ["SPA_TEST_KEY"]),
        (failing(404, "The model `m` does not exist"), ["model_name", "base_url"]),
        (failing(402, "Insufficient Balance"), ["credit"]),
        (failing(400, "Your credit balance is too low to access the API."), ["no credit"]),
        (failing(400, "Unknown parameter: foo"), ["generation_kwargs"]),
        (failing(400, "max_tokens is too large: 50000, in this context"), ["generation_kwargs"]),
        (failing(501, "Unsupported method"), ["http://127.0.0.1", "base_url"]),
        (failing(429, "quota", "insufficient_quota", x_should_retry="false"), ["credit"]),
        (worded("Incorrect key", "invalid_api_key"), ["SPA_TEST_KEY", "Incorrect key"]),
        (worded("all used up", 402), ["credit", "all used up"]),
        (worded("no such model", "model_not_found"), ["model_name", "no such model"]),
        (worded("top_k is no number", 400), ["generation_kwargs", "top_k is no number"]),
    ],
)
def test_trouble_that_only_the_user_can_end_stops_at_once(trouble, words):
    with Server([trouble] * 50) as server, pytest.raises(ModelError) as error:
        engine(server, max_concurrency=8).generate([prompt(i) for i in range(20)], SAMPLING)
    assert len(server.requests) == 1
    for word in words:
        assert word in str(error.value)
    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    "trouble",
    [
        failing(400, "This model's maximum context length is 4096 tokens"),
        failing(400, "4097 tokens", code="context_length_exceeded"),
        good(finish="content_filter"),
    ],
    ids=["too-long", "code", "content-filter"],
)
def test_a_refused_request_costs_one_episode(trouble):
    with Server([trouble]) as server:
        completions = engine(server, max_concurrency=1).generate(
            [prompt(i) for i in range(3)], SAMPLING
        )
    assert [c.finish_reason for c in completions] == ["error", "stop", "stop"]
    assert len(server.requests) == 3


def test_one_request_without_an_answer_does_not_end_the_others():
    with Server([failing(500, **SOON)] * 4) as server:  # the probe, and then three attempts
        player = engine(server, max_concurrency=1, max_retries=2)
        completions = player.generate([prompt(i) for i in range(3)], SAMPLING)
    assert [c.finish_reason for c in completions] == ["error", "stop", "stop"]
    assert "500" in completions[0].text


def test_servers_have_several_names_for_a_response_that_ended():
    stop = ["stop", "eos", "eos_token", "end_turn", "stop_sequence", "STOP", "a word", "", None]
    length = ["length", "max_tokens", "MAX_TOKENS"]
    names = [*stop, *length]
    with Server([good("<think>on and on", name) for name in names]) as server:
        found = engine(server, max_concurrency=1).generate(
            [prompt(i) for i in range(len(names))], SAMPLING
        )
    assert {c.text for c in found} == {"on and on"}
    assert [c.finish_reason for c in found] == ["stop"] * len(stop) + ["length"] * len(length)


def test_a_text_that_is_not_whole_is_refused():
    answers = [
        ("x", "content_filter"),
        ("x", "tool_calls"),
        ("x", "SAFETY"),
        ("", None),
        ("", "aborted"),
    ]
    with Server([good(), *(good(*answer) for answer in answers)]) as server:
        _, *found = engine(server, max_concurrency=1).generate(
            [prompt(i) for i in range(len(answers) + 1)], SAMPLING
        )
    for completion, (_, name) in zip(found, answers, strict=True):
        assert completion.finish_reason == "error" and repr(str(name)) in completion.text


PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "deep"}]},
    {"type": "text", "text": "<answer>"},
    {"type": "text", "text": "Up</answer>"},
]


def test_thoughts_beside_the_text_become_the_think_block():
    acts = [
        good([thoughts, *PARTS[1:]])
        for thoughts in (PARTS[0], {"type": "thinking", "thinking": "deep"})
    ]
    with Server([*acts, good("<answer>Up</answer>", reasoning_content="deep")]) as server:
        found = engine(server, max_concurrency=1).generate([prompt(i) for i in range(3)], SAMPLING)
    assert [c.text for c in found] == ["deep</think><answer>Up</answer>"] * 3


def test_refusals_cost_their_episodes_once_others_were_answered(tmp_path):
    refused = good(finish="content_filter")
    with Server([good(), refused, refused]) as server:
        player = engine(server, max_concurrency=1, store=tmp_path / "responses.jsonl")
        player.generate([prompt(0)], SAMPLING)
        late = player.generate([prompt(1), prompt(2)], SAMPLING)
    assert [c.finish_reason for c in late] == ["error", "error"]
    with Server([refused] * 2) as server, pytest.raises(ModelError, match="answered none of 2"):
        engine(server).generate([prompt(0), prompt(1)], SAMPLING)


@pytest.mark.parametrize(
    "trouble", [failing(400, "Unknown parameter: foo"), failing(403), failing(501)]
)
def test_responses_to_other_settings_do_not_show_that_these_are_accepted(trouble, tmp_path):
    store = tmp_path / "responses.jsonl"
    prompts = [prompt(number) for number in range(3)]
    foo = {"generation_kwargs": {"foo": 1}, "store": store}
    with Server([good(), *[trouble] * 9]) as server:
        engine(server, store=store).generate(prompts[:1], SAMPLING)
        with pytest.raises(ModelError):
            engine(server, **foo).generate(prompts, SAMPLING)
        assert len(server.requests) == 2
    with Server([good(), *[failing(400, "Unknown")] * 2]) as server:
        engine(server, **foo).generate(prompts[:1], SAMPLING)
        again = engine(server, **foo).generate(prompts, SAMPLING)
    assert [completion.finish_reason for completion in again] == ["stop", "error", "error"]


@pytest.mark.parametrize("per_minute", [None, 300])
def test_nothing_is_sent_after_an_interruption(monkeypatch, per_minute):
    def interrupted(futures, **_):
        while len(server.requests) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("spa_engines.api.wait", interrupted)
    with Server([failing(500, **SOON)] * 50) as server:
        player = engine(server, max_concurrency=2, max_retries=20, per_minute=per_minute)
        with pytest.raises(KeyboardInterrupt):
            player.generate([prompt(i) for i in range(4)], SAMPLING)
        asked = len(server.requests)
        for thread in threading.enumerate():
            if thread.name.startswith("spa-api"):
                thread.join(5)
        assert len(server.requests) <= asked + 2  # those that were on their way


RATE_LIMIT = {"message": "slow down", "code": 429}
ERRORS = [
    {"error": RATE_LIMIT},
    [{"error": RATE_LIMIT}],
    {"error": {"message": "slow down", "code": "rate_limit_exceeded"}},
    {"error": "slow down", "status": "429"},
    {"object": "error", **RATE_LIMIT},
    {"choices": [{"finish_reason": "error", "message": {"content": "x"}, "error": RATE_LIMIT}]},
    {"error": "slow down"},
]


def test_an_error_in_a_200_is_tried_again_and_its_words_are_shown():
    acts = [act for error in ERRORS for act in (good(), in_200(error))]
    with Server(acts) as server:
        player = engine(server, max_concurrency=1)
        player._client = player._client.with_options(max_retries=1)
        # The response to a second attempt is the `good()` that comes before the next error.
        found = player.generate([prompt(i) for i in range(len(ERRORS) + 1)], SAMPLING)
    assert {completion.finish_reason for completion in found} == {"stop"}
    assert len(server.requests) == len(acts) + 1
    with Server(acts) as server:
        found = engine(server, max_concurrency=1, max_retries=0).generate(
            [prompt(i) for i in range(len(acts))], SAMPLING
        )
    for failed in found[1::2]:
        assert failed.finish_reason == "error" and "slow down" in failed.text


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_a_stale_certificate_file_is_named(monkeypatch, tmp_path, text):
    file = tmp_path / "old.pem"
    if text:
        file.write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with Server() as server, pytest.raises(ModelError, match=r"old\.pem.*SSL_CERT_FILE") as error:
        engine(server)
    assert "proxy" not in str(error.value)


def test_a_dead_server_is_named():
    with Server() as server:
        player = engine(server)
    started = time.monotonic()
    with pytest.raises(
        ModelError, match=r"127\.0\.0\.1.*no server answers at this address.*base_url"
    ):
        player.generate([prompt(0), prompt(1)], SAMPLING)
    assert time.monotonic() - started < 5  # nothing is retried


def test_the_first_request_goes_alone_and_keeps_its_response(tmp_path):
    with Server([slow(0.3)]) as server:
        player = engine(server, max_concurrency=4, store=tmp_path / "responses.jsonl")
        threading.Timer(0.15, lambda: alone.append(len(server.requests))).start()
        alone: list[int] = []
        completions = player.generate([prompt(i) for i in range(4)], SAMPLING)
    assert alone == [1] and len(server.requests) == 4
    assert all(c.finish_reason == "stop" for c in completions)


def test_responses_are_kept_and_not_asked_for_twice(tmp_path):
    store = tmp_path / "run" / "responses.jsonl"
    with Server([good("<think>first</think>"), failing(401)]) as server:
        player = engine(server, max_concurrency=1, store=store)
        with pytest.raises(ModelError, match="1 responses are saved"):
            player.generate([prompt(0), prompt(1)], SAMPLING)
        with store.open("a") as file:
            file.write('{"key": "cut o')
        server.acts = []
        completions = engine(server, store=store).generate([prompt(0), prompt(1)], SAMPLING)
    assert [c.text for c in completions] == ["first</think>", "go</think><answer>Up</answer>"]
    assert [r["body"]["messages"][1]["content"] for r in server.requests] == [
        "state 0",
        "state 1",
        "state 1",
    ]
    assert KEY not in store.read_text()


def test_at_most_the_asked_number_of_requests_are_out(tmp_path):
    barrier = threading.Barrier(3, timeout=5)

    def together(handler):
        barrier.wait()
        good()(handler)

    with Server([good(), *[together] * 6]) as server:
        player = engine(server, max_concurrency=3)
        completions = player.generate([prompt(i) for i in range(7)], SAMPLING)
    assert all(c.finish_reason == "stop" for c in completions)
    assert server.most_busy == 3


def test_a_missing_key_names_its_variable(monkeypatch):
    monkeypatch.delenv("SPA_TEST_KEY")
    with Server() as server, pytest.raises(ModelError, match="SPA_TEST_KEY"):
        engine(server)


@pytest.mark.parametrize("wrong", ["sk-abc\ndef", "sk-\u201cabc\u201d"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(monkeypatch, wrong):
    monkeypatch.setenv("SPA_TEST_KEY", wrong)
    with (
        Server() as server,
        pytest.raises(ModelError, match="SPA_TEST_KEY has a line break") as error,
    ):
        engine(server)
    assert "abc" not in str(error.value)


@pytest.mark.parametrize("proxy", ["ftp://me:secret@proxy.corp:21", "http://proxy.corp:port"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    with (
        Server() as server,
        pytest.raises(ModelError, match=r"a proxy .* cannot be used") as error,
    ):
        engine(server)
    assert "secret" not in str(error.value)


def test_the_key_is_never_logged(caplog):
    caplog.set_level(logging.DEBUG)
    trouble = failing(500, f"key {KEY} is in trouble", **SOON)
    with Server([good(), trouble, trouble]) as server:
        player = engine(server, max_retries=1, max_concurrency=1)
        player.generate([prompt(0), prompt(1)], SAMPLING)
        player.close()
    assert "trouble" in caplog.text
    assert KEY not in caplog.text


def test_a_key_that_the_server_repeats_is_kept_nowhere(tmp_path, caplog):
    store = tmp_path / "responses.jsonl"
    long = failing(400, "x" * 370 + KEY + " context length")  # where it would be cut in the middle
    with Server([good(f"the key is {KEY}"), good("", finish=KEY), long]) as server:
        found = engine(server, max_concurrency=1, store=store).generate(
            [prompt(n) for n in range(3)], SAMPLING
        )
    assert [completion.finish_reason for completion in found] == ["stop", "error", "error"]
    said = caplog.text + store.read_text() + "".join(completion.text for completion in found)
    assert "the key is ***" in said and KEY[:8] not in said


def test_an_api_model_cannot_be_trained(tmp_path):
    with Server() as server, pytest.raises(ModelError, match="cannot be trained"):
        engine(server).load_weights(tmp_path, version=1)


def body(content: str) -> bytes:
    return (
        '{"choices": [{"index": 0, "finish_reason": "stop", "message": ' + content + "}]}"
    ).encode()


def half(handler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "500")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def no_answer(handler) -> None:
    handler.connection.close()


def not_http(handler) -> None:
    handler.wfile.write(b"\x00\xff\x00\xff\r\n\r\n")
    handler.close_connection = True


def endless_headers(handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 300_000 + b"\r\n\r\n")
    handler.close_connection = True


MISBEHAVIOUR = {
    "not UTF-8": raw(b'{"choices": "\xff\xfe"}'),
    "not JSON": raw(b"<html>busy</html>"),
    "empty": raw(b""),
    "null": raw(b"null"),
    "a number": raw(b"17"),
    "a list": raw(b"[1, 2]"),
    "a text": raw(b'"hello"'),
    "deep": raw(b"[" * 100_000 + b"]" * 100_000),
    "no choices": raw(b"{}"),
    "choices null": raw(b'{"choices": null}'),
    "choices empty": raw(b'{"choices": []}'),
    "choices a text": raw(b'{"choices": "abc"}'),
    "choices a mapping": raw(b'{"choices": {"0": 1}}'),
    "choice null": raw(b'{"choices": [null]}'),
    "choice a number": raw(b'{"choices": [3]}'),
    "message null": raw(body("null")),
    "message a text": raw(body('"hello"')),
    "content a number": raw(body('{"content": 5}')),
    "content a list": raw(body('{"content": [1, 2]}')),
    "content a mapping": raw(body('{"content": {"a": 1}}')),
    "finish a number": raw(b'{"choices": [{"finish_reason": 7, "message": {"content": "x"}}]}'),
    "finish a list": raw(b'{"choices": [{"finish_reason": [1], "message": {"content": "x"}}]}'),
    "usage a text": raw(body('{"content": "x"}')[:-1] + b', "usage": {"prompt_tokens": "many"}}'),
    "half": half,
    "no answer": no_answer,
    "not HTTP": not_http,
    "endless headers": endless_headers,
    "status 418": failing(418, "I am a teapot"),
    "too long": failing(400, "maximum context length exceeded"),
    "unknown 400": failing(400, "Input must be shorter, says this server in words of its own"),
    "500": failing(500),
    "flagged": failing(403, "your input was flagged by our moderation"),
    "redirect": lambda handler: handler.send(302, b"", location="/elsewhere"),
}


def test_a_misbehaving_answer_costs_its_own_episode(tmp_path):
    acts = [act for trouble in MISBEHAVIOUR.values() for act in (good(), trouble)]
    with Server([*acts, good()]) as server:
        player = engine(
            server,
            max_retries=0,
            timeout_s=2.0,
            max_concurrency=1,
            store=tmp_path / "responses.jsonl",
        )
        found = player.generate([prompt(n) for n in range(len(acts) + 1)], SAMPLING)
    assert {completion.finish_reason for completion in found[::2]} == {"stop"}
    for kind, second in zip(MISBEHAVIOUR, found[1::2], strict=True):
        assert second.finish_reason == "error", kind
        assert second.text and KEY not in second.text and len(second.text) < 1000, kind


def test_requests_go_through_the_proxy_that_the_system_names(monkeypatch):
    with Server() as proxy, Server() as server:
        monkeypatch.setenv("http_proxy", proxy.address)
        monkeypatch.setenv("no_proxy", "")
        engine(server).generate([prompt()], SAMPLING)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        engine(server).generate([prompt()], SAMPLING)
        monkeypatch.setenv("http_proxy", proxy.address.removeprefix("http://"))
        monkeypatch.setenv("no_proxy", "")
        engine(server).generate([prompt()], SAMPLING)
    assert [request["path"] for request in proxy.requests] == [
        f"{server.address}/chat/completions"
    ] * 2
    assert [request["path"] for request in server.requests] == ["/chat/completions"]


def test_a_lone_surrogate_is_neither_kept_nor_sent(tmp_path):
    store = tmp_path / "responses.jsonl"
    with Server(acts=[raw(body('{"content": "a \\ud800 b"}'))]) as server:
        [response] = engine(server, store=store).generate([prompt()], SAMPLING)
        assert response.text == "a \ufffd b"
        later = replace(prompt(1), messages=({"role": "user", "content": "x \ud800 y"},))
        again = engine(server, store=store).generate([prompt(), later], SAMPLING)
    assert [completion.finish_reason for completion in again] == ["stop", "stop"]
    assert server.requests[-1]["body"]["messages"][0]["content"] == "x \ufffd y"
