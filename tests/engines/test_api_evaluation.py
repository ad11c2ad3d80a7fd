"""`spa eval` of a model behind an API that breaks off half-way: partial results are kept, nothing is paid for twice."""

import json
from functools import partial

import pytest
from api_server import Server, failing, good

import spa
from spa import cli
from spa.config.load import load_config
from spa.errors import ModelError
from spa.recipes import evaluate, selfplay
from spa.recipes.policies import find_target
from spa.run.fingerprint import Fingerprint
from spa.worldmodel.sft_files import read_examples
from spa_measurements.measure_world_model import measure_world_model

BAD_KEY = failing(401, "bad key")


def config(server: Server, tmp_path, *overrides: str):
    entry = f"{{provider_name: custom, model_name: m, base_url: '{server.address}'}}"
    tags = "env_configs={tags: [FrozenLakeNoSlip], n_groups: null}"
    return load_config(
        "evaluate_api_llm",
        [
            f"+model_info.mine={entry}",
            "model_config.model_name=mine",
            "model_config.max_concurrency=1",
            f"trainer.run_dir={tmp_path}/run",
            "es_manager.val.env_groups=4",
            f"es_manager.val.{tags}",
            "agent_proxy.max_turn=1",
            *overrides,
        ],
    )


def test_a_result_records_the_settings_that_were_sent(tmp_path):
    with Server(acts=[good()] * 8) as server:
        given = "model_info.mine.generation_kwargs={temperature: 0, max_completion_tokens: 77}"
        cfg = config(server, tmp_path, f"+{given}")
        result = evaluate.evaluate_target(cfg, find_target("mine"), output=tmp_path / "r.json")
        sent = server.requests[0]["body"]
    assert (sent["temperature"], sent["max_completion_tokens"]) == (0, 77)
    assert (result["settings"]["temperature"], result["settings"]["max_tokens"]) == (0, 77)


@pytest.mark.parametrize(
    ("kwargs", "temperature"), [("{temperature: 0.3, max_tokens: 77}", 0.3), ("{}", 0.0)]
)
def test_a_world_model_result_records_the_settings_that_were_sent(tmp_path, kwargs, temperature):
    with Server() as server:
        cfg = config(server, tmp_path, f"+model_info.mine.generation_kwargs={kwargs}")
        target, output = find_target("mine"), tmp_path / "wm.json"
        result = measure_world_model(
            cfg, target, output=output, transitions=4, steps=1, greedy=True
        )
        sent = server.requests[0]["body"]
    assert sent["temperature"] == temperature
    recorded = {name: result["settings"][name] for name in ("temperature", "max_tokens")}
    assert recorded == {name: sent[name] for name in recorded}


def test_goes_on_after_the_server_refused(tmp_path):
    output = tmp_path / "r.json"
    with Server(acts=[good(), good(), *[BAD_KEY] * 8]) as server:
        cfg = config(server, tmp_path)
        with pytest.raises(ModelError, match="2 responses are saved"):
            evaluate.evaluate_target(cfg, find_target("mine"), output=output)
        server.acts = []
        before = len(server.requests)
        result = evaluate.evaluate_target(
            cfg, find_target("mine"), output=output, prices=(1.0, 10.0)
        )
        assert len(server.requests) == before + 2
    found = result["tags"]["FrozenLakeNoSlip"]
    assert found["episodes"] == 4 and found["format_rate"] == 1.0
    assert result["usage"] == {
        "requests": 4,
        "retries": 0,
        "empty_responses": 0,
        "prompt_tokens": 44,
        "completion_tokens": 20,
        "cost": pytest.approx((44 + 200) / 1e6),
    }


def test_a_checkpoint_beside_a_model_behind_an_api_is_played_by_its_own_weights(tmp_path):
    with Server() as server:
        cfg = config(server, tmp_path, "es_manager.val.env_groups=1")
        found = evaluate.evaluate_target(
            cfg, find_target("builtin:tiny"), output=tmp_path / "tiny.json"
        )
        assert server.requests == []
    assert found["tags"]["FrozenLakeNoSlip"]["episodes"] == 1


