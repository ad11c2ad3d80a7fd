"""World-model accuracy on held-out puzzles.

Random play reaches states in the middle of games. In each state the model responds once, in the
world-model format, as in the first turn of a conversation. Its prediction is compared with the
state to which its own answer led, because the prediction refers to that answer. In an open-loop
rollout its prediction replaces the true state over several steps. The likelihood of the transition
that random play took is measured as well.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.config.schema import Config
from spa.engines.local import LocalEngine
from spa.errors import ConfigError, DataError, ModelError
from spa.formats.registry import format_of
from spa.install import versions
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.evaluate_files import write_result
from spa.recipes.evaluate_scores import settings
from spa.recipes.policies import Target, behind_api, open_target, training_hashes
from spa.run.progress import ProgressLine
from spa.seeds import stream_seed
from spa.types import Engine, SamplingParams
from spa.worldmodel.accuracy import is_exact
from spa_measurements.accuracy import Asked, prediction_report, rollout_report
from spa_measurements.likelihood import (
    ResponseTokens,
    likelihood_report,
    response_sequence,
    score_sequences,
)
from spa_measurements.situations import (
    Response,
    Situation,
    ask,
    ceiling,
    has_chance,
    question_seed,
    random_situation,
    replay,
)

log = logging.getLogger(__name__)

Advance = Callable[[int, dict[str, str]], None]
BASE = "world_model/puzzles"
"""Random stream of the evaluation puzzles, which differ from those of validation and training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Engine, worker and sampling parameters with which a model is queried."""

    engine: Engine
    worker: setup.RolloutWorker
    sampling: SamplingParams
    base_seed: int

    def ask(
        self, situations: Sequence[Situation], envs: list, shown: Sequence[str], step: int
    ) -> list[Response | None]:
        """Query the model once per situation, with `shown[i]` as the state in the prompt. The
        sampling seeds depend on `step`, the step of the open-loop rollout. A response is None if
        the engine returned none."""
        return ask(
            self.engine,
            self.sampling,
            envs,
            shown,
            [self.worker.prompters[situation.tag] for situation in situations],
            self.worker.template,
            [question_seed(self.base_seed, situation.index, step) for situation in situations],
        )


def measure_world_model(
    cfg: Config,
    target: Target,
    *,
    output: Path,
    transitions: int = 1000,
    steps: int = 3,
    greedy: bool = False,
    loaded: tuple[Engine, ChatTemplate | None] | None = None,
) -> dict[str, Any]:
    """Measure `target` on `transitions` states per validation tag, and on open-loop rollouts of
    `steps` steps from a fifth of them. Writes the result to `output` and returns it.

    `loaded` is an engine that already runs `target`, with its chat template. This function does not
    close it. Raises DataError if an environment has too few held-out puzzles, ConfigError if
    responses contain no predictions.
    """
    format_of(cfg.agent_proxy.response_format).require_predictions()
    output.parent.mkdir(parents=True, exist_ok=True)
    worker = setup.make_worker(cfg, None, mode="add_worldmodel")
    target = behind_api(cfg, target)
    responses = output.with_suffix(".responses.jsonl")
    engine, worker = open_target(cfg, target, worker, responses=responses, loaded=loaded)
    sampling = setup.val_sampling(cfg)
    asking = Asking(
        engine=engine,
        worker=worker,
        sampling=replace(sampling, temperature=0.0) if greedy else sampling,
        base_seed=stream_seed(cfg.seed.val, BASE) % 2**31,
    )
    known = training_hashes(target.run) if target.run else frozenset()
    tags = {}
    with ProgressLine(
        "eval-world-model", total=3 * len(cfg.es_manager.val.env_configs.tags)
    ) as progress:
        for tag in cfg.es_manager.val.env_configs.tags:
            situations, chance = find_situations(asking, tag, transitions, known)
            done = 3 * len(tags)

            def advance(part: int, values: dict[str, str], done: int = done) -> None:
                progress.update(done + part, values)

            tags[tag] = world_model_report(
                cfg, asking, situations, chance=chance, steps=steps, advance=advance
            )
    if loaded is None:
        engine.close()
    recorded = settings(cfg, asking.sampling, target.api)
    result = {
        "policy": target.name,
        "model": target.model,
        "config": cfg.trainer.experiment_name,
        "settings": {
            **{k: v for k, v in recorded.items() if k not in ("groups", "samples", "mode")},
            "transitions": transitions,
        },
        "tags": tags,
        "versions": versions(),
    }
    write_result(output, result)
    return result


def find_situations(
    asking: Asking, tag: str, count: int, known: frozenset[str]
) -> tuple[list[Situation], bool]:
    """Find `count` states, each in its own puzzle. `known` has the hashes of training puzzles,
    which are excluded unless the environment has `finite_puzzles`. Also returns whether the
    environment has random outcomes.

    If it has, all states are at the start of a puzzle, so that outcomes can be sampled again for
    the ceiling. Raises DataError if too few states are found, and ConfigError if the environment
    shows pictures.
    """
    env = asking.worker.make_env(tag)
    prompter = asking.worker.prompters[tag]
    chance = has_chance(env, prompter, base_seed=asking.base_seed)
    if env.image() is not None:
        raise ConfigError(
            f"{tag} shows pictures, but spa eval --world-model shows states as text; set "
            f"custom_envs.{tag}.env_config.render_mode=text"
        )
    situations: list[Situation] = []
    # Some candidates are left out: their state allows no random action, or their puzzle was in
    # training.
    for index in range(4 * count + 100):
        if len(situations) == count:
            break
        situation = random_situation(
            env, prompter, tag=tag, index=index, base_seed=asking.base_seed, from_start=chance
        )
        if situation is not None and (situation.puzzle not in known or env.finite_puzzles):
            situations.append(situation)
    if len(situations) < count:
        raise DataError(
            f"{tag}: spa found only {len(situations)} of {count} states in puzzles outside "
            "training; lower --transitions"
        )
    return situations, chance


def world_model_report(
    cfg: Config,
    asking: Asking,
    situations: list[Situation],
    *,
    chance: bool,
    steps: int,
    advance: Advance = lambda part, values: None,
) -> dict[str, Any]:
    """Measure one environment tag. Calls `advance` with 1 after the responses, 2 after the rollouts
    and 3 after the likelihood."""
    worker = asking.worker
    tag = situations[0].tag
    env = worker.make_env(tag)
    envs = [replay(worker.make_env(tag), situation) for situation in situations]
    answers = asking.ask(situations, envs, [situation.state for situation in situations], 0)
    answered = [
        (situation, game, response)
        for situation, game, response in zip(situations, envs, answers, strict=True)
        if response is not None
    ]
    missing = len(situations) - len(answered)
    if not answered:
        raise ModelError(f"{tag}: none of {missing} questions has a response")
    if missing:
        log.warning(
            "%s: %d of %d questions have no response and are left out. Run the same command again to ask "
            "them again.",
            tag,
            missing,
            len(situations),
        )
    situations, envs, responses = (list(part) for part in zip(*answered, strict=True))
    asked = [
        Asked(
            tag=tag,
            puzzle=situation.puzzle,
            state=situation.known,
            next_state=response.next_state,
            observation=response.parsed.observation if response.parsed.well_formed else None,
            prediction=response.parsed.prediction if response.parsed.well_formed else None,
            # All actions of the answer are used, not only the executed ones, because the game may
            # end later with other random outcomes.
            ceiling=ceiling(
                env, situation, response.parsed.actions[: cfg.most_actions(tag)], cfg.state_text
            )
            if chance
            else 1.0,
        )
        for situation, response in zip(situations, responses, strict=True)
    ]
    report = prediction_report(asked, env.legend())
    report["no_response"] = missing
    known = {
        "format": "format_rate",
        "observation": "observation_exact",
        "prediction": "prediction_exact",
    }
    shares = {label: report[name] for label, name in known.items()}
    advance(
        1, {label: f"{v['mean'] if isinstance(v, dict) else v:.3f}" for label, v in shares.items()}
    )
    rollouts = range(0, len(situations), 5)
    hidden = any(situation.known != situation.state for situation in situations)
    # A prediction can be shown as the next state only if `world_state_text` is the text in prompts.
    # The legal actions of a predicted state are unknown as well.
    if hidden or cfg.custom_envs[tag].show_legal_actions:
        steps = 1
    report["open_loop"] = open_loop_rollout(
        asking,
        [situations[i] for i in rollouts],
        [envs[i] for i in rollouts],
        [responses[i] for i in rollouts],
        steps,
    )
    advance(2, {})
    if isinstance(asking.engine, LocalEngine) and worker.template is not None:
        report |= likelihood(cfg, asking.engine, worker.template, situations, responses)
    advance(3, {})
    return report


def open_loop_rollout(
    asking: Asking, situations: list[Situation], envs: list, responses: list[Response], steps: int
) -> list[dict[str, Any]]:
    """Run open-loop rollouts: each prediction is shown as the next state, while the answers are
    played in the real game.

    `responses` are the responses of the first step. From a malformed response on, all steps of a
    rollout count as wrong. A rollout ends when its game ends.
    """
    chains: list[list[tuple[bool, bool]]] = [[] for _ in situations]
    alive = list(range(len(situations)))
    for step in range(steps):
        if step:
            shown = [responses[i].parsed.prediction or "" for i in alive]
            asked = asking.ask(
                [situations[i] for i in alive], [envs[i] for i in alive], shown, step
            )
            # A copy, so that the caller's list keeps the responses of the first step.
            responses = list(responses)
            # A rollout without a response ends here.
            answered = {
                i: response
                for i, response in zip(alive, asked, strict=True)
                if response is not None
            }
            alive = list(answered)
            for i, response in answered.items():
                responses[i] = response
        still = []
        for i in alive:
            response = responses[i]
            copied = is_exact(situations[i].known, response.next_state)
            if not response.parsed.well_formed:
                chains[i] += [(False, False)] * (steps - step)
                continue
            chains[i].append((is_exact(response.parsed.prediction, response.next_state), copied))
            if not response.over:
                still.append(i)
        alive = still
        if not alive:
            break
    return rollout_report(chains, steps)


def likelihood(
    cfg: Config,
    engine: LocalEngine,
    template: ChatTemplate,
    situations: list[Situation],
    responses: list[Response],
) -> dict[str, Any]:
    """Measure the likelihood of the transitions that random play took (`likelihood_report`).
    Returns an empty dict if the thoughts of the response format already contain the prediction."""
    form = format_of(cfg.agent_proxy.response_format)
    if form.asked_plan(()) is None:
        return {}

    def sequence(situation: Situation, response: Response, next_state: str) -> ResponseTokens:
        text = form.write(
            situation.known,
            form.asked_plan(situation.actions) or "",
            next_state,
            f" {cfg.action_sep(situation.tag)} ".join(situation.actions),
        )
        prompt = template.start(response.messages, "<think>")
        return response_sequence(template, prompt, text, "<think>")

    pairs = list(zip(situations, responses, strict=True))
    # If the state does not change, copying it gives the true next state, so there is nothing to
    # compare.
    changed = [
        i for i, (situation, _) in enumerate(pairs) if situation.known != situation.next_state
    ]
    sequences = [
        sequence(situation, response, situation.next_state) for situation, response in pairs
    ]
    copies = [sequence(*pairs[i], pairs[i][0].known) for i in changed]
    scored = score_sequences(engine.model, sequences + copies, autocast=engine.autocast)
    return {
        "likelihood": likelihood_report(
            scored[: len(pairs)],
            dict(zip(changed, scored[len(pairs) :], strict=True)),
            vocabulary=engine.model.config.get_text_config(decoder=True).vocab_size,
        )
    }
