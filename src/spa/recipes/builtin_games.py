"""Find out whether the bundled model was pretrained on a game, by comparing the words of the game's
actions and states."""

import logging
import re
from collections.abc import Iterable

from spa.config.schema import Config
from spa.envs.base import StateText, TextEnv
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.envs.registry import make_env
from spa.errors import SpaError
from spa.models.load import BUILTIN, BUILTIN_GAMES
from spa.recipes.prompters import make_prompter

log = logging.getLogger(__name__)

# Number of puzzles from whose initial states a game's vocabulary is collected.
PUZZLES = 20
# Words and single symbols. Numbers are left out, so that the vocabulary does not depend on the
# board's size: "P at (0,2)" gives P, at, the comma and both parentheses.
_WORD = re.compile(r"[^\W\d]+|[^\w\s]")


def unknown_game(cfg: Config) -> str:
    """Return the first training tag whose game the bundled model was not pretrained on; "" if there
    is none, or if another model is configured."""
    if cfg.model_path != BUILTIN:
        return ""
    return next(
        (tag for tag in cfg.es_manager.train.env_configs.tags if not _is_known(cfg, tag)), ""
    )


def unknown_game_warning(tag: str) -> str:
    """Return a warning that the bundled model was not trained on the game `tag`, and advice on what
    to use instead."""
    return (
        f"{BUILTIN} was not trained for {tag}: it knows only the actions and states of "
        f"{', '.join(BUILTIN_GAMES)}. It can learn a small game whose states read "
        f"like theirs, such as that of `spa env new`. For others use an instruct model such as model_path=smollm2 "
        "(make smollm2)"
    )


def warn_of_unknown_games(cfgs: Iterable[Config]) -> None:
    """Warn about the first game of each configuration that the bundled model was not trained on,
    but only once per game."""
    for tag in dict.fromkeys(filter(None, map(unknown_game, cfgs))):
        log.warning("%s", unknown_game_warning(tag))


def _is_known(cfg: Config, tag: str) -> bool:
    """Return whether the bundled model knows a game. Only the words of its actions and states are
    compared, so a different reward or board size does not matter."""
    spec = cfg.custom_envs[tag]
    if spec.env_type in BUILTIN_GAMES:
        return True
    mode = make_prompter(cfg, spec, "base").state_text
    try:
        actions, words = _vocabulary(make_env(spec.env_type, spec.env_config), mode)
    except (EnvFault, SpaError):
        return True  # an environment that cannot be made is reported elsewhere
    known = (_vocabulary(make_env(game), mode) for game in BUILTIN_GAMES)
    return any(actions == names and words <= seen for names, seen in known)


def _vocabulary(env: TextEnv, mode: StateText) -> tuple[tuple[str, ...], set[str]]:
    """Return the action names, and all words and symbols in the initial states of `PUZZLES`
    puzzles."""
    words: set[str] = set()
    with boundary("the first states", MAKING_S):
        for seed in range(PUZZLES):
            env.reset(seed=seed)
            words |= set(_WORD.findall(env.state_text(mode)))
        return env.action_names(), words
