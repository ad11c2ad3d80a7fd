"""The conformance suite: every shipped tag passes, and each kind of flaw is found and explained."""

import time
from typing import Any

import pytest
from each_once import DIGITS, EachOnce

import spa.rollout.loop  # noqa: F401 - heavy, and loaded here once instead of in every process that checks
from spa.cli import execute
from spa.config.load import load_config
from spa.envs.base import TextEnv
from spa.envs.frozen_lake import FrozenLake
from spa.envs.registry import env_types
from spa_author.checker import check

SPECS = load_config("base").custom_envs
TOO_LARGE_TO_SEARCH = ("HarderSokoban", "LargerSokoban")
"""Games of more states than a search can explore. Counting up to the limit takes half a minute."""


@pytest.mark.parametrize("tag", SPECS)
def test_every_tag_conforms(tag, capsys, monkeypatch):
    if tag in TOO_LARGE_TO_SEARCH:
        monkeypatch.setattr("spa.formats.search.MAX_STATES", 100)
    assert execute(["env", "check", tag, "--steps", "60"]) == 0, capsys.readouterr().out
    assert "a complete episode can be played and stored" in capsys.readouterr().out


class HalfPuzzleText(FrozenLake):
    def puzzle_text(self):
        return str(len(super().puzzle_text()) % 2)


class OddValue(FrozenLake):
    def state_value(self, text):
        return 7.0


def test_a_puzzle_text_that_leaves_something_out_is_found():
    assert (
        "different initial states"
        in failures(HalfPuzzleText)["different seeds give different puzzles"]
    )


def test_values_of_states_lie_between_minus_one_and_one():
    assert (
        "state_value returns 7.0" in failures(OddValue)["state_value returns a value from -1 to 1"]
    )


def test_it_is_said_how_much_of_the_target_no_message_shows():
    class Hidden(FrozenLake):
        def world_state_text(self, mode):
            return f"{self.state_text(mode)} secret{self.np_random_seed}"

    findings = {finding.check: finding for finding in check(lambda: Hidden(), seeds=2, steps=30)}
    told = findings["world_state_text holds only what the messages show"]
    assert told.ok and "appear in no message of the episode" in told.message
    findings = {
        finding.check: finding for finding in check(lambda: FrozenLake(), seeds=2, steps=30)
    }
    assert findings["world_state_text holds only what the messages show"].message == ""


def test_every_type_has_a_tag():
    assert {spec.env_type for spec in SPECS.values()} == set(env_types())


def failures(cls: type[TextEnv]) -> dict[str, str]:
    findings = check(lambda: cls(), seeds=2, steps=30)
    assert all(finding.message and finding.advice for finding in findings if not finding.ok)
    return {finding.check: finding.message for finding in findings if not finding.ok}


class Raises(FrozenLake):
    def step(self, action: Any):
        return super().step({1: 1, 2: 2, 3: 3, 4: 4}[action])


class Forgetful(FrozenLake):
    """Continues the last noise instead of the seed's."""

    def reset(self, *, seed=None, options=None):
        old = getattr(self, "_noise", None)
        out = super().reset(seed=seed, options=options)
        self._noise = old
        return out


class NoiseInPuzzle(FrozenLake):
    def reset(self, *, seed=None, options=None):
        noise = (options or {}).get("noise_seed")
        return super().reset(seed=seed if noise is None else noise, options=options)


class OnePuzzle(FrozenLake):
    def reset(self, *, seed=None, options=None):
        return super().reset(
            seed=seed, options={**(options or {}), "board": "P___\n____\n____\n___G"}
        )


class PuzzleIsState(FrozenLake):
    def puzzle_text(self):
        return self.state_text("grid")


class Trailing(FrozenLake):
    def state_text(self, mode):
        return super().state_text(mode) + "\n"


class Tags(FrozenLake):
    def state_text(self, mode):
        return "<answer>" + super().state_text(mode)


class DiesAtTheEnd(FrozenLake):
    def state_text(self, mode):
        if self.player in self.lake.holes:
            raise ValueError("no symbol for a player in a hole")
        return super().state_text(mode)


class NoInfo(FrozenLake):
    def step(self, action: Any):
        *rest, _ = super().step(action)
        return (*rest, {"success": True})


class BadInfo(FrozenLake):
    def step(self, action: Any):
        *rest, info = super().step(action)
        return (*rest, info | {"cells": {1, 2}})


