"""OpenEnv's own clients play our games, over a connection on this machine."""

import importlib.util
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from spa.envs.registry import make_env

if importlib.util.find_spec("openenv") is None:
    pytest.skip("make test-extra NAME=bridges", allow_module_level=True)

import uvicorn
from openenv import GenericEnvClient

from spa_integrations.export.openenv import application


@contextmanager
def served(tag):
    """The address of a server of a tag."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(application(tag), host="127.0.0.1", port=port, log_level="warning")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def lake():
    with served("FrozenLake") as address:
        yield address


def test_a_client_sees_and_earns_what_the_game_gives(lake):
    env = make_env("frozen_lake")
    env.reset(seed=4, options={"noise_seed": 2})
    with GenericEnvClient(base_url=lake) as client:
        told = client.reset(seed=4, noise_seed=2)
        assert told.observation["state"] == env.state_text("grid_and_coords")
        assert "frozen lake" in told.observation["rules"]
        assert told.observation["legal_actions"] == list(env.legal_actions())
        done = False
        for action in ("Up", "Left", "Down", "Right", "Down") * 20:
            if done:
                break
            _, reward, ended, cut, info = env.step(env.to_action(action))
            told = client.step({"action": action})
            done = told.done
            seen = told.observation
            assert (seen["state"], told.reward) == (env.state_text("grid_and_coords"), reward)
            assert (done, seen["valid"], seen["success"]) == (
                ended or cut,
                info["action_is_valid"],
                info["success"],
            )
        assert client.state()["seed"] == 4


def test_what_the_game_does_not_know_changes_nothing(lake):
    with GenericEnvClient(base_url=lake) as client:
        before = client.reset(seed=1).observation["state"]
        told = client.step({"action": "fly"})
        assert (
            told.observation["state"] == before and not told.observation["valid"] and not told.done
        )


def test_connections_play_games_of_their_own(lake):
    with GenericEnvClient(base_url=lake) as one, GenericEnvClient(base_url=lake) as other:
        first, second = one.reset(seed=1), other.reset(seed=2)
        assert first.observation["state"] != second.observation["state"]
        one.step({"action": "Down"})
        assert other.state()["step_count"] == 0 and one.state()["step_count"] == 1


def test_a_step_before_the_first_reset_is_refused(lake):
    with GenericEnvClient(base_url=lake) as client, pytest.raises(RuntimeError, match="reset it"):
        client.step({"action": "Up"})
