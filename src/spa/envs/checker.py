"""The conformance suite: what an environment must keep to so that every stage of the recipe can use
it.

`check` runs every check on fresh instances and returns what it found, each failure with the reason
why it matters.
"""

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium.utils.env_checker import check_env

from spa.envs.base import TextEnv
from spa.envs.branch import Past, branch
from spa.envs.limits import EnvFault, TimedOut, time_limit
from spa.envs.options import STATE_TEXTS
from spa.prompts.parse import contains_marker
from spa.prompts.render import Prompter
from spa.seeds import stream
from spa.types import IMAGE

Make = Callable[[], TextEnv]
INFO_KEYS = ("action_is_valid", "action_is_effective", "success")
# Texts that name no action: among them tags and separators of the format, a number that int()
# refuses (over 4,300 digits), a long text, and a lone surrogate, which is no valid UTF-8.
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
"""Characters of the first prompt, about 4,000 tokens: the context of most configurations."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check. `advice` says why it matters and what to do; a check that passes
    may have a message."""

    check: str
    ok: bool
    message: str = ""
    advice: str = ""


class Flaw(Exception):
    """A check failed; the arguments are the message and the advice."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


Checks = Mapping[str, Callable[[], str | None]]
"""By name, in order: raises `Flaw`, or returns what is to be said of a check that passes."""
MADE = "can be made"
_WORD = re.compile(r"\w+")
CHECK_S = 240.0
"""How long one check may take."""


def check(make: Make, *, seeds: int = 5, steps: int = 200) -> list[Finding]:
    """Run every check on environments from `make`; `steps` is the longest episode that is tried."""
    return list(run_checks(all_checks(make, seeds=seeds, steps=steps)))


def run_checks(checks: Checks) -> Iterator[Finding]:
    """One finding after the other; the first alone if no environment can be made."""
    for name, run in checks.items():
        finding = run_check(name, run)
        yield finding
        # Every other check needs an instance.
        if name == MADE and not finding.ok:
            return


def all_checks(make: Make, *, seeds: int = 5, steps: int = 200) -> Checks:
    """The checks of environments from `make`."""
    return {
        MADE: lambda: _made(make),
        "Gymnasium's own checker": lambda: _gymnasium(make),
        "the seed fixes everything": lambda: _deterministic(make, seeds, steps),
        "noise is separate from the puzzle": lambda: _noise(make, seeds),
        "seeds give different puzzles": lambda: _puzzles(make),
        "puzzle_text stays the same in an episode": lambda: _same_puzzle(make),
        "actions can be written and read": lambda: _actions(make),
        "actions are read alike in every state": lambda: _reading(make, seeds),
        "nonsense is an invalid turn": lambda: _nonsense(make),
        "states are text in every state": lambda: _states(make, seeds, steps),
        "what should be known was shown": lambda: _known(make, seeds, steps),
        "states are valued by their text": lambda: _valued(make, seeds, steps),
        "legal actions are legal": lambda: _legal(make, seeds),
        "a copy continues alone": lambda: _clones(make, seeds),
        "step returns what it should": lambda: _steps(make, seeds, steps),
        "expert play reaches the goal": lambda: _expert(make, seeds, steps),
        "prompts are complete and short": lambda: _prompts(make),
    }


def run_check(name: str, run: Callable[[], str | None]) -> Finding:
    """The finding of one check: a `Flaw`, any other exception of the environment, or success, with
    what `run` says."""
    try:
        with time_limit(CHECK_S, "it"):
            message = run()
    except TimedOut as error:
        return Finding(name, False, str(error), "a run would wait, or lose the turn")
    except Flaw as flaw:
        return Finding(name, False, flaw.message, flaw.advice)
    except SystemExit as error:
        return Finding(
            name, False, f"it called sys.exit({error.code!r})", "a run would end with it"
        )
    except Exception as error:  # noqa: BLE001 - environments are other people's code
        where = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Finding(
            name,
            False,
            where,
            "an environment never raises during play; a bad action is an invalid turn",
        )
    return Finding(name, True, message or "")


def episode(env: TextEnv, seed: int, steps: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """A random episode: each action text with what `step` returned. Ends with the episode or after
    `steps`."""
    rng = stream(seed, "checker")
    for _ in range(steps):
        text = env.random_action(rng)
        action = env.to_action(text)
        if action is None:
            raise Flaw(
                f"random_action gave {text!r}, which to_action does not understand",
                "the random policy needs both",
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
            "an environment needs defaults for all of its options",
        ) from error
    _require(
        isinstance(env, TextEnv),
        f"{type(env).__name__} is no TextEnv",
        "derive it from spa.envs.base.TextEnv",
    )


def _gymnasium(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_env(make(), skip_render_check=True)
        except Exception as error:
            advice = "call super().reset(seed=seed) in reset, set observation_space and action_space in __init__"
            raise Flaw(f"{type(error).__name__}: {error}", advice) from error


def _story(env: TextEnv, seed: int, steps: int) -> list[Any]:
    # Another noise seed than the puzzle's, so that mixing them up shows.
    first, _ = env.reset(seed=seed, options={"noise_seed": seed + 1})
    start = [first, env.puzzle_text(), env.instruction("grid")]
    return start + [
        (text, *result[:4], sorted(result[4].items())) for text, result in episode(env, seed, steps)
    ]


def _deterministic(make: Make, seeds: int, steps: int) -> None:
    advice = "draw from spa.seeds.stream(seed, ...) in reset and keep nothing from the last episode"
    # One instance plays all seeds, so that anything it keeps from the last episode shows.
    used = make()
    for seed in range(seeds):
        fresh = _story(make(), seed, steps)
        _require(
            fresh == _story(make(), seed, steps), f"two instances differ for seed {seed}", advice
        )
        _require(
            fresh == _story(used, seed, steps),
            f"a used instance plays seed {seed} differently",
            advice,
        )


def _noise(make: Make, seeds: int) -> None:
    env = make()
    for seed in range(seeds):
        starts = set()
        for noise in range(3):
            state, _ = env.reset(seed=seed, options={"noise_seed": noise})
            starts.add((state, env.puzzle_text()))
        advice = "members of a group share the puzzle: options['noise_seed'] may change what happens, not its start"
        _require(len(starts) == 1, f"the puzzle of seed {seed} changes with the noise seed", advice)


def _puzzles(make: Make) -> str | None:
    """One puzzle alone is a seed that is not read, unless the environment has said that it has few."""
    env = make()
    texts = {}
    advice = "make the puzzle from the seed, and let puzzle_text write all of it: puzzles are split by it; "
    for seed in range(30):
        env.reset(seed=seed)
        start = env.world_state_text(env.default_state_text)
        same = texts.setdefault(env.puzzle_text(), start) == start
        _require(same, "two seeds have the same puzzle_text and begin in different states", advice)
    advice += "a game with so few puzzles that these share them says finite_puzzles = True"
    _require(len(texts) > 1 or env.finite_puzzles, "30 seeds give one puzzle", advice)
    return (
        None if len(texts) > 1 else "30 seeds give one puzzle: meant, if the game has one beginning"
    )


def _same_puzzle(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    before = env.puzzle_text()
    for text, _ in episode(env, 0, 20):
        _require(
            env.puzzle_text() == before,
            f"puzzle_text changes during an episode (after {text!r})",
            "puzzle_text names the puzzle as it began, in every state: puzzles are split by it",
        )


def _actions(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    advice = "to_action must understand every label that the prompt names, whatever its case"
    for name in env.action_names():
        for text in (name, name.lower(), name.upper(), f" {name} "):
            _require(
                env.to_action(text) is not None, f"to_action does not understand {text!r}", advice
            )
    examples = env.example_actions()
    _require(
        bool(examples),
        "example_actions is empty",
        "the sample response of the prompt needs at least one action",
    )
    for text in examples:
        _require(
            env.to_action(text) is not None,
            f"to_action does not understand the example {text!r}",
            advice,
        )
    for text in [*env.action_names(), *examples]:
        _require(
            "||" not in text,
            f"the action {text!r} contains the separator ||",
            "it would be read as two actions",
        )


def _reading(make: Make, seeds: int) -> None:
    """What later states allow is already understood at the start, and as the same action."""
    advice = "all actions of a turn are read before the first is taken: to_action must not depend on the state, or "
    advice += "turns lose their later actions; leave it to step to call an action invalid"
    for seed in range(seeds):
        env = make()
        # `first` never moves: it reads every text as at the start of the episode.
        first = make()
        for one in (env, first):
            one.reset(seed=seed, options={"noise_seed": seed + 1})
        for taken, (_, _, terminated, truncated, _) in episode(env, seed, 20):
            for text in () if terminated or truncated else (taken, *env.legal_actions()):
                now = env.to_action(text)
                then = first.to_action(text)
                what = f"to_action({text!r}) gives {now!r} after {taken!r} and {then!r} at the start (seed {seed})"
                _require(now == then, what, advice)


def _nonsense(make: Make) -> None:
    env = make()
    advice = "a model writes anything: return None from to_action, and take an unknown action as an invalid step"
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
    # Other stacks call `step` with whatever a model's tool call holds.
    for action in (-1, 10**30, "no such action", None, [1], 1.5):
        env.reset(seed=0)
        before = env.state_text(env.default_state_text)
        try:
            _, _, _, _, info = env.step(action)  # type: ignore[arg-type]
        except Exception as error:
            raise Flaw(
                f"step({action!r}) raises {type(error).__name__}: {error}", advice
            ) from error
        if not info["action_is_valid"]:
            same = env.state_text(env.default_state_text) == before
            effective = info["action_is_effective"] or info["success"]
            _require(
                # A free-text game may answer in its state that it did not understand.
                not effective and (same or not env.action_names()),
                f"step({action!r}) is invalid and acts",
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
            "every state is a text",
        )
        advice = "states are compared and put between tags: no white space at the ends, no tags of the response format"
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
            f"state_text({mode!r}) differs when called twice",
            "it only looks",
        )
        advice = "states are stored as UTF-8 JSON"
        _require(
            json.loads(json.dumps(text)) == text and _is_utf8(text),
            f"{text!r} is not valid Unicode",
            advice,
        )
        known = env.world_state_text(mode)
        advice = "what should be known is a text in every state, without white space at its ends or tags of the format"
        fit = (
            isinstance(known, str)
            and known
            and known == known.strip()
            and not contains_marker(known)
        )
        _require(
            bool(fit) and known == env.world_state_text(mode),
            f"world_state_text({mode!r}) gives {known!r}",
            advice,
        )
    advice = "reset and step return state_text(self.default_state_text)"
    _require(
        shown == env.state_text(env.default_state_text),
        "the observation is not the state text",
        advice,
    )


def _known(make: Make, seeds: int, steps: int) -> str | None:
    """Say which share of the words of `world_state_text` is in no message of its episode."""
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
        # A word counts as shown if any message of the episode has it, earlier or later.
        target = [word for state in states for word in _WORD.findall(state)]
        words += len(target)
        hidden += sum(word not in shown for word in target)
    if not hidden:
        return None
    return (
        f"{hidden / words:.0%} of the words of world_state_text are in no message of the episode: the model would "
        "learn to guess them. Return only what an agent can know, unless you want to measure guesses"
    )


def _valued(make: Make, seeds: int, steps: int) -> str | None:
    """Planners compare these values; they read them from states that a model wrote."""
    env = make()
    mode = env.default_state_text
    advice = "1: the goal is reached, -1: it is out of reach, 0: neither can be read; None if the game cannot say"
    valued = False
    for seed in range(seeds):
        env.reset(seed=seed)
        for text, (_, _, _, _, info) in episode(env, seed, steps):
            state = env.world_state_text(mode)
            value = env.state_value(state)
            if value is None:
                continue
            valued = True
            _require(
                -1 <= value <= 1, f"the value of a state is {value!r} (after {text!r})", advice
            )
            _require(
                # A winning state whose text does not show the win may have the value 0, never a
                # negative one.
                not (info["success"] and value < 0),
                f"a state that wins has the value {value!r}",
                advice,
            )
    for nonsense in NONSENSE:
        value = env.state_value(nonsense)
        _require(
            value is None or -1 <= value <= 1,
            f"the value of {nonsense[:20]!r} is {value!r}",
            advice,
        )
    return None if valued else "it gives no value: planning needs one"


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _steps(make: Make, seeds: int, steps: int) -> None:
    env = make()
    for seed in range(seeds):
        env.reset(seed=seed)
        before = env.state_text(env.default_state_text)
        for text, (shown, reward, terminated, truncated, info) in episode(env, seed, steps):
            finite = isinstance(reward, int | float) and math.isfinite(reward)
            _require(finite, f"reward {reward!r} after {text!r}", "rewards are finite numbers")
            plain = isinstance(terminated, bool) and isinstance(truncated, bool)
            _require(
                plain,
                f"{terminated!r} and {truncated!r} end the step",
                "terminated and truncated are bool",
            )
            missing = [key for key in INFO_KEYS if not isinstance(info.get(key), bool)]
            _require(
                not missing, f"info lacks {missing} as bool", "metrics are counted from these keys"
            )
            lists = [info.get(key) for key in ("rewards", "successes")] if env.players > 1 else []
            told = all(isinstance(one, list | tuple) and len(one) == env.players for one in lists)
            advice = (
                "with several players, info['rewards'] and info['successes'] have an entry for each"
            )
            _require(told, f"info has no rewards and successes of {env.players} players", advice)
            advice = "info is written to trajectories: use texts, numbers, lists and dicts with text keys"
            _require(_is_json(info), f"info is not JSON: {info!r}", advice)
            _require(
                not info["success"] or terminated,
                "success without terminated",
                "reaching the goal ends the episode",
            )
            silent = (
                shown != before and not info["action_is_effective"] and not info["action_is_valid"]
            )
            _require(
                not silent,
                f"{text!r} is invalid and changes the state",
                "an invalid action changes nothing",
            )
            before = shown


def _legal(make: Make, seeds: int) -> None:
    """In the first states of a game, unless the list is simply that of all names."""
    for seed in range(seeds):
        env = make()
        options = {"noise_seed": seed + 1}
        env.reset(seed=seed, options=options)
        done = list[Any]()
        over = False
        while not over and len(done) < 3:
            listed = env.legal_actions()
            names = env.action_names()
            for text in listed:
                action = env.to_action(text)
                advice = "legal_actions lists texts that to_action understands, and that step then takes as valid"
                _require(
                    action is not None,
                    f"to_action does not understand the legal action {text!r}",
                    advice,
                )
                # By default all names are listed in every state; that claims nothing about
                # legality.
                if listed != names and action is not None:
                    twin = branch(env, Past(make=make, seed=seed, options=options, actions=done))
                    valid = twin.step(action)[4]["action_is_valid"]
                    _require(
                        valid,
                        f"legal_actions lists {text!r}, which step calls invalid (seed {seed})",
                        advice,
                    )
            for text, (_, _, terminated, truncated, _) in episode(env, seed, 1):
                done.append(env.to_action(text))
                over = terminated or truncated


def _clones(make: Make, seeds: int) -> None:
    """A copy in the middle of a game, by `clone` or by playing again."""
    for seed in range(seeds):
        env = make()
        options = {"noise_seed": seed + 1}
        done: list[Any] = []
        env.reset(seed=seed, options=options)
        for text, (_, _, terminated, truncated, _) in episode(env, seed, 2):
            if terminated or truncated:  # the game has ended: copy the state before
                env.reset(seed=seed, options=options)
                for action in done:
                    env.step(action)
                break
            done.append(env.to_action(text))
        before = _seen(env)
        advice = "clone copies everything that step changes (lists, sets, the noise stream); or leave clone out"
        try:
            twin = branch(env, Past(make=make, seed=seed, options=options, actions=done))
        except EnvFault as fault:
            raise Flaw(str(fault), "the same seeds and actions lead to the same states") from fault
        _require(_seen(twin) == before, f"a copy shows another state (seed {seed})", advice)
        # The copy plays first, so that changes of shared objects show in the original.
        twins = [(text, result[:4]) for text, result in episode(twin, seed + 1, 5)]
        _require(
            _seen(env) == before, f"playing on in a copy changes the original (seed {seed})", advice
        )
        own = [(text, result[:4]) for text, result in episode(env, seed + 1, 5)]
        _require(
            own == twins, f"a copy plays on differently with the same actions (seed {seed})", advice
        )


def _seen(env: TextEnv) -> tuple[str, ...]:
    return (*(env.state_text(mode) for mode in STATE_TEXTS), env.puzzle_text())


def _is_json(info: dict[str, Any]) -> bool:
    try:
        return json.loads(json.dumps(info)) == info
    except (TypeError, ValueError):
        return False


def _expert(make: Make, seeds: int, steps: int) -> str | None:
    env = make()
    played = False
    for seed in range(seeds):
        env.reset(seed=seed)
        best = env.optimal_steps()
        plan = env.expert_actions(steps)
        if best is None or best > steps or not plan or env.best_success(best) != 1.0:
            continue  # no solver, a puzzle too long, or play that depends on chance
        played = True
        advice = "expert_actions is played as it is given and must be as long as optimal_steps says"
        _require(
            len(plan) == best,
            f"{len(plan)} expert actions for {best} optimal steps (seed {seed})",
            advice,
        )
        ends = False
        for text in plan:
            action = env.to_action(text)
            _require(
                action is not None, f"to_action does not understand the expert's {text!r}", advice
            )
            ends = action is not None and bool(env.step(action)[4]["success"])
        _require(ends, f"expert play of seed {seed} does not reach the goal", advice)
    if played:
        return None
    return "skipped: no puzzle with optimal_steps and expert_actions that surely reach the goal"


def _prompts(make: Make) -> str | None:
    env = make()
    env.reset(seed=0)
    for mode in STATE_TEXTS:
        text = "".join(
            message["content"] for message in Prompter(state_text=mode).first_messages(env)
        )
        advice = "the first prompt is instruction(), legend(), action_names() and the state"
        shown = env.state_text(mode) if env.image() is None else IMAGE
        _require(shown in text, f"the first prompt does not show the state ({mode})", advice)
        advice = (
            "long prompts do not fit into max_model_len; shorten instruction() or the state text"
        )
        _require(
            len(text) <= PROMPT_LIMIT,
            f"the first prompt has {len(text):,} characters ({mode})",
            advice,
        )
    text = "".join(message["content"] for message in Prompter().first_messages(env))
    if env.action_names() or all(name in text for name in env.legal_actions()):
        return None
    return "actions are free text, and no prompt lists the legal ones unless custom_envs.TAG.show_legal_actions is true"