class InfiniteReward(FrozenLake):
    def step(self, action: Any):
        state, _, *rest = super().step(action)
        return (state, float("nan"), *rest)


class Deaf(FrozenLake):
    def to_action(self, text: str):
        return {"Left": 1, "Down": 2, "Right": 3, "Up": 4}.get(text)


class Chatty(FrozenLake):
    def instruction(self, mode):
        return "word " * 5000


class BadExpert(FrozenLake):
    def expert_actions(self, limit: int):
        return ("Left",) * (self.optimal_steps() or 0)


class ReadsByState(EachOnce):
    """Understands only what is legal now: a turn would lose its later actions without a word."""

    def to_action(self, text: str):
        return text if text in self.legal_actions() + tuple(self.named) else None

    def legal_actions(self):
        return tuple(digit for digit in super().legal_actions() if int(digit) <= len(self.named))


class NumbersByState(EachOnce):
    """The number of a label among those that are left."""

    def step(self, action: Any):
        legal = self.legal_actions()
        return super().step(
            legal[action] if isinstance(action, int) and 0 <= action < len(legal) else None
        )

    def to_action(self, text: str):
        return self.legal_actions().index(text) if text in self.legal_actions() else None


class WrongInItsSecondPuzzle(EachOnce):
    """The first one is over after a single action."""

    def step(self, action: Any):
        state, reward, done, cut, info = super().step(action)
        return state, reward, done, cut or self.seed == 0, info

    def legal_actions(self):
        return (*super().legal_actions(), *(["none"] if self.seed == 1 else []))


class NoInstruction(FrozenLake):
    def instruction(self, mode):
        return None


class NumberedPuzzle(FrozenLake):
    def puzzle_text(self):
        return self.np_random_seed


class NeedsOptions(FrozenLake):
    def __init__(self, size):
        super().__init__(size=size)


@pytest.mark.parametrize(
    "cls, name, words",
    [
        (Raises, "unknown actions count as invalid turns", "KeyError"),
        (Forgetful, "the same seed gives the same episode", "seed"),
        (NoiseInPuzzle, "noise_seed does not change the puzzle", "changes with the noise seed"),
        (OnePuzzle, "different seeds give different puzzles", "the same puzzle"),
        (PuzzleIsState, "puzzle_text is constant in an episode", "changes during an episode"),
        (Trailing, "state_text returns a string in every state", "white space"),
        (Tags, "state_text returns a string in every state", "tag of the response format"),
        (DiesAtTheEnd, "state_text returns a string in every state", "no symbol"),
        (NoInfo, "step returns valid rewards, flags and info", "action_is_valid"),
        (BadInfo, "step returns valid rewards, flags and info", "JSON cannot store"),
        (InfiniteReward, "step returns valid rewards, flags and info", "nan"),
        (Deaf, "to_action reads every action name", "'left'"),
        (Chatty, "the first prompt is complete and short", "characters"),
        (
            ReadsByState,
            "to_action does not depend on the state",
            "but None at the start of the episode (seed 0)",
        ),
        (NumbersByState, "to_action does not depend on the state", "at the start"),
        (WrongInItsSecondPuzzle, "step accepts every action in legal_actions", "'none'"),
        (
            NoInstruction,
            "the first prompt is complete and short",
            "instruction('grid') returns None",
        ),
        (NumberedPuzzle, "puzzle_text is constant in an episode", "puzzle_text returns 0"),
        (NeedsOptions, "can be made", "TypeError"),
    ],
)
def test_flaws_are_found(cls, name, words):
    found = failures(cls)
    assert words in found[name]


class Booms(FrozenLake):
    def step(self, action: Any):
        raise RuntimeError("boom")


class NoSeed(FrozenLake):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None, options=options)


def test_gymnasiums_advice_is_for_what_gymnasium_finds():
    def found(cls: type[TextEnv]):
        return next(each for each in check(cls, seeds=2) if each.check == "Gymnasium's own checker")

    booms = found(Booms)
    line = Booms.step.__code__.co_firstlineno + 1
    assert booms.message == f"RuntimeError: boom ({__file__}, line {line})"
    assert "must not raise" in booms.advice
    assert "call super().reset(seed=seed)" in found(NoSeed).advice


class NoEffect(FrozenLake):
    def step(self, action: Any):
        *rest, info = super().step(action)
        return (*rest, {key: info[key] for key in ("action_is_valid", "success")})