def test_failed_questions_about_the_world_are_no_wrong_predictions(tmp_path):
    output = tmp_path / "wm.json"
    with Server(acts=[good(), good(), failing(400, "no"), failing(400, "no")]) as server:
        cfg = config(server, tmp_path)
        measure = partial(
            measure_world_model, cfg, find_target("mine"), output=output, transitions=4, steps=1
        )
        (found,) = measure()["tags"].values()
        assert (found["no_response"], found["format_rate"]) == (2, 0.0)
        server.acts = []
        before = len(server.requests)
        (found,) = measure()["tags"].values()
        assert len(server.requests) == before + 2 and found["no_response"] == 0


def test_the_usage_is_that_of_the_result_alone(tmp_path):
    output = tmp_path / "r.json"
    with Server() as server:
        cfg = config(server, tmp_path)
        more = evaluate.evaluate_target(cfg, find_target("api"), output=output)
        fewer = config(server, tmp_path, "es_manager.val.env_groups=1")
        one = evaluate.evaluate_target(fewer, find_target("api"), output=output)
        assert len(server.requests) == 4  # the one comes from the responses of the first
    assert (more["usage"]["requests"], one["usage"]["requests"]) == (4, 1)
    assert one["usage"]["prompt_tokens"] == 11


def test_a_loaded_model_is_paid_for_as_one_that_is_named(tmp_path):
    with Server() as server:
        cfg = config(server, tmp_path)
        model = spa.load_model("mine", config=cfg)
        one = spa.evaluate(model, samples=None, output=tmp_path / "one.json", prices=(1.0, 2.0))
        two = spa.evaluate(
            "mine", cfg, samples=None, output=tmp_path / "two.json", prices=(1.0, 2.0)
        )
    assert one.result["usage"] == two.result["usage"]
    assert one.result["usage"]["requests"] == 4


def test_a_failed_first_request_moves_no_earlier_result(tmp_path):
    def files() -> dict[str, bytes]:
        found = (path for path in tmp_path.rglob("*") if path.is_file())
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in found}

    output = tmp_path / "r.json"
    with Server() as server:
        cfg = config(server, tmp_path)
        evaluate.evaluate_target(cfg, find_target("api"), output=output)
        before = files()
        server.acts = [good()] * 4 + [BAD_KEY]
        other = config(server, tmp_path, "seed.val=7")
        with pytest.raises(ModelError, match="wrong, has expired"):
            evaluate.evaluate_target(other, find_target("api"), output=output)
        assert files() == before
        evaluate.evaluate_target(other, find_target("api"), output=output)
    after = files()
    archived = [content for name, content in after.items() if "previous" in name]
    for name in ("r.json", "r.groups.jsonl", "r/trajectories/val-000000.jsonl"):
        assert before[name] in archived and after[name] != before[name]
    assert b"val: 7" in after["r/config.yaml"]


def test_what_was_sent_and_what_came_from_earlier_is_told_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    busy = failing(429, "slow down", retry_after_ms="1")
    with Server(acts=[busy, good(), good(""), busy, busy, good("")]) as server:
        (tmp_path / "my_api.yaml").write_text(
            "defaults: [evaluate_api_llm]\n"
            "model_config: {model_name: mine, max_concurrency: 1}\n"
            "es_manager: {val: {env_configs: {tags: [FrozenLakeNoSlip], n_groups: null}}}\n"
            "model_info:\n"
            f"  mine: {{provider_name: custom, model_name: m, base_url: '{server.address}'}}\n"
        )
        command = "eval api --config my_api.yaml --puzzles 3 agent_proxy.max_turn=1 --quiet"
        assert cli.main(command.split()) == 0
        assert cli.main(command.split()) == 0
        assert len(server.requests) == 6
        more = command.replace("--puzzles 3", "--puzzles 4").removesuffix(" --quiet")
        assert cli.main(more.split()) == 0
        assert len(server.requests) == 7
        one = command.replace("--puzzles 3", "--puzzles 1 --samples 2")
        assert cli.main(one.split()) == 0
    captured = capsys.readouterr()
    text = " ".join(captured.out.split())
    assert "api plays 3 puzzles of FrozenLakeNoSlip, 1 attempt each" in text
    assert "api plays 1 puzzle of FrozenLakeNoSlip, 2 attempts each" in text
    counts = "3 retries, 2 empty responses, 33 input tokens and 15 output tokens"
    assert f"3 requests sent now: {counts}" in text
    assert f"No request sent now, 3 responses from earlier. In all: {counts}" in text
    assert "1 request sent now, 3 responses from earlier. In all: 3 retries" in text
    assert " requests" not in captured.err
    # Empty responses are malformed.
    assert "well-formed responses │ 33.3" in text
    assert (tmp_path / "runs/evaluate_api_llm/eval").is_dir()


