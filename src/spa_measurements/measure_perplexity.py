"""Perplexity of states under a model: as grids, as coordinate sentences, and as both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spa.config.schema import Config
from spa.envs.base import StateText, TextEnv
from spa.envs.registry import make_env
from spa.install import versions
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.evaluate_files import write_result
from spa.recipes.policies import load_model
from spa.run.progress import ProgressLine
from spa_measurements.likelihood import score_sequences
from spa_measurements.perplexity import perplexity_report, state_sequence
from spa_measurements.situations import Situation, random_situation, replay

TEXTS: tuple[StateText, ...] = ("grid", "coords", "grid_and_coords")
CONTEXTS = ("alone", "in the prompt")


def measure_perplexity(
    cfg: Config, model_name: str, tags: tuple[str, ...], *, output: Path, states: int = 100
) -> dict[str, Any]:
    """Sample `states` states per tag by random play, and measure their perplexity in every state
    rendering and context. Writes the result to `output` and returns it.

    The states are the same for every model. Raises ConfigError for an unknown tag, ModelError for a
    model that cannot be loaded or whose chat template changes a state.
    """
    for tag in tags:
        cfg.environment(tag)
    output.parent.mkdir(parents=True, exist_ok=True)
    model, template, device = load_model(cfg, model_name)
    with ProgressLine("state-perplexity", total=len(tags)) as progress:
        by_text = {}
        for number, tag in enumerate(tags, start=1):
            by_text[tag] = perplexity_of_tag(cfg, tag, model, template, device, states=states)
            progress.update(number, {"last": tag})
    result = {
        "model": model_name,
        "states": states,
        "seed": cfg.seed.val,
        "tags": by_text,
        "versions": versions(),
    }
    write_result(output, result)
    return result


def perplexity_of_tag(
    cfg: Config, tag: str, model: Any, template: ChatTemplate, device: torch.device, *, states: int
) -> dict[str, Any]:
    """Measure the perplexity of a tag's states, for every state rendering in both contexts."""
    spec = cfg.custom_envs[tag]
    env = make_env(spec.env_type, spec.env_config)
    base = setup.make_prompter(cfg, spec, "base")
    reached = [
        random_situation(env, base, tag=tag, index=index, base_seed=cfg.seed.val, from_start=False)
        for index in range(states)
    ]
    situations = [situation for situation in reached if situation is not None]
    metrics: dict[str, Any] = {}
    for text in texts_of(env, situations):
        prompter = replace(base, state_text=text)
        # `prompt_of` renders the state into which `replay` has put `env`, so the order of the two
        # calls matters.
        shown = [
            (replay(env, situation).state_text(text), prompt_of(env, prompter))
            for situation in situations
        ]
        metrics[text] = {}
        for context in CONTEXTS:
            sequences = [
                state_sequence(
                    template, *((system, prompt) if context != "alone" else ((), state)), state
                )
                for state, (system, prompt) in shown
            ]
            scored = score_sequences(
                model, sequences, rows=16, autocast=setup.engine_autocast(cfg, device)
            )
            metrics[text][context] = perplexity_report(scored, [state for state, _ in shown])
    return metrics


def texts_of(env: TextEnv, situations: list[Situation]) -> tuple[StateText, ...]:
    """Return all state renderings if they differ in this environment, otherwise only the grid."""
    replay(env, situations[0])
    return TEXTS if len({env.state_text(text) for text in TEXTS}) > 1 else ("grid",)


def prompt_of(env: TextEnv, prompter: Prompter) -> tuple[tuple[dict[str, str], ...], str]:
    """Return the messages before the first user message (the system message), and the text of that
    user message."""
    *before, last = prompter.first_messages(env)
    return tuple(before), last["content"]