def test_a_missing_key_of_info_is_named_by_its_own_check_alone():
    found = failures(NoEffect)
    assert list(found) == ["step returns valid rewards, flags and info"]
    assert "action_is_effective" in found["step returns valid rewards, flags and info"]


def test_a_wrong_expert_is_found():
    findings = check(lambda: BadExpert(is_slippery=False), seeds=5, steps=30)
    assert [finding.check for finding in findings if not finding.ok] == [
        "expert_actions reaches the goal"
    ]


def test_expert_play_of_a_game_without_an_expert_is_skipped():
    def expert(make: Any) -> str:
        name = "expert_actions reaches the goal"
        return next(each.message for each in check(make, seeds=2, steps=30) if each.check == name)

    assert expert(EachOnce).startswith("skipped, because")
    assert expert(lambda: FrozenLake(is_slippery=False)) == ""


def test_one_puzzle_passes_where_the_environment_says_so_and_is_told_all_the_same():
    class Meant(OnePuzzle):
        finite_puzzles = True

    (found,) = [
        finding
        for finding in check(Meant)
        if finding.check == "different seeds give different puzzles"
    ]
    assert found.ok and "only if the game has a single initial state" in found.message


class RowKeys(FrozenLake):
    def state_key(self):
        return (super().state_key() or "")[:1]


class WrongTexts(FrozenLake):
    def outcome_of_text(self, text: str):
        return ""


class NoTexts(FrozenLake):
    def key_of_text(self, text: str):
        return None


@pytest.mark.parametrize(
    ("game", "words"),
    [
        (RowKeys, "gives the name"),
        (WrongTexts, "Define TextEnv.key_of_text, text_of_key and outcome_of_text"),
    ],
)
def test_names_of_states_that_mislead_a_search_are_found(game: type[FrozenLake], words: str):
    found = {f.check: f for f in check(lambda: game(is_slippery=False), steps=20) if not f.ok}
    assert list(found) == ["a written search can be read again"]
    assert words in found["a written search can be read again"].message


def test_a_search_that_a_game_cannot_have_is_skipped():
    def said(game: type[FrozenLake], slippery: bool) -> str:
        findings = check(lambda: game(is_slippery=slippery), seeds=2, steps=20)
        return next(f.message for f in findings if "search" in f.check and f.ok)

    assert said(FrozenLake, False) == ""
    assert said(FrozenLake, True).startswith("skipped, because state_key returns None")
    assert said(NoTexts, False).startswith("for search_simulator alone")


class Hangs(FrozenLake):
    def clone(self, noise_seed=None):
        time.sleep(3600)


def test_a_check_that_hangs_is_named_and_the_others_are_run(capsys, monkeypatch):
    monkeypatch.setattr("spa_author.checker.CHECK_S", 2.0)
    assert execute(["env", "check", f"{__name__}:Hangs", "--steps", "20"]) == 1
    out = capsys.readouterr().out
    assert (
        "FAIL a clone is independent of its original\n     what: the check took more than 2 s"
        in out
    )
    assert "ok   the first prompt is complete and short" in out and "1 of 18 checks failed" in out


class Leaves(FrozenLake):
    def puzzle_text(self):
        raise SystemExit(0)


def test_code_that_leaves_fails_its_check():
    assert (
        failures(Leaves)["different seeds give different puzzles"]
        == "the environment called sys.exit(0)"
    )


class OverSoon(EachOnce):
    """Over after two actions, and with nothing to draw from then."""

    def legal_actions(self):
        return DIGITS if len(self.named) < 2 else ()

    def action_names(self):
        return ()

    def example_actions(self):
        return ("1", "2")

    def step(self, action: Any):
        state, _, _, _, info = super().step(action if len(self.named) < 2 else None)
        return state, 0.0, len(self.named) == 2, False, info


class SameNames(EachOnce):
    def action_names(self):
        return ("1", "2", "1 ")


def test_two_actions_of_one_name_are_a_flaw():
    assert failures(SameNames)["to_action reads every action name"] == (
        "action_names has '1' twice. Give every action another name."
    )


def test_nobody_asks_for_random_actions_of_a_game_that_is_over():
    assert failures(OverSoon) == {}


def test_free_text_actions_that_no_prompt_lists_are_told(capsys):
    (found,) = [
        finding
        for finding in check(OverSoon)
        if finding.check == "the first prompt is complete and short"
    ]
    assert found.ok and "show_legal_actions" in found.message