def test_refused_requests_cost_their_episodes_and_can_be_asked_again(tmp_path):
    output = tmp_path / "r.json"
    too_long = failing(400, "maximum context length", code="context_length_exceeded")
    with Server(acts=[too_long]) as server:
        cfg = config(server, tmp_path)
        first = evaluate.evaluate_target(cfg, find_target("api"), output=output)["tags"][
            "FrozenLakeNoSlip"
        ]
        assert (first["episodes"], first["errors"]) == (3, 1)
        server.acts = []
        again = evaluate.evaluate_target(cfg, find_target("api"), output=output)["tags"][
            "FrozenLakeNoSlip"
        ]
    assert (again["episodes"], again["errors"]) == (4, 0)


def test_self_play_by_a_model_behind_an_api(tmp_path):
    """Its responses are text, become examples with the true states, and are not asked for twice."""
    response = "<think><observation>I see ice</observation><prediction>more ice</prediction></think><answer>Up || Left</answer>"
    with Server(text=response) as server:
        overrides = [
            "es_manager.train.env_groups=2",
            "es_manager.train.group_size=1",
            "es_manager.train.env_configs.tags=[FrozenLakeNoSlip]",
            "es_manager.train.env_configs.n_groups=null",
            "generate.num_batches=1",
            "trainer.logger=[]",
            "state_text=coords",
        ]
        entry = f"{{provider_name: custom, model_name: m, base_url: '{server.address}'}}"
        cfg = load_config(
            "evaluate_api_llm",
            [
                *overrides,
                f"+model_info.mine={entry}",
                "model_config.model_name=mine",
                f"trainer.run_dir={tmp_path}/run",
                "agent_proxy.max_turn=1",
                "generate.val_fraction=0.5",
            ],
            stages=("selfplay",),
        )
        folder = selfplay.run_self_play(cfg, directory=tmp_path / "data")
        asked = len(server.requests)
        selfplay.run_self_play(cfg, directory=tmp_path / "data")
        assert len(server.requests) == asked  # everything came from the kept responses
    stored = (tmp_path / "run" / "api_responses.jsonl").read_text().splitlines()
    assert len(stored) == asked
    examples = [
        example
        for name in ("wm_train", "wm_val")
        for example in read_examples(folder / f"{name}.parquet")
    ]
    assert len(server.requests) == len(examples) == 2
    assert all(
        "player (P) is at" in example.response
        and "I see ice" not in example.response
        and example.predicted == "more ice"
        for example in examples
    )


def test_an_alias_with_two_runs_keeps_both_results(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with Server() as server:
        entry = f"{{provider_name: custom, model_name: m, base_url: '{server.address}'}}"
        words = [
            f"+model_info.mine={entry}",
            "es_manager.val.env_configs={tags: [FrozenLakeNoSlip], n_groups: null}",
            "agent_proxy.max_turn=1",
        ]
        for run, groups in (("one", 2), ("two", 3), ("one", 4)):
            command = [
                "eval",
                "mine",
                "--config",
                "evaluate_api_llm",
                "--puzzles",
                str(groups),
                f"trainer.run_dir={run}",
                *words,
            ]
            assert cli.main(command) == 0, capsys.readouterr().err
    one, two = (sorted((tmp_path / run / "eval").rglob("*.json")) for run in ("one", "two"))
    played = [json.loads(path.read_text())["puzzles"]["played"] for path in (*one, *two)]
    assert sorted(played) == [2, 3, 4]
    # the first result of run one is archived
    assert {path.parent.name for path in one} == {"eval", "1"}
    identities = [
        Fingerprint.from_json(json.loads(path.read_text())["identity"]) for path in (*one, *two)
    ]
    assert len({identity.digest for identity in identities}) == 3
    assert all(identity.stage == "eval" for identity in identities)
    assert not (tmp_path / "runs").exists()
