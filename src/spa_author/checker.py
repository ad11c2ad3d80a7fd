"""The conformance suite, which checks whether every stage of the recipe can use an environment.

`check` runs all checks on fresh instances and returns the findings. The finding of a failed check
explains why the failure matters.
"""

import inspect
import json
import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from spa.envs.base import StateText, TextEnv, look_as_mover, require_labels
from spa.envs.branch import Past, branch
from spa.envs.limits import EnvFault, TimedOut, time_limit
from spa.envs.options import STATE_TEXTS
from spa.errors import ConfigError
from spa.formats.blocks import contains_marker
from spa.formats.search import TooManyStates, breadth_first, explore, score_search, write_search
from spa.planning.moves import leaves_out_actions, readable_modes, require_names
from spa.prompts.render import Prompter
from spa.seeds import stream
from spa.types import IMAGE

Make = Callable[[], TextEnv]
INFO_KEYS = ("action_is_valid", "action_is_effective", "success")
# Texts that name no action, except perhaps in a free-text game. They include tags and separators of
# the format, a number that int() rejects (more than 4,300 digits), a long text, and a lone
# surrogate, which UTF-8 cannot encode.
NONSENSE = (
    "",
    " ",
    "\x00",
    "no such action",
    "||",
    "<answer>",
    "[[[[",
    "9" * 5000,
    "a" * 100_000,
    "\ud800",
)
PROMPT_LIMIT = 16_000
"""Maximum number of characters of the first prompt: about 4,000 tokens, the context length of most
configurations."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str  # name of the check
    ok: bool
    message: str = ""  # the problem, or a note on a passed check
    advice: str = ""  # why a failure matters, and how to fix it


class Flaw(Exception):
    """Raised by a check that fails. Its arguments become `Finding.message` and `Finding.advice`."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


Checks = Mapping[str, Callable[[], str | None]]
"""Check functions by name, in the order of execution. A function raises `Flaw` if its check fails;
otherwise it returns a note or None."""
MADE = "can be made"
_WORD = re.compile(r"\w+")
_SURROGATE = re.compile("[\ud800-\udfff]")
NEVER_RAISE = (
    "an environment must not raise during play; let step count a bad action as an invalid turn"
)
CHECK_S = 240.0
"""Time limit of one check in seconds."""


def check(make: Make, *, seeds: int = 5, steps: int = 200) -> list[Finding]:
    """Run every check on environments that `make` creates. Plays `seeds` puzzles with at most
    `steps` actions per episode."""
    return list(run_checks(all_checks(make, seeds=seeds, steps=steps)))


def run_checks(checks: Checks) -> Iterator[Finding]:
    """Run the checks in order and yield their findings. Stops after the first check if the
    environment cannot be created."""
    for name, run in checks.items():
        finding = run_check(name, run)
        yield finding
        # Every other check needs an instance.
        if name == MADE and not finding.ok:
            return


def all_checks(make: Make, *, seeds: int = 5, steps: int = 200) -> Checks:
    """Return all checks for environments that `make` creates. The arguments are those of
    `check`."""
    return {
        MADE: lambda: _made(make),
        "Gymnasium's own checker": lambda: _gymnasium(make),
        "the same seed gives the same episode": lambda: _deterministic(make, seeds, steps),
        "noise_seed does not change the puzzle": lambda: _noise(make, seeds),
        "different seeds give different puzzles": lambda: _puzzles(make),
        "puzzle_text is constant in an episode": lambda: _same_puzzle(make),
        "to_action reads every action name": lambda: _actions(make),
        "to_action does not depend on the state": lambda: _reading(make, seeds),
        "unknown actions count as invalid turns": lambda: _nonsense(make),
        "state_text returns a string in every state": lambda: _states(make, seeds, steps),
        "world_state_text holds only what the messages show": lambda: _known(make, seeds, steps),
        "state_value returns a value from -1 to 1": lambda: _valued(make, seeds, steps),
        "step accepts every action in legal_actions": lambda: _legal(make, seeds),
        "a clone is independent of its original": lambda: _clones(make, seeds),
        "step returns valid rewards, flags and info": lambda: _steps(make, seeds, steps),
        "expert_actions reaches the goal": lambda: _expert(make, seeds, steps),
        "a written search can be read again": lambda: _searched(make, seeds),
        "the first prompt is complete and short": lambda: _prompts(make),
    }


