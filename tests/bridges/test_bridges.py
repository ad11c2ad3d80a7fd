import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spa.config.load import load_config
from spa.envs.registry import libraries, library_named, make_env
from spa.errors import ConfigError
from spa.formats.blocks import contains_marker
from spa_integrations.games.randomness import OwnRandomness
from spa_integrations.games.text import clean, content

BRIDGES = {name: library_named(name) for name in libraries()}
NEEDING = sorted(name for name, row in BRIDGES.items() if row.extra)


@pytest.mark.parametrize("bridge", NEEDING)
def test_a_missing_library_is_one_message_that_names_the_extra(bridge, monkeypatch):
    monkeypatch.setitem(sys.modules, BRIDGES[bridge].package, None)
    with pytest.raises(ConfigError, match=rf"pip install .*\[{BRIDGES[bridge].extra}\]'"):
        make_env(f"{bridge}:any")


def test_a_bridge_without_a_task_says_how_to_list_them():
    with pytest.raises(ConfigError, match="spa env list gymnasium"):
        make_env("gymnasium:")


def test_importing_the_table_imports_no_library():
    packages = sorted({example.package for example in BRIDGES.values() if example.extra})
    code = f"import sys, spa_integrations.libraries; print({packages} and [n for n in {packages} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert packages and done.stdout.strip() == "[]"


def test_a_configuration_names_a_bridge_like_any_type(tmp_path):
    file = tmp_path / "taxi.yaml"
    file.write_text("defaults: [base]\ncustom_envs:\n  Taxi:\n    env_type: gymnasium:Taxi-v4\n")
    assert load_config(str(file)).custom_envs["Taxi"].env_type == "gymnasium:Taxi-v4"


def test_each_game_draws_from_its_own_generators_and_leaves_the_global_ones():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, second = OwnRandomness(7), OwnRandomness(7)
    with first:
        a = [random.random(), float(np.random.rand())]
    with second:
        b = [random.random(), float(np.random.rand())]
    with first:
        a.append(random.random())
    with second:
        b.append(random.random())
    assert a == b and a[0] != a[2]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_foreign_texts_fit_between_tags():
    assert clean("  a \n\x00b<answer>c</Answer>\r\n ") == "a\nb(answer)c(/Answer)"
    assert clean(" \n ") and not contains_marker(clean("<think>"))
    assert clean("\ud800") == "?"


def test_content_depends_on_nothing_but_the_content():
    class Card:
        def __init__(self, rank):
            self.rank = rank

    assert content({"b": {3, 1, 2}, "a": Card(1)}) == content({"a": Card(1), "b": {2, 3, 1}})
    assert content(Card(1)) != content(Card(2))
    assert content(np.array([1, 2])) == "[1, 2]"


def test_games_in_threads_do_not_mix_their_randomness():
    def course(seed: int) -> list[float]:
        own, sampled = OwnRandomness(seed), []
        for _ in range(20):
            with own:
                sampled.append(random.random())
                time.sleep(0.001)  # another thread gets its turn
                sampled.append(random.random())
        return sampled

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(course, range(4)))
    assert together == [course(seed) for seed in range(4)]
