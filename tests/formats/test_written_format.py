"""A written format that defines only its search and its text."""

from typing import Any

from spa.envs.registry import make_env
from spa.formats.base import WrittenFormat
from spa.formats.search import BreadthFirst, explore, run_search


class Terse(WrittenFormat):
    """A breadth-first search of which only the path is written."""

    name = "terse"

    def searching(self, start: str, view: Any) -> Any:
        return BreadthFirst().searching(start, view)

    def written(self, search: Any, view: Any) -> str:
        return "go " + " ".join(search.path)


def test_its_words_are_of_one_kind_and_it_has_no_controls():
    env = make_env("frozen_lake", {"size": 3, "is_slippery": False})
    env.reset(seed=0)
    form = Terse()
    true, _ = explore(env)
    search = run_search(form.searching(env.state_key() or "", env), true.__getitem__)
    thoughts = form.written(search, env)
    text = f"<think>{thoughts}</think><answer>{search.path[0]}</answer>"
    found = [(kind, text[start:stop]) for kind, start, stop in form.parts(text)]
    words = [("word", word) for word in ("go", *search.path)]
    assert found == [*words, ("answer", search.path[0])]
    assert form.controls() == ()
