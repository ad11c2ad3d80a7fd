"""Model-based planning in evaluation and self-play: build an engine that plans with another engine,
and write its records."""

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

from spa.config.schema import Config, ImagineConfig
from spa.engines.factory import PlayingEngine
from spa.envs.base import TextEnv
from spa.errors import ConfigError
from spa.examples.source import source_of
from spa.plugins import defined_in
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.run.files import dump_line, end_last_line, read_lines
from spa.types import Engine

IMAGINED = "imagined"
"""Name of the subfolder of the self-play data that contains the planner's records, one file per
batch."""
Record = Callable[[dict[str, Any]], None]


def require_dynamics(
    env: TextEnv, tag: str, dynamics: str, depth: int = 1, proposals: str = "sampled"
) -> None:
    """Raise ConfigError if the environment does not support planning with these settings.

    Planning needs an environment that can compute the value of a predicted state.
    `dynamics="simulator"` also needs a `clone` method. If `depth` is above 1 or `proposals` is
    "exhaustive", prompts show predicted states, so these must have the format of prompted states.
    `proposals="exhaustive"` also needs a list of all actions.
    """
    setup.require_state_value(
        env,
        tag,
        instead=(
            "spa cannot plan in it. Set imagine.n to 1 and imagine.proposals to sampled; for self-play the same keys "
            "under generate, as in the preset tiny"
        ),
    )
    # Predictions have the format of `world_state_text`, but prompts show states in the format of
    # `state_text`. If the formats differ, a prompt cannot show a predicted state.
    hidden = env.state_text("grid_and_coords") != env.world_state_text("grid_and_coords")
    if (depth > 1 or proposals == "exhaustive") and (
        hidden or env.image() is not None or env.players > 1
    ):
        raise ConfigError(
            f"Predicted states of {tag} differ from the states in its prompts. Set "
            "imagine.depth to 1 and imagine.proposals to sampled. For self-play, set the "
            "same keys in generate.imagine, and keep to false"
        )
    if proposals == "exhaustive" and not env.action_names():
        raise ConfigError(
            f"The actions of {tag} are free text, so imagine.proposals=exhaustive cannot "
            "list them; use imagine.proposals=sampled"
        )
    if dynamics == "simulator":
        try:
            env.clone()
        except NotImplementedError:
            raise ConfigError(
                f"The environment {tag} has no clone method, which "
                "imagine.dynamics=simulator needs; implement clone or use another value of "
                "imagine.dynamics"
            ) from None


def require_imagination(env: TextEnv, tag: str, cfg: Config, own: ImagineConfig) -> None:
    """Raise ConfigError if the environment does not support planning with the settings `own`.

    The requirements are those of `require_dynamics`. In addition, with a depth above 1, prompts
    must not list legal actions, which are unknown in predicted states.
    """
    require_dynamics(env, tag, own.dynamics, own.depth, own.proposals)
    if own.depth > 1 and cfg.custom_envs[tag].show_legal_actions:
        raise ConfigError(
            f"{tag} lists legal actions in its prompts (show_legal_actions), which are "
            "unknown in predicted states. Set imagine.depth to 1; for self-play, set "
            "generate.imagine.depth to 1 and keep to false"
        )


def check_planning(rounds: Iterable[Config]) -> None:
    """Raise ConfigError if, in any of `rounds`, a game does not support what self-play is
    configured to do: the kind of examples that it makes, or the planning."""
    for cfg in rounds:
        own = cfg.generate.imagine
        tags = cfg.es_manager.train.env_configs.tags
        source = source_of(cfg)
        if source.checks_puzzles:
            setup.check_puzzles(cfg, tags, partial(source.require, cfg))
        if own.on and "self" in cfg.generate.policies:
            setup.check_puzzles(cfg, tags, partial(require_imagination, cfg=cfg, own=own))


def imagining(
    cfg: Config,
    own: ImagineConfig,
    tags: Sequence[str],
    engine: Engine,
    template: ChatTemplate | None,
    record: Record,
    *,
    response: int,
) -> PlayingEngine:
    """Return an engine that samples responses from `engine`, plays the best one, and passes the
    predictions and values of every turn to `record`.

    `response` is the maximum number of tokens per response. Raises ConfigError as
    `require_imagination` does, and if exhaustive proposals are configured but `engine` has no chat
    template.
    """
    setup.check_puzzles(cfg, tags, partial(require_imagination, cfg=cfg, own=own))
    rollout = cfg.actor_rollout_ref.rollout
    if own.proposals == "exhaustive" and template is None:
        raise ConfigError(
            "imagine.proposals=exhaustive starts responses with given tokens, which the "
            "engine does not support; use imagine.proposals=sampled"
        )
    planners = dict(defined_in("planning", "PLANNER").values())
    return planners[own.proposals](
        engine,
        n=own.n,
        dynamics=own.dynamics,
        noise_prob=own.noise_prob,
        state_text=cfg.state_text,
        max_actions=cfg.agent_proxy.max_actions_per_turn,
        depth=own.depth,
        width=own.width,
        keep=own.keep,
        # Every prompt leaves room for a response of full length.
        max_prompt=rollout.max_model_len - response,
        rows=rollout.max_num_seqs,
        template=template,
        record=record,
    )


def recorder_of(path: Path) -> Record:
    """Return a function that appends lines to a JSON Lines file. If a killed process left the last
    line incomplete, the next line still starts on a new line."""
    end_last_line(path)

    def write(line: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(dump_line(line))

    return write


def imagination(
    own: ImagineConfig, records: Iterable[Path], *, episodes: Set[str] | None = None
) -> dict[str, Any] | None:
    """Summarize the planner's records; return None if planning is off or there are no records.

    The summary has the planner's settings, and the tokens per episode over all responses. It also
    has the share of correct predictions, and the share of turns in which planning changed the
    response. If an episode was played twice, only the last play counts. With `episodes`, a set of
    episode ids, all other records are ignored, because they may come from an earlier evaluation.
    """
    if not own.on:
        return None
    plays: dict[str, dict[int, dict[str, Any]]] = {}
    for path in sorted(records):
        last: dict[str, int] = {}
        for _, line in read_lines(path) if path.is_file() else ():
            episode, turn = line["episode_id"], line["turn"]
            if episodes is not None and episode not in episodes:
                continue
            play = plays.setdefault(episode, {})
            # A lower turn number means that the episode was played again. All its earlier records
            # are dropped, because the earlier episode may have had more turns.
            if turn <= last.get(episode, -1):
                play.clear()
            last[episode] = turn
            play[turn] = line
    if not plays:
        return None
    turns = [line for play in plays.values() for line in play.values()]
    # Turns that follow an earlier plan run no search, so `right` and `changed` exclude them.
    planned = [line for line in turns if not line.get("kept")]
    # An engine that returns only text reports no token counts.
    tokens = [count for line in turns for count in line["tokens"] if count is not None]
    right = [
        part["right"] for line in planned for part in line["imagined"] if part["right"] is not None
    ]
    chosen = [line["imagined"][line["chosen"]]["right"] for line in turns]
    known = [value for value in chosen if value is not None]
    return {
        "n": own.n,
        "proposals": own.proposals,
        "depth": own.depth,
        "dynamics": own.dynamics,
        "noise_prob": own.noise_prob,
        "tokens_per_episode": round(sum(tokens) / len(plays), 2) if tokens else None,
        "right": _share(right),
        "chosen_right": _share(known),
        "changed": _share([line.get("named", line["chosen"] != 0) for line in planned]),
        **({"kept": round(1 - len(planned) / len(turns), 4)} if own.keep else {}),
    }


def _share(values: list[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
