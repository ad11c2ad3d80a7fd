"""verifiers' own command plays our games against a server that speaks its protocol."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from spa.errors import EnvFault
from spa_bench.diagnose.command import game_of
from spa_bench.diagnose.findings import diagnose
from spa_bench.diagnose.rollouts import read_rollouts
from spa_integrations.export.chat import make_chat
from tests.engines.api_server import Server

if importlib.util.find_spec("verifiers") is None:
    pytest.skip("make test-extra NAME=bridges", allow_module_level=True)

from spa_integrations.export import verifiers


def vf_eval(tmp_path, server, *options):
    """Run `vf-eval spa-verifiers`; returns the episodes that it wrote."""
    command = [
        sys.executable,
        "-c",
        "from verifiers.v1.cli.eval.main import main; main()",
        "spa-verifiers",
    ]
    command += [
        "-m",
        "model",
        "--client.base-url",
        f"{server.address}/v1",
        "--client.api-key-var",
        "NO_KEY",
    ]
    command += [
        "--no-push",
        "--no-rich",
        "-c",
        "1",
        "-o",
        str(tmp_path),
        "--run.dir",
        "run",
        *options,
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"HOME": str(tmp_path)},
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [
        json.loads(line) for line in (tmp_path / "run" / "traces.jsonl").read_text().splitlines()
    ]


def test_games_are_played_to_the_end_and_scored(tmp_path):
    lake = tmp_path / "lake.yaml"
    lake.write_text(
        "defaults: [base, _self_]\ncustom_envs:\n  Lake:\n    env_type: frozen_lake\n"
        "    env_config: {is_slippery: false}\n"
    )
    chat = make_chat("Lake", str(lake))
    chat.begin(0)
    way = "||".join(chat.env.expert_actions(10)[:5])
    with Server(text=f"<think>I know the way</think><answer>{way}</answer>") as server:
        episodes = vf_eval(
            tmp_path,
            server,
            "--env.taskset.tag",
            "Lake",
            "--env.taskset.config",
            str(lake),
            "-n",
            "2",
            "-r",
            "2",
        )
    traces = [episode["traces"][0] for episode in episodes]
    assert [trace["task"]["data"]["seed"] for trace in traces] == [10, 10, 11, 11]
    assert traces[0]["rewards"]["score"]["score"] == 1.0 and traces[0]["metrics"]["success"] == 1.0
    assert [trace["info"]["spa"]["seed"] for trace in traces] == [10, 10, 11, 11]
    game = game_of("Lake", str(lake), [])
    assert diagnose(read_rollouts(tmp_path / "run"), game=game)["replay"] == {
        "played": 4, "without_seed": 0, "other_tag": 0, "by": {"states": 4}, "unchecked": 0, "differ": [],
    }  # fmt: skip
    assert server.requests[0]["body"]["messages"] == [dict(message) for message in chat.begin(0)]
    report = diagnose(read_rollouts(tmp_path / "run"))
    assert report["stacks"] == {"verifiers": 4} and report["rewards"]["groups"] == 2
    assert any("groups have zero reward variance" in finding for finding in report["findings"])


def test_predictions_are_held_against_the_true_states(tmp_path):
    said = "<think><observation>nothing</observation> go <prediction>nothing</prediction></think><answer>Up</answer>"
    with Server(text=said) as server:
        vf_eval(
            tmp_path,
            server,
            "--env.taskset.tag",
            "FrozenLake",
            "--env.taskset.mode",
            "add_worldmodel",
            "-n",
            "1",
        )
    model = diagnose(read_rollouts(tmp_path / "run"))["world_model"]
    assert (
        model["prediction"] > 0
        and model["prediction_right"] == 0
        and model["copied"] == model["prediction"]
    )


def test_members_of_a_group_do_not_share_their_slips(tmp_path):
    with Server(text="<think>go</think><answer>Up||Left||Up||Left||Up</answer>") as server:
        episodes = vf_eval(
            tmp_path, server, "--env.taskset.tag", "FrozenLake", "-n", "1", "-r", "6"
        )
    ways = {tuple(episode["traces"][0]["info"]["spa"]["states"]) for episode in episodes}
    assert len(ways) > 1 and len({way[0] for way in ways}) == 1


def test_an_episode_that_its_environment_broke_has_no_reward(monkeypatch):
    chat = make_chat("FrozenLake")
    chat.env.step = lambda action: 1 / 0
    monkeypatch.setattr(verifiers, "make_chat", lambda *args, **settings: chat)

    async def turn(told=None):
        return SimpleNamespace(
            terminated=False, last_response="<think>no</think><answer>Up</answer>"
        )

    @asynccontextmanager
    async def interaction(task):
        yield SimpleNamespace(trace=SimpleNamespace(id="trace"), turn=turn)

    task = SimpleNamespace(
        data=SimpleNamespace(tag="FrozenLake", config="base", mode="base", seed=0)
    )
    agents = SimpleNamespace(player=SimpleNamespace(interaction=interaction))
    with pytest.raises(EnvFault, match="division by zero"):
        asyncio.run(verifiers.SpaEnv.run(SimpleNamespace(), task, agents))  # type: ignore[arg-type]
