"""Best-first search in Sokoban as text: the format letter by letter, its facts, wrong texts, and all
stages with the built-in model."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spa.config.load import load_config
from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.envs.registry import make_env
from spa.errors import ConfigError
from spa.evaluation.episode_metrics import episode_scores
from spa.examples.search import fresh_puzzles, make_examples, questions
from spa.examples.source import Puzzles
from spa.formats.base import SearchScore
from spa.formats.blocks import think_text
from spa.formats.registry import format_of, parse_response
from spa.formats.search import dealt, run_search
from spa.models.build import load_template
from spa.planning.dynamics import LearnedMoves, Simulator
from spa.policies.scripted import ScriptedEngine
from spa.prompts.render import STATE
from spa.recipes import pipeline, selfplay, setup
from spa.types import Prompt
from spa.worldmodel.sft_files import read_examples
from spa_games.formats.best_first import BestFirst, BestStates, Facts, facts_of
from spa_games.solvers.sokoban import live_cells
from spa_sweeps.methods import METHODS

FORM = BestFirst()
BOARD = "######\n#___P#\n#OX_##\n#____#\n#____#\n######"
EXAMPLE = """player14 box22 target21
21=0: Up11/01# Down31/41=1 Left20# Right22/23=1 ; 31 22
31/41=1: Up21 seen Down41/51# Left30# Right32/33=2 ; 22 32
22/23=1: Up12/02# Down32 seen Left21 seen Right23/24# ; 32
32/33=2: Up22 seen Down42/52# Left31 seen Right33/34=3 ; 33
33/34=3: Up23/13=4 Down43/53# Left32 seen Right34/35# ; 23
23/13=4: Up13/03# Down33 seen Left22 seen Right24#
player14 box22
1422/23=1+0: Up04# Down24# Left1322/23=1+1=3~121=4~330=4 Right15# ; 1322=4 Left
1322/23=1+1 Left: Up03# Down2322/23=1+2=4~220=4~330=4 Left1222/23=1+2=4~121=5~231=6 Right1422 seen ; 2322=4 Left Down 1222=6 Left Left
2322/23=1+2 Left Down: Up1322 seen Down3322/23=1+3=5~321=6~330=6 Left2221 goal
Left Down Left"""
START, *LINES = EXAMPLE.split("\n")
PLACES = LINES.pop(6)
WAITING = " ; 2322=4 Left Down 1222=6 Left Left"
TWO = "######\n#P___#\n#_X__#\n#_XO_#\n#_O__#\n######"
HARD = {"num_boxes": [1, 2], "hard": 10}


def room(board: str | None = None, seed: int = 0, **options: Any) -> TextEnv:
    """`board` may have keys, and a sentence after the grid."""
    env = make_env("sokoban", options)
    given = {}
    if board is not None:
        given = {"board": re.sub(r"\d\d", "", "\n".join(board.split("\n")[:6]))}
    env.reset(seed=seed, options=given)
    return env


def searched(env: TextEnv) -> Any:
    return run_search(FORM.searching(env.state_key() or "", env), FORM.reference(env))


def scored(text: str, env: TextEnv | None = None, *, complete: bool = True) -> SearchScore:
    env = env or room(BOARD)
    score = FORM.score(text, FORM.reference(env), env, complete=complete)
    assert score is not None
    return score


def test_the_example_is_written_letter_by_letter():
    env = room(BOARD)
    assert FORM.written(searched(env), env) == EXAMPLE
    assert EXAMPLE.replace("\n", "\n    ") in (
        __import__("spa_games.formats.best_first").formats.best_first.__doc__ or ""
    )


def test_two_boxes_have_two_numbers_and_the_player_goes_to_the_first_off_its_target():
    env = room(TWO, num_boxes=2)
    search = searched(env)
    first = next(line for line in FORM.written(search, env).split("\n") if "~" in line)
    moves, _, waiting = first.partition(" ; ")
    assert moves == (
        "112232/21=2,1+0: Up01# Down212232/21=2,1+1=7~220=7~110=7 Left10# Right122232/21=2,1+1=7~121=8~211=9"
    )
    assert waiting == "212232=7 Down 122232=9 Right"
    assert search.path is not None and wins(env, search.path)


def wins(env: TextEnv, path: Any) -> bool:
    twin = env.clone()
    for name in path:
        twin.step(twin.to_action(name) or 0)
    return twin.state_outcome() == "goal"


@pytest.mark.parametrize(
    ("options", "seed"),
    [*(({}, seed) for seed in range(12)), *((HARD, seed) for seed in range(4))],
)
def test_written_searches_win_and_score_in_full(options: dict[str, Any], seed: int):
    env = room(seed=seed, **options)
    search = searched(env)
    if search.path is None:  # the limit of lines came first
        assert len(search.lines) == 64
        return
    assert wins(env, search.path)
    text = FORM.written(search, env)
    score = scored(text, env)
    assert score.failure == ""
    assert score.moves == score.moves_right == score.status_right
    assert score.lines == score.next_right == len(search.lines)
    assert score.paths == score.paths_right == len(search.lines) + 1
    assert {*score.kinds} == {"fact", "note"}
    assert all(right == total for right, total in score.kinds.values())
    for cut in range(0, len(text) - 1, 97):
        assert scored(text[:cut], env, complete=False).failure == "over_limit"
    assert [*map(show_key, FORM.show(text, env.action_names()))] == [x.key for x in search.lines]


def show_key(line: dict[str, Any]) -> str:
    return line["key"]


@pytest.mark.parametrize("seed", range(10))
def test_dead_cells_are_those_from_which_no_lone_box_reaches_a_target(seed: int):
    env: Any = room(seed=seed, num_boxes=1 + seed % 2)
    puzzle = env.push_puzzle()
    assert puzzle is not None
    boxes = len(env.state_key() or "") // 2 - 1
    facts = run_search(facts_of(puzzle, boxes), FORM.reference(env))
    bits = live_cells(env.room.floor, env.room.targets, env.room.cols)
    alive = {f"{row}{col}" for row in range(6) for col in range(6) if bits >> (row * 7 + col) & 1}
    assert {*facts.pushes} == alive
    # Each push leads from its cell to one that is a push nearer.
    for cell, side in facts.sides.items():
        after = f"{2 * int(cell[0]) - int(side[0])}{2 * int(cell[1]) - int(side[1])}"
        assert facts.pushes[after] == facts.pushes[cell] - 1


def test_facts_are_those_of_the_predicted_moves():
    """A model for which no box moves knows no pushes, so every cell but the target is dead."""
    env = room(BOARD)
    puzzle = env.push_puzzle()
    assert puzzle is not None
    stuck = run_search(facts_of(puzzle, 1), lambda key: [("Up", key, "")])
    assert stuck == Facts({"21": 0}, {})


def text_of(lines: list[str]) -> str:
    """Lines of facts and of the search, with the places before each."""
    facts = sum(bool(re.match(r"\d\d([/<]\d\d)?(=\d+)?:", line)) for line in lines)
    return "\n".join([START, *lines[:facts], PLACES, *lines[facts:]])


def with_line(number: int, old: str, new: str) -> str:
    """The example with a change in a line after the places."""
    assert old in LINES[number]
    return text_of([*LINES[:number], LINES[number].replace(old, new, 1), *LINES[number + 1 :]])


CORRUPTED = {
    "wrong place": ("wrong_fact", EXAMPLE.replace("box22", "box23", 1)),
    "no places": ("wrong_fact", "\n".join(LINES)),
    "wrong wall": ("wrong_fact", with_line(0, "Left20#", "Left20/30#")),
    "wrong fact": ("wrong_fact", with_line(0, "22/23=1", "22/23=2")),
    "wrong seen": ("wrong_fact", with_line(1, "Up21 seen", "Up21/11#")),
    "wrong cell": ("wrong_fact", with_line(2, "22/23=1:", "22/23=2:")),
    "wrong list": ("wrong_fact", with_line(1, "; 22 32", "; 32 22")),
    "cell left out": ("wrong_fact", text_of([*LINES[:5], *LINES[6:]])),
    "cell twice": ("wrong_fact", text_of([*LINES[:6], *LINES[5:]])),
    "head without a number": ("wrong_fact", with_line(2, "22/23=1:", "22<23:")),
    "wrong aim": ("wrong_fact", with_line(7, "/23", "/33")),
    "wrong pushes": ("wrong_fact", with_line(7, "/23=1", "/23=2")),
    "no note": ("wrong_fact", with_line(7, "/23=1+1", "")),
    "wrong length": ("wrong_fact", with_line(7, "+1 L", "+2 L")),
    "skipped": (
        "skipped",
        text_of([*LINES[:8], "1222/23=1+2 Left Left: Up02# Down2232/33=2+3=7~231=8~231=9"]),
    ),
    "never found": ("never_found", with_line(7, "1322/", "1122/")),
    "again": ("expanded_again", text_of([*LINES[:8], *LINES[7:]])),
    "wrong path": ("wrong_path", with_line(7, "+1 Left:", "+1 Up:")),
    "wrong move": ("wrong_move", with_line(7, "Left1222/23", "Left1122/23")),
    "wrong blocked cell": ("wrong_move", with_line(6, "Up04#", "Up05#")),
    "a state blocks": ("wrong_move", with_line(6, "Up04#", "Up1321#")),
    "not blocked": ("wrong_move", with_line(6, "Up04#", "Up0422/23=1+1=3~022=5~431=6")),
    "missing action": ("wrong_move", with_line(6, " Right15#", "")),
    "wrong estimate": ("wrong_status", with_line(7, "231=6", "231=4")),
    "wrong distance": ("wrong_status", with_line(7, "~121", "~120")),
    "wrong sum": ("wrong_status", with_line(7, "+2=4~121", "+2=5~121")),
    "wrong length of a move": ("wrong_status", with_line(7, "Left1222/23=1+2", "Left1222/23=1+1")),
    "wrong aim of a move": ("wrong_status", with_line(7, "Left1222/23", "Left1222/33")),
    "wrong word": ("wrong_status", with_line(8, "Up1322 seen", "Up1322/23=1+3=5~121=6~330=6")),
    "no goal": ("no_goal", text_of([*LINES[:8], LINES[9]])),
    "wrong end": ("wrong_path", with_line(9, "Left Down Left", "Left Left")),
    "no end": ("wrong_path", text_of(LINES[:9])),
    "unreadable line": ("unreadable", with_line(7, "Up03#", "Up03#!")),
    "two statuses": ("unreadable", with_line(8, "~330=6", "~330=6 seen")),
    "no open states": ("wrong_open", with_line(7, WAITING, "")),
    "open state left out": ("wrong_open", with_line(7, " 1222=6 Left Left", "")),
    "wrong order of open states": (
        "wrong_open",
        with_line(7, WAITING, " ; 1222=6 Left Left 2322=4 Left Down"),
    ),
    "wrong estimate of an open state": ("wrong_open", with_line(7, " 1222=6 L", " 1222=4 L")),
    "wrong path of an open state": ("wrong_open", with_line(7, "Left Down 12", "Down Left 12")),
    "no search": ("unreadable", text_of(LINES[:6])),
    "no facts": ("wrong_fact", text_of(LINES[6:])),
    "blanks": ("unreadable", with_line(8, " Down3322", "  Down3322")),
    "no state": ("unreadable", with_line(7, "1322/", "13/")),
    "half a cell": ("wrong_move", with_line(7, "Left1222/", "Left122/")),
}


@pytest.mark.parametrize("case", CORRUPTED)
def test_each_corruption_lands_in_its_class(case: str):
    failure, text = CORRUPTED[case]
    score = scored(text)
    assert score.failure == failure
    assert all(0 <= right <= total for right, total in score.kinds.values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n" * 9,
        ":",
        "1422/23=1:",
        "21=0:",
        "22/23=" + "9" * 5000 + ":",
        "x" * 500,
        "=\n<\n>" * 5,
    ],
)
def test_any_text_has_a_score(text: str):
    for complete in (True, False):
        assert scored(text, complete=complete).failure
        FORM.parts(text)
        FORM.show(text, ("Up", "Down", "Left", "Right"))


def test_estimates_are_judged_by_the_facts_that_the_text_has_written():
    text = EXAMPLE.replace("22/23=1", "22/23=3")
    text = re.sub(r"([+~]\d+|\d{4})=(\d)", lambda m: f"{m[1]}={int(m[2]) + 4}", text)
    score = scored(text)
    assert score.failure == "wrong_fact" and score.kinds["fact"] == (53, 55)
    assert score.moves == score.moves_right == score.status_right


def test_a_cut_off_text_that_was_wrong_before_is_not_over_the_limit():
    wrong = CORRUPTED["wrong fact"][1]
    assert scored(wrong[:90], complete=False).failure == "wrong_fact"
    assert scored(wrong[:30], complete=False).failure == "over_limit"


def test_facts_that_are_missing_count_as_wrong():
    for case in ("cell left out", "head without a number", "no facts"):
        right, total = scored(CORRUPTED[case][1]).kinds["fact"]
        assert right < total and total >= 53, case


def test_only_lines_of_the_search_have_notes():
    for text in (text_of(LINES[:9]), text_of([*LINES, LINES[6]])):
        score = scored(text)
        assert score.kinds["note"] == (score.lines, score.lines) == (3, 3)
    begun = text_of([*LINES[:7], LINES[7].replace("/23", "/33", 1)])[:-3]
    score = scored(begun, complete=False)
    assert score.failure == "over_limit" and score.kinds["note"] == (1, 1)


def test_parts_are_every_word_by_what_it_is():
    text = f"<think>{EXAMPLE}</think><answer>Left || Down</answer>"
    for shift in (0, len("<think>")):  # a response may lack its prefill
        parts = [(kind, text[shift:][a:b]) for kind, a, b in FORM.parts(text[shift:])]
        counts = Counter(kind for kind, _ in parts)
        assert counts == {
            "place": 5,
            "cell": 6,
            "fact": 32,
            "open": 15,
            "next": 3,
            "note": 7,
            "path": 6,
            "move": 11,
            "estimate": 4,
            "status": 3,
            "answer": 1,
        }
        assert parts[2:5] == [("place", "target21"), ("cell", "21=0"), ("fact", "Up11/01#")]
        for part in (
            ("cell", "22/23=1"),
            ("open", "32"),
            ("open", "1222=6"),
            ("fact", "seen"),
            ("next", "1322"),
            ("note", "/23=1+1"),
            ("move", "Up04#"),
        ):
            assert part in parts
        assert [word for kind, word in parts if kind == "estimate"] == [
            *("=3~121=4~330=4", "=4~220=4~330=4", "=4~121=5~231=6", "=5~321=6~330=6")
        ]
        assert parts[-1] == ("answer", "Left || Down")


def test_the_lowest_estimate_is_expanded_first_and_equal_ones_in_order():
    found = BestStates("1422", Facts({"21": 0, "22": 1}, {"22": "23"}), ("21",))
    found.close("1422")
    for key, status in (
        ("1322", "/23=1+0=5~121=6~330=6"),
        ("1222", "/23=1+0=4~220=4~330=4"),
        ("2221", "/23=0+0=3~121=4~330=4"),
        ("3122", "/23=1+0=3~121=4~231=5"),
    ):
        found.add(key, ("Up",), status)
    assert found.listed() == ("1222=4", "Up", "2221=4", "Up", "3122=5", "Up", "1322=6", "Up")
    order = []
    while (key := found.next()) is not None:
        order.append(key)
        found.close(key)
    assert order == ["1222", "2221", "3122", "1322"]


def test_a_push_has_its_pushes_and_an_estimate():
    """The player in cell 23 pushes the box from 22 to 21: path 1, pushes 2, distance 2."""
    facts = Facts({"41": 0, "31": 1, "21": 2, "22": 3}, {"31": "21", "21": "11", "22": "23"})
    found = BestStates("2322", facts, ("41",))
    assert found.note("2322") == "/23=3+0"
    # 1, plus twice 2, plus a row and a column to cell 11; 1, plus twice 3, plus a row to cell 23.
    assert found.status("2322", "2221", "") == "/11=2+1=5~211=6~211=7"
    assert found.status("2322", "1322", "") == "/23=3+1=7~121=8~330=8"
    assert found.status("2322", "2242", "") == "dead"


def test_a_world_with_permuted_outcomes_has_the_same_facts_and_a_path():
    env = room(BOARD)
    true, _ = FORM.explore(env)
    world = dealt(true, np.random.default_rng(1))
    false = run_search(FORM.searching("1422", env), world.__getitem__)
    assert false.facts == searched(env).facts and false.path is not None
    score = scored(FORM.written(false, env))
    assert score.moves_right < score.moves and score.kinds["fact"] == (55, 55)


SETTINGS = (
    "model_path=builtin:tiny",
    "sft.model.partial_pretrain=builtin:tiny",
    "es_manager.val.env_groups=4",
    "es_manager.val.group_size=1",
    "actor_rollout_ref.rollout.response_length=24",
    "actor_rollout_ref.model.dtype=float32",
    "sft.model.dtype=float32",
    "generate.sampling.response_length=1600",
    "actor_rollout_ref.rollout.max_model_len=2400",
    "sft.data.max_length=2400",
    "sft.data.max_token_len_per_gpu=4096",
    "generate.search.examples=4",
    "generate.search.start_share=0.5",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.eval_episodes=1",
    "trainer.device=cpu",
    "trainer.logger=[]",
)
PRESETS = ("smol_sokoban_search", "smol_sokoban_hard_search")


def config(
    *overrides: str, preset: str = PRESETS[0], method: str = "best_first_simulator"
) -> Config:
    return load_config(preset, [*SETTINGS, *METHODS[method].overrides, *overrides])


def puzzles_of(cfg: Config) -> Puzzles:
    worker = setup.make_worker(cfg, None, mode="base")
    return Puzzles(worker=worker, held_out=setup.validation_hashes(cfg, worker))


def true_move(prompt: Prompt) -> str:
    """What decides a move, and the state that it leads to, from the grid of a question."""
    grid, _, _ = prompt.messages[-1]["content"].partition(STATE)[2].partition("\nPlayer")
    env = room(grid, num_boxes=grid.count("X") + grid.count("√"), cell_keys=True)
    action = prompt.prefill.removeprefix("<think>")
    way = env.way(env.state_key() or "", action)
    env.step(env.to_action(action) or 0)
    return f"{prompt.prefill}{way}>{env.state_key()}"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_model_that_is_always_right_writes_what_copies_of_the_game_write(preset: str):
    cfg = config("generate.search.examples=1", preset=preset)
    puzzles = puzzles_of(cfg)
    learned = LearnedMoves(ScriptedEngine(true_move), None)
    examples, *_ = make_examples(cfg, puzzles, learned)
    wanted, *_ = make_examples(cfg, puzzles, Simulator())
    assert examples == [replace(example, reward=0.0) for example in wanted]
    assert learned.counts["move_right"] == learned.counts["search_right"] == 1.0


def test_examples_are_right_searches_and_controls_are_not():
    arms = {
        name: make_examples(config(method=name), puzzles_of(config(method=name)), Simulator())[0]
        for name in ("best_first_simulator", "best_first_dealt", "best_first_other_puzzle")
    }
    right = dict.fromkeys(arms, 0)
    for name, examples in arms.items():
        assert [each.prompt for each in examples] == [
            each.prompt for each in arms["best_first_simulator"]
        ]
        for example in examples:
            env = room(example.state)
            score = scored(think_text(example.response)[0], env)
            right[name] += score.failure == ""
            response = parse_response(
                example.response, mode="base", max_actions=2, order="best_first"
            )
            assert response.well_formed and response.actions == example.executed
    total = len(arms["best_first_simulator"])
    assert right["best_first_simulator"] == total > 0
    assert right["best_first_other_puzzle"] == 0 and right["best_first_dealt"] < total


def test_a_wrong_model_writes_its_own_facts():
    """Where no box moves, no puzzle has a path."""
    cfg = config()

    def still(prompt: Prompt) -> str:
        before = room(prompt.messages[-1]["content"].partition(STATE)[2])
        text = true_move(prompt)
        moved = text.removeprefix(prompt.prefill)[2:] != (before.state_key() or "")[2:]
        return f"{prompt.prefill}{before.state_key()}" if moved else text

    learned = LearnedMoves(ScriptedEngine(still), None)
    part = [*islice(fresh_puzzles(cfg, puzzles_of(cfg), Counter(), most=8), 2)]
    asked = questions(part, puzzles_of(cfg).worker, learned)
    for search in learned.search(asked, FORM):
        assert search is not None and search.path is None and not search.facts.sides


def test_all_stages(tmp_path: Path):
    cfg = config(f"trainer.run_dir={tmp_path}")
    data = selfplay.run_self_play(cfg, directory=tmp_path / "data")
    examples = read_examples(data / "wm_train.parquet")
    assert len(examples) == 4
    pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    measured = json.loads((tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()[-1])
    for kind in ("cell", "fact", "open", "note", "next", "move", "estimate", "path"):
        assert 0 <= measured[f"val/teacher_forced/{kind}"] <= 1
    assert "val/search/exact" in measured and "val/search/wrong_fact" in measured


def test_played_searches_are_scored_in_the_state_of_their_turn():
    cfg = config("state_text=grid")
    worker = setup.make_worker(cfg, setup_template(cfg), mode="base")

    def answer(prompt: Prompt) -> str:
        env = room(prompt.messages[-1]["content"].rpartition(STATE)[2].rpartition("\nActions")[0])
        search = searched(env)
        actions = " || ".join((search.path or ("Up",))[:2])
        text = FORM.written(search, env) if search.path else ""
        return f"<think>{text}</think><answer>{actions}</answer>"

    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
    sampling = replace(setup.val_sampling(cfg), max_tokens=1600)
    engine = ScriptedEngine(answer, setup_template(cfg))
    for episode in worker.rollout(engine, specs, sampling):
        scores = episode_scores(episode, worker.make_env)
        assert len(scores) == len(episode.turns)
        assert all(score.failure == "" for score in scores)
        assert episode.success


def setup_template(cfg: Config) -> Any:
    return load_template(cfg, cfg.model_path)


def test_presets_ask_for_the_search_and_their_controls():
    preset = PRESETS[0]
    cfg = load_config(preset)
    form = format_of(cfg.agent_proxy.response_format)
    assert isinstance(form, BestFirst)
    assert {*form.controls()} <= {*METHODS}
    for name in ("best_first_model", "best_first_simulator", *form.controls()):
        own = load_config(preset, METHODS[name].overrides)
        assert own.agent_proxy.response_format == form.name
    worker = setup.make_worker(cfg, None, mode="base")
    tag = cfg.es_manager.train.env_configs.tags[0]
    env = worker.make_env(tag)
    env.reset(seed=0)
    text = worker.prompters[tag].first_messages(env)[1]["content"]
    assert "Reply only with <think>[best-first search, states as two digits for the player" in text


def test_what_shows_no_grid_is_refused():
    with pytest.raises(ConfigError, match="state_text: must be grid or grid_and_coords with agent"):
        config("state_text=coords")
    lake = "FrozenLakeNoSlip"
    cfg = config(
        f"es_manager.train.env_configs.tags=[{lake}]", f"es_manager.val.env_configs.tags=[{lake}]"
    )
    with pytest.raises(ConfigError, match=r"FrozenLake\.push_puzzle returns None"):
        make_examples(cfg, puzzles_of(cfg), Simulator())