def run_check(name: str, run: Callable[[], str | None]) -> Finding:
    """Run one check and return its finding. The check fails if it raises `Flaw` or another
    exception, or exceeds its time limit."""
    try:
        with time_limit(CHECK_S, "the check"):
            message = run()
    except TimedOut as error:
        return Finding(
            name, False, str(error), "during training, the episode would wait or lose its turn"
        )
    except Flaw as flaw:
        return Finding(name, False, flaw.message, flaw.advice)
    except SystemExit as error:
        return Finding(
            name,
            False,
            f"the environment called sys.exit({error.code!r})",
            "remove sys.exit, which would end the training process",
        )
    except Exception as error:  # noqa: BLE001 - environments are other people's code
        where = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Finding(name, False, where, NEVER_RAISE)
    return Finding(name, True, message or "")


def episode(env: TextEnv, seed: int, steps: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Play a random episode, and yield each action text with the result of `step`. Stops at the end
    of the episode, or after `steps` actions. Raises Flaw if `to_action` does not accept a random
    action."""
    rng = stream(seed, "checker")
    for _ in range(steps):
        look_as_mover(env)
        text = env.random_action(rng)
        action = env.to_action(text)
        if action is None:
            raise Flaw(
                f"random_action returned {text!r}, which to_action does not accept",
                "the random policy needs actions that random_action returns and to_action accepts",
            )
        result = env.step(action)
        yield text, result
        if result[2] or result[3]:
            return


def _require(condition: bool, message: str, advice: str) -> None:
    if not condition:
        raise Flaw(message, advice)


def _made(make: Make) -> None:
    try:
        env = make()
    except Exception as error:
        raise Flaw(
            f"{type(error).__name__}: {error}",
            "give every option of the environment a default value",
        ) from error
    _require(
        isinstance(env, TextEnv),
        f"{type(env).__name__} is not a subclass of TextEnv",
        "derive the environment's class from spa.envs.base.TextEnv",
    )


def _gymnasium(make: Make) -> None:
    env = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_env(env, skip_render_check=True)
        except (AssertionError, gymnasium.error.Error) as error:
            raise Flaw(
                f"{type(error).__name__}: {error}",
                "call super().reset(seed=seed) in reset; set observation_space and action_space "
                "in __init__",
            ) from error
        except Exception as error:
            raise Flaw(
                f"{type(error).__name__}: {error} ({_place(error, env)})", NEVER_RAISE
            ) from error


def _place(error: Exception, env: TextEnv) -> str:
    """Return the file and line that raised `error`, preferably a line in the game's own file."""
    frames = traceback.extract_tb(error.__traceback__)
    file = inspect.getfile(type(env))
    last = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"{last.filename}, line {last.lineno}"


def _play_trace(env: TextEnv, seed: int, steps: int) -> list[Any]:
    # As in training, the noise seed differs from the puzzle seed.
    first, _ = env.reset(seed=seed, options={"noise_seed": seed + 1})
    return [
        first,
        env.puzzle_text(),
        env.instruction("grid"),
        *(
            (text, *result[:4], sorted(result[4].items()))
            for text, result in episode(env, seed, steps)
        ),
    ]


def _deterministic(make: Make, seeds: int, steps: int) -> None:
    advice = (
        "sample from spa.seeds.stream(seed, ...) in reset, and keep no data from the last episode"
    )
    # One instance plays all seeds. If it keeps state from earlier episodes, it plays differently
    # from a new one.
    used = make()
    for seed in range(seeds):
        fresh = _play_trace(make(), seed, steps)
        _require(
            fresh == _play_trace(make(), seed, steps),
            f"two new instances of the environment play seed {seed} differently",
            advice,
        )
        _require(
            fresh == _play_trace(used, seed, steps),
            f"after other episodes, an instance of the environment plays seed {seed} "
            "differently from a new instance",
            advice,
        )


def _noise(make: Make, seeds: int) -> None:
    env = make()
    for seed in range(seeds):
        starts = set()
        for noise in range(3):
            state, _ = env.reset(seed=seed, options={"noise_seed": noise})
            starts.add((state, env.puzzle_text()))
        _require(
            len(starts) == 1,
            f"the puzzle of seed {seed} changes with the noise seed",
            "all episodes of a group share the puzzle: options['noise_seed'] may change what "
            "happens later, not the initial state",
        )


def _puzzles(make: Make) -> str | None:
    """Check that the seed changes the puzzle, unless the environment declares that it has few
    puzzles."""
    env = make()
    texts = {}
    advice = (
        "generate the puzzle from the seed, and return the whole puzzle from puzzle_text, "
        "because spa compares puzzles by this string"
    )
    for seed in range(30):
        env.reset(seed=seed)
        start = env.world_state_text(env.default_state_text)
        _require(
            texts.setdefault(env.puzzle_text(), start) == start,
            "two seeds have the same puzzle_text but different initial states",
            advice,
        )
    if len(texts) > 1:
        return None
    _require(
        env.finite_puzzles,
        "30 different seeds give the same puzzle",
        f"{advice}; if the game has few puzzles, set finite_puzzles = True",
    )
    return (
        "30 different seeds give the same puzzle, which is correct only if the game has a "
        "single initial state"
    )


def _same_puzzle(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    before = env.puzzle_text()
    _require(
        isinstance(before, str) and bool(before),
        f"puzzle_text returns {before!r}",
        "puzzle_text must return a string that is not empty, because spa compares puzzles by it",
    )
    for text, _ in episode(env, 0, 20):
        _require(
            env.puzzle_text() == before,
            f"puzzle_text changes during an episode (after the action {text!r})",
            "puzzle_text must return the initial puzzle in every state, because spa splits "
            "training and validation puzzles by it",
        )


def _actions(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    advice = "to_action must accept every label in the prompt, in upper and in lower case"
    try:
        require_labels("action_names", env.action_names())
    except ConfigError as error:
        raise Flaw(str(error), advice) from error
    for name in env.action_names():
        for text in (name, name.lower(), name.upper(), f" {name} "):
            _require(
                env.to_action(text) is not None,
                f"to_action does not accept the action name {text!r}",
                advice,
            )
    examples = env.example_actions()
    _require(
        bool(examples),
        "example_actions returns no action",
        "example_actions must return at least one action, which the prompt's sample response shows",
    )
    for text in examples:
        _require(
            env.to_action(text) is not None,
            f"to_action does not accept {text!r} from example_actions",
            advice,
        )
    for text in [*env.action_names(), *examples]:
        _require(
            "||" not in text,
            f"the action name {text!r} contains ||, the separator between actions",
            "rename the action; a string with || is read as two actions",
        )


def _reading(make: Make, seeds: int) -> None:
    """Check that `to_action` reads each action text of later states as the same action in the
    initial state."""
    for seed in range(seeds):
        env = make()
        # `first` is never stepped: it reads every text in the initial state.
        first = make()
        for one in (env, first):
            one.reset(seed=seed, options={"noise_seed": seed + 1})
        for taken, (_, _, terminated, truncated, _) in episode(env, seed, 20):
            for text in () if terminated or truncated else (taken, *env.legal_actions()):
                now = env.to_action(text)
                then = first.to_action(text)
                _require(
                    now == then,
                    f"to_action({text!r}) returns {now!r} after the action {taken!r}, but "
                    f"{then!r} at the start of the episode (seed {seed})",
                    "spa reads all actions of a turn before it executes the first; to_action must "
                    "not depend on the state, and step decides whether an action is valid",
                )


def _nonsense(make: Make) -> None:
    env = make()
    advice = (
        "a model may write any string: return None from to_action, and count unknown actions as "
        "invalid in step"
    )
    for text in NONSENSE:
        try:
            env.reset(seed=0)
            action = env.to_action(text)
        except Exception as error:
            raise Flaw(
                f"to_action({text[:20]!r}) raises {type(error).__name__}: {error}", advice
            ) from error
        _require(
            action is None or isinstance(action, int | str), f"to_action gives {action!r}", advice
        )
    # Other libraries may pass the argument of a model's tool call to `step` without validation.
    for action in (-1, 10**30, "no such action", None, [1], 1.5):
        env.reset(seed=0)
        before = env.state_text(env.default_state_text)
        try:
            _, _, _, _, info = env.step(action)  # type: ignore[arg-type]
        except Exception as error:
            raise Flaw(
                f"step({action!r}) raises {type(error).__name__}: {error}", advice
            ) from error
        # A free-text game may report in its state text that it did not understand the action.
        same = not env.action_names() or env.state_text(env.default_state_text) == before
        # A missing key is reported by the check of `info`.
        effective = info.get("action_is_effective") or info.get("success")
        _require(
            info.get("action_is_valid") or (same and not effective),
            f"step({action!r}) marks the action as invalid but still executes it",
            advice,
        )


def _states(make: Make, seeds: int, steps: int) -> None:
    env = make()
    for seed in range(seeds):
        shown, _ = env.reset(seed=seed)
        _check_state(env, shown)
        for _, (shown, *_) in episode(env, seed, steps):
            _check_state(env, shown)


def _check_state(env: TextEnv, shown: str) -> None:
    for mode in STATE_TEXTS:
        text = env.state_text(mode)
        _require(
            isinstance(text, str) and bool(text),
            f"state_text({mode!r}) gives {text!r}",
            "state_text must return a string that is not empty",
        )
        advice = (
            "spa compares states and puts them between tags: remove white space at both ends "
            "and tags of the response format"
        )
        _require(
            text == text.strip(),
            f"state_text({mode!r}) begins or ends with white space: {text!r}",
            advice,
        )
        _require(
            not contains_marker(text),
            f"state_text({mode!r}) contains a tag of the response format",
            advice,
        )
        _require(
            text == env.state_text(mode),
            f"state_text({mode!r}) returns different strings when called twice in the same state",
            "state_text must not change the environment",
        )
        _require(
            _SURROGATE.search(text) is None,
            f"state_text returns {text!r}, which is not valid Unicode",
            "spa stores states as UTF-8 JSON; return only valid Unicode from state_text",
        )
        known = env.world_state_text(mode)
        _require(
            isinstance(known, str)
            and bool(known)
            and known == known.strip()
            and not contains_marker(known)
            and known == env.world_state_text(mode),
            f"world_state_text({mode!r}) gives {known!r}",
            "world_state_text must return a string in every state, without white space at its "
            "ends or tags of the response format",
        )
    _require(
        shown == env.state_text(env.default_state_text),
        "reset or step returns an observation that differs from state_text",
        "reset and step must return state_text(self.default_state_text) as the observation",
    )


def _known(make: Make, seeds: int, steps: int) -> str | None:
    """Return a note with the share of words in `world_state_text` that no message of the episode
    contains, or None if the share is 0."""
    env = make()
    words = 0
    hidden = 0
    mode = env.default_state_text
    for seed in range(seeds):
        env.reset(seed=seed)
        shown = set(_WORD.findall(f"{env.instruction(mode)} {env.state_text(mode)}"))
        states = [env.world_state_text(mode)]
        for text, _ in episode(env, seed, steps):
            shown.update(_WORD.findall(f"{text} {env.state_text(mode)}"))
            states.append(env.world_state_text(mode))
        # A word counts as shown if any message of the episode contains it, earlier or later.
        target = [word for state in states for word in _WORD.findall(state)]
        words += len(target)
        hidden += sum(word not in shown for word in target)
    if not hidden:
        return None
    return (
        f"{hidden / words:.0%} of the words of world_state_text appear in no message of the "
        "episode, so the model would learn to guess them. Return only what the player can "
        "know, unless you want to measure guesses"
    )


def _valued(make: Make, seeds: int, steps: int) -> str | None:
    """Check that `state_value` returns values from -1 to 1, also for invalid texts, because
    planners apply it to states that a model has written."""
    env = make()
    mode = env.default_state_text
    advice = (
        "state_value must return 1 if the goal is reached, -1 if the goal is out of reach, and "
        "0 otherwise. If the game has no values, return None"
    )
    valued = False
    for seed in range(seeds):
        env.reset(seed=seed)
        for text, (_, _, _, _, info) in episode(env, seed, steps):
            value = env.state_value(env.world_state_text(mode))
            if value is None:
                continue
            valued = True
            _require(
                -1 <= value <= 1, f"state_value returns {value!r} after the action {text!r}", advice
            )
            _require(
                # A winning state whose text does not show the win may have the value 0, but never a
                # negative one.
                not (info["success"] and value < 0),
                f"state_value returns {value!r} in a state in which the goal is reached",
                advice,
            )
    for nonsense in NONSENSE:
        value = env.state_value(nonsense)
        _require(
            value is None or -1 <= value <= 1,
            f"state_value returns {value!r} for the invalid state text {nonsense[:20]!r}",
            advice,
        )
    return (
        None
        if valued
        else "state_value returns None in every state, so model-based planning is not possible"
    )


def _steps(make: Make, seeds: int, steps: int) -> None:
    env = make()
    for seed in range(seeds):
        env.reset(seed=seed)
        before = env.state_text(env.default_state_text)
        for text, (shown, reward, terminated, truncated, info) in episode(env, seed, steps):
            _require(
                isinstance(reward, int | float) and math.isfinite(reward),
                f"step returns the reward {reward!r} after the action {text!r}",
                "return a finite number as the reward",
            )
            _require(
                isinstance(terminated, bool) and isinstance(truncated, bool),
                f"step returns terminated={terminated!r} and truncated={truncated!r}",
                "return terminated and truncated as bool",
            )
            missing = [key for key in INFO_KEYS if not isinstance(info.get(key), bool)]
            _require(
                not missing,
                f"the info that step returns lacks the bool keys {missing}",
                "add the keys to info, because spa computes metrics from them",
            )
            lists = [info.get(key) for key in ("rewards", "successes")] if env.players > 1 else []
            _require(
                all(isinstance(one, list | tuple) and len(one) == env.players for one in lists),
                f"info['rewards'] or info['successes'] does not have {env.players} entries, one "
                "per player",
                "with several players, info['rewards'] and info['successes'] need one entry "
                "per player",
            )
            _require(
                _is_json(info),
                f"step returns an info that JSON cannot store: {info!r}",
                "spa writes info to the trajectory files: use only strings, numbers, lists, and "
                "dicts with string keys",
            )
            _require(
                not info["success"] or terminated,
                "success without terminated",
                "return terminated=True when the goal is reached",
            )
            _require(
                shown == before or info["action_is_effective"] or info["action_is_valid"],
                f"the action {text!r} is invalid but changes the state",
                "let an invalid action leave the state unchanged",
            )
            before = shown


def _legal(make: Make, seeds: int) -> None:
    """Check that actions in `legal_actions` are accepted and valid in the first states of a game.
    If the list has all action names, validity is not checked."""
    for seed in range(seeds):
        env = make()
        options = {"noise_seed": seed + 1}
        env.reset(seed=seed, options=options)
        done = list[Any]()
        over = False
        while not over and len(done) < 3:
            look_as_mover(env)
            listed = env.legal_actions()
            for text in listed:
                action = env.to_action(text)
                advice = (
                    "legal_actions must list only strings that to_action accepts and that step "
                    "executes as valid actions"
                )
                _require(
                    action is not None,
                    f"to_action does not accept {text!r} from legal_actions",
                    advice,
                )
                # The default `legal_actions` lists all action names in every state, so it does not
                # claim that they are legal.
                if listed != env.action_names() and action is not None:
                    twin = branch(env, Past(make=make, seed=seed, options=options, actions=done))
                    _require(
                        twin.step(action)[4]["action_is_valid"],
                        f"legal_actions lists {text!r}, but step marks the action as invalid "
                        f"(seed {seed})",
                        advice,
                    )
            for text, (_, _, terminated, truncated, _) in episode(env, seed, 1):
                done.append(env.to_action(text))
                over = terminated or truncated


def _clones(make: Make, seeds: int) -> None:
    """Check that a copy made in the middle of a game, by `clone` or by replaying the actions, is
    independent of the original."""
    for seed in range(seeds):
        env = make()
        options = {"noise_seed": seed + 1}
        done: list[Any] = []
        env.reset(seed=seed, options=options)
        for text, (_, _, terminated, truncated, _) in episode(env, seed, 2):
            # If this action ends the game, the state before it is cloned instead.
            if terminated or truncated:
                env.reset(seed=seed, options=options)
                for action in done:
                    env.step(action)
                break
            done.append(env.to_action(text))
        look_as_mover(env)
        before = _seen(env)
        advice = (
            "let clone copy everything that step changes (lists, sets, the noise stream), or do "
            "not implement clone"
        )
        try:
            twin = branch(env, Past(make=make, seed=seed, options=options, actions=done))
        except EnvFault as fault:
            raise Flaw(
                str(fault), "let the same seeds and actions always lead to the same states"
            ) from fault
        _require(
            _seen(twin) == before,
            f"a clone shows another state than its original (seed {seed})",
            advice,
        )
        # The copy plays first. If it shares a mutable object with the original, the original
        # changes as well.
        twins = [(text, result[:4]) for text, result in episode(twin, seed + 1, 5)]
        _require(
            _seen(env) == before,
            f"actions in a clone change the original environment (seed {seed})",
            advice,
        )
        own = [(text, result[:4]) for text, result in episode(env, seed + 1, 5)]
        _require(
            own == twins,
            f"after the same actions, a clone returns other results than its original (seed {seed})",
            advice,
        )


def _seen(env: TextEnv) -> tuple[str, ...]:
    return (*(env.state_text(mode) for mode in STATE_TEXTS), env.puzzle_text())


def _is_json(info: dict[str, Any]) -> bool:
    try:
        return json.loads(json.dumps(info)) == info
    except (TypeError, ValueError):
        return False


def _searched(make: Make, seeds: int) -> str | None:
    """Check that a search of each puzzle can be written as text and read again. If the game can
    read states from text (`key_of_text`), also check this for every reachable state."""
    env = make()
    advice = "agent_proxy.response_format=search needs it (docs/methods.md); without written searches, remove state_key"
    learned = False
    for seed in range(seeds):
        env.reset(seed=seed)
        if env.state_key() is None:
            return "skipped, because state_key returns None: the game has no written searches"
        try:
            true, copies = explore(env)
        except TooManyStates as error:
            return f"skipped: {error}"
        except (ValueError, NotImplementedError) as error:
            raise Flaw(f"{error} (seed {seed})", advice) from error
        search = breadth_first(next(iter(true)), lambda key, true=true: true[key])
        if search.path is not None:
            score = score_search(write_search(search), true, actions=env.action_names())
            _require(
                score is not None and not score.failure,
                f"the search of seed {seed} is read as {score.failure if score else 'none'}",
                advice,
            )
        if leaves_out_actions(copies.values()):
            return "for search_simulator alone, because legal_actions leaves out actions"
        modes: list[StateText] = [
            mode for mode in STATE_TEXTS if env.key_of_text(env.state_text(mode)) is not None
        ]
        learned = learned or bool(modes)
        if modes and not readable_modes(env, true, copies):
            try:
                require_names(env, "this game", modes[0])
            except ConfigError as error:
                raise Flaw(f"{error} (seed {seed})", advice) from error
    return None if learned else "for search_simulator alone, because key_of_text reads no state"


def _expert(make: Make, seeds: int, steps: int) -> str | None:
    env = make()
    played = False
    advice = "expert_actions must solve the puzzle in exactly optimal_steps actions"
    for seed in range(seeds):
        env.reset(seed=seed)
        best = env.optimal_steps()
        plan = env.expert_actions(steps)
        if best is None or best > steps or not plan or env.best_success(best) != 1.0:
            # Skip puzzles without a solver, puzzles that are too long, and games of chance.
            continue
        played = True
        _require(
            len(plan) == best,
            f"expert_actions returns {len(plan)} actions, but optimal_steps returns {best} "
            f"(seed {seed})",
            advice,
        )
        ends = False
        for text in plan:
            action = env.to_action(text)
            _require(
                action is not None,
                f"to_action does not accept {text!r} from expert_actions",
                advice,
            )
            ends = action is not None and bool(env.step(action)[4]["success"])
        _require(ends, f"the actions of expert_actions do not reach the goal (seed {seed})", advice)
    if played:
        return None
    return (
        "skipped, because no tested puzzle has both optimal_steps and a certain solution in "
        "expert_actions"
    )


def _prompts(make: Make) -> str | None:
    env = make()
    env.reset(seed=0)
    for mode in STATE_TEXTS:
        rules = env.instruction(mode)
        _require(
            isinstance(rules, str) and bool(rules),
            f"instruction({mode!r}) returns {rules!r}",
            "instruction must return a string that is not empty: the rules in the first prompt",
        )
        text = _prompt(env, Prompter(state_text=mode))
        _require(
            (env.state_text(mode) if env.image() is None else IMAGE) in text,
            f"the first prompt does not contain the state (state_text={mode})",
            "return the same string from every call of state_text in the same state",
        )
        _require(
            len(text) <= PROMPT_LIMIT,
            f"the first prompt has {len(text):,} characters, too many for a prompt "
            f"(state_text={mode})",
            "long prompts exceed max_model_len; shorten instruction() or the state rendering",
        )
    text = _prompt(env, Prompter())
    if env.action_names() or all(name in text for name in env.legal_actions()):
        return None
    return (
        "The actions are free text, and the prompt does not list the legal actions. Set "
        "custom_envs.TAG.show_legal_actions=true to list them"
    )


def _prompt(env: TextEnv, prompter: Prompter) -> str:
    return "".join(message["content"] for message in prompter.first_messages(env))
