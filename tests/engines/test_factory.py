import ast
import inspect

import pytest
from api_server import Server

from spa.config import check
from spa.config.load import load_config
from spa.engines.factory import engine_kind, engines, make_engine
from spa.errors import ConfigError
from spa.plugins import plugins
from spa.policies.scripted import ScriptedEngine
from spa_engines import api
from spa_engines.api import ApiEngine


def api_config(server: Server, tmp_path, *overrides: str):
    entry = f"{{provider_name: custom, model_name: m, base_url: '{server.address}'}}"
    return load_config(
        "evaluate_api_llm",
        [
            f"+model_info.mine={entry}",
            "model_config.model_name=mine",
            f"trainer.run_dir={tmp_path}/run",
            *overrides,
        ],
    )


def test_a_name_of_model_info_is_an_api_model_and_any_other_name_the_chosen_one(tmp_path):
    with Server() as server:
        cfg = api_config(server, tmp_path)
        for name in ("mine", "some/hub-model"):
            engine = make_engine(cfg, name)
            assert isinstance(engine, ApiEngine)
            assert engine.address == server.address
    random = make_engine(load_config("base"), "random")
    assert isinstance(random, ScriptedEngine) and random.template is None


def test_an_unknown_api_model_is_named():
    cfg = load_config("base", ["actor_rollout_ref.rollout.name=openai"])
    with pytest.raises(ConfigError, match="evaluate_api_llm"):
        make_engine(cfg, "gpt-9")


def test_the_configuration_checks_the_names_of_the_engines_that_there_are():
    assert set(check.ENGINES) == {"auto", *engines()}
    for name in plugins("engines"):
        assert engine_kind(name).name == name


def test_the_sdk_is_not_imported_before_it_is_used():
    tree = ast.parse(inspect.getsource(api))
    imported = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert "openai" not in imported
