"""Stage 1: self-play with the base policy, then world-model examples with true states.

The policy writes an observation and a prediction. Afterwards the environment's true states replace
both.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spa.config.schema import Config, to_yaml
from spa.distributed.world import current_world
from spa.engines.factory import RANDOM, PlayingEngine, make_engine
from spa.errors import DataError
from spa.evaluation.episode_metrics import pooled_metrics
from spa.examples.play import policy_of
from spa.examples.source import Examples, Puzzles, source_of
from spa.models.allocator import release_memory
from spa.policies.mixed import MixedEngine, epsilon_mixture
from spa.policies.named import policy_named, policy_names
from spa.policies.scripted import random_engine
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.imagination import IMAGINED, Record, imagination, imagining
from spa.run.copies import copies_of
from spa.run.files import dump_line, read_lines, read_object, write_atomic
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import stage_fingerprint
from spa.run.manifest import SUMMARY, Manifest, batch_file, whole_batches
from spa.run.stage import Stage
from spa.run.trackers import trackers_of
from spa.types import Episode, Metrics, SFTExample, StopReason
from spa.worldmodel.examples import (
    by_reason,
    coverage_sample,
    hidden_share,
    is_counterfactual,
    shuffle_next_states,
    split_by_puzzle,
    write_parquet,
)
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE, puzzles_in
from spa.worldmodel.states import with_states

log = logging.getLogger(__name__)

# Self-play warns if more than this share of the words in observations appears in no system or user
# message, as in partially observed games.
MUCH_HIDDEN = 0.05


def run_self_play(
    cfg: Config,
    *,
    directory: Path | None = None,
    first_batch: int = 0,
    earlier: Sequence[tuple[Config, Path]] = (),
    before: Sequence[Path] = (),
    fingerprint: Fingerprint | None = None,
    episodes: Path | None = None,
) -> Path:
    """Play `generate.num_batches` batches and write the data set; return its folder.

    Every batch plays new puzzles. Validation puzzles are left out of the data, so that no model is
    fine-tuned on them.

    Args:
        directory: folder of the data set; None: the configured one.
        first_batch: index of the first batch. A later round continues where the previous one
            stopped.
        earlier: configuration and folder of each earlier round whose episodes also provide
            examples.
        before: data sets of all earlier rounds. A puzzle of their training or validation part stays
            in that part.
        fingerprint: None if the stage runs alone. It then plays only the first of several rounds,
            and a finished stage runs again if `trainer.resume_mode=disable`.
        episodes: finished folder of the same self-play, whose episodes are used instead of playing.
    """
    alone = fingerprint is None
    if alone:
        if cfg.generate.rounds > 1 and current_world().is_main:
            log.warning(
                "With generate.rounds=%d, a command for self-play alone plays only the "
                "first round, without planning. `spa run` runs all rounds; its first round "
                "is in round_1/. To plan with the model in model_path, set "
                "generate.rounds=1.",
                cfg.generate.rounds,
            )
        cfg = source_of(cfg).first_round(cfg)
    out = directory or Path(cfg.generate.output_dir or Path(cfg.trainer.run_dir) / "data")
    known = fingerprint or stage_fingerprint(cfg, "selfplay")
    again = alone and cfg.trainer.resume_mode == "disable"
    source = source_of(cfg)
    first = first_batch if source.plays else 0
    trackers = trackers_of(cfg)
    with Stage(cfg, out, known, first=first, again=again, trackers=trackers) as stage:
        if stage.result is not None:
            return stage.result
        if not source.plays:
            write_examples(cfg, stage)
        elif episodes is None or not examples_from(cfg, episodes, out):
            self_play(cfg, stage, earlier, before)
        return stage.finish()


def self_play(
    cfg: Config,
    stage: Stage,
    earlier: Sequence[tuple[Config, Path]] = (),
    before: Sequence[Path] = (),
) -> None:
    """Play the missing batches and make examples of all episodes."""
    out = stage.folder
    world = current_world()
    # The planner appends to this list while a batch is played.
    imagined: list[dict[str, Any]] = []
    engine = selfplay_engine(cfg, setup.pick_device(cfg), imagined.append)
    worker = setup.make_worker(
        cfg, engine.template, mode="add_worldmodel", lost=stage.lost_episodes
    )
    held_out = setup.validation_hashes(cfg, worker)
    # Examples are made of all batches at the end, so a resumed stage reads its earlier episodes
    # back.
    episodes = recorded_episodes(out, range(stage.first + 1, stage.step + 1))
    for batch in stage.steps(stage.first + cfg.generate.num_batches):
        with stage.interruptible("selfplay"):
            specs = setup.training_specs(cfg, worker, "selfplay", step=batch - 1, held_out=held_out)
            played = worker.rollout(engine, specs, setup.selfplay_sampling(cfg))
        if cfg.generate.imagine.on:
            lines = [line for part in world.gather(imagined) for line in part]
            if lines and world.is_main:
                write_imagined(out, batch, lines)
        imagined.clear()
        # Self-play saves no model. A batch counts as done when its file is in the manifest.
        stage.commit(batch, play_metrics(cfg, played), played)
        episodes += played
        release_memory()
    engine.close()
    puzzles = Puzzles(worker=worker, held_out=held_out)
    made = source_of(cfg).make(cfg, puzzles, episodes)
    examples = made.examples
    counts = made.dropped
    # Examples of earlier rounds are made again, with the settings of those rounds, but without the
    # puzzles that this round holds out.
    for own, folder in earlier:
        made = source_of(own).make(own, puzzles, stored_episodes(own, folder))
        examples = [*made.examples, *examples]
        counts = counts + made.dropped
    if not examples:
        raise nothing_usable(cfg, episodes, counts)
    if world.is_main:
        summary = write_dataset(cfg, out, examples, counts, episodes, played_in=out, before=before)
        log.info(
            "spa wrote %d training and %d validation examples from %d episodes; dropped: %s",
            summary["examples_train"],
            summary["examples_val"],
            summary["episodes"],
            by_reason(summary["dropped"]),
        )


def write_examples(cfg: Config, stage: Stage) -> None:
    """Write the data set of a source that makes examples without play, and its summary."""
    source = source_of(cfg)
    for step in stage.steps(1):
        metrics: Metrics = {}
        with stage.interruptible("examples"):
            if current_world().is_main:
                worker = setup.make_worker(cfg, None, mode=source.mode)
                puzzles = Puzzles(worker=worker, held_out=setup.validation_hashes(cfg, worker))
                metrics = _write_examples(stage.folder, source.make(cfg, puzzles, ()))
        stage.commit(step, metrics)


def _write_examples(out: Path, made: Examples) -> Metrics:
    train = made.examples[: made.training]
    validation = made.examples[len(train) :]
    write_parquet(out / TRAIN_FILE, train)
    write_parquet(out / VAL_FILE, validation)
    summary = {
        "episodes": 0,
        "played": {"episodes": 0.0, "num_actions": 0.0},
        "examples_train": len(train),
        "examples_val": len(validation),
        "puzzles": len({example.puzzle_hash for example in made.examples}),
        "dropped": dict(sorted(made.dropped.items())),
        **made.summary,
    }
    write_atomic(out / SUMMARY, [json.dumps(summary, indent=1)])
    log.info(
        "spa wrote %d training and %d validation examples without play; dropped: %s",
        len(train),
        len(validation),
        by_reason(made.dropped),
    )
    return made.metrics


def examples_from(cfg: Config, source: Path, out: Path) -> bool:
    """Make this configuration's data set from the self-play episodes in the folder `source`; return
    False if they are incomplete. Raises DataError if no episode is usable."""
    batches = cfg.generate.num_batches
    if whole_batches(source) < batches:
        return False
    episodes = recorded_episodes(source, range(1, batches + 1))
    worker = setup.make_worker(cfg, None, mode="add_worldmodel")
    puzzles = Puzzles(worker=worker, held_out=setup.validation_hashes(cfg, worker))
    made = source_of(cfg).make(cfg, puzzles, episodes)
    if not made.examples:
        raise nothing_usable(cfg, episodes, made.dropped)
    write_dataset(cfg, out, made.examples, made.dropped, episodes, played_in=source)
    write_atomic(out / "config.yaml", [to_yaml(cfg)])
    return True


def recorded_episodes(folder: Path, batches: Iterable[int]) -> list[Episode]:
    """Read the episodes of these self-play batches."""
    lines = (row for batch in batches for _, row in read_lines(folder / batch_file(batch)))
    return [Episode.from_json(row) for row in lines]


def write_imagined(out: Path, batch: int, lines: list[dict[str, Any]]) -> None:
    """Write the planner's records of a batch to `imagined/<batch>.jsonl` in the stage's folder
    `out`."""
    (out / IMAGINED).mkdir(exist_ok=True)
    write_atomic(out / IMAGINED / f"{batch:06d}.jsonl", [dump_line(line) for line in lines])


def selfplay_engine(
    cfg: Config, device: torch.device, record: Record = lambda line: None
) -> PlayingEngine:
    """Build the engine for self-play from the policies of `generate.policy` and `generate.mixture`,
    with a share of random turns if configured.

    If the model plans, `record` receives the planner's record of every turn. Raises ConfigError if
    a policy cannot play an environment, or if the configured examples cannot be made from it.
    """
    source = source_of(cfg)
    if source.checks_puzzles:
        tags = cfg.es_manager.train.env_configs.tags
        setup.check_puzzles(cfg, tags, partial(source.require, cfg))
    players: dict[str, PlayingEngine] = {}
    # The model comes first, since the other policies use its template.
    order = sorted(cfg.generate.policies, key=lambda name: name != "self")
    for name in order:
        players[name] = _policy(
            cfg, name, device, players["self"].template if "self" in players else None
        )
    if "self" in players and cfg.generate.imagine.on:
        tags = cfg.es_manager.train.env_configs.tags
        own = players["self"]
        response = cfg.generate.sampling.response_length
        players["self"] = imagining(
            cfg, cfg.generate.imagine, tags, own, own.template, record, response=response
        )
    elif cfg.generate.imagine.on:
        log.warning(
            "generate.imagine has no effect, because the model plays no episodes (generate.policy)"
        )
    engine = next(iter(players.values()))
    if len(players) > 1:
        names = list(players)
        # The episode's id decides which policy plays, so the choice is the same on every rank and
        # after resuming.
        engine = MixedEngine(
            list(players.values()), lambda prompt: names.index(policy_of(cfg, prompt.episode_id))
        )
    if cfg.generate.epsilon == 0:
        return engine
    other = random_engine(engine.template, max_actions=cfg.agent_proxy.max_actions_per_turn)
    return epsilon_mixture(engine, other, epsilon=cfg.generate.epsilon)


def _policy(
    cfg: Config, name: str, device: torch.device, template: ChatTemplate | None
) -> PlayingEngine:
    """Build the engine of one policy."""
    if name not in policy_names():
        model = cfg.model_path if name == "self" else RANDOM
        return make_engine(cfg, model, template, device=device)
    policy = policy_named(name)
    if policy.require:
        setup.check_puzzles(cfg, cfg.es_manager.train.env_configs.tags, policy.require)
    return policy.make(template, cfg.agent_proxy.max_actions_per_turn, setup.most_actions(cfg))


def nothing_usable(cfg: Config, episodes: Sequence[Episode], counts: Counter[str]) -> DataError:
    """Return the error for self-play whose episodes give no training example. Its message names the
    likely cause and what to change."""
    dropped = f"(dropped: {by_reason(counts)})"
    if episodes and all(episode.stop is StopReason.ERROR for episode in episodes):
        return DataError(
            f"All {len(episodes)} episodes failed {dropped}. The first error is: "
            f"{episodes[0].error}. Run `spa env check` to find the cause."
        )
    if counts["not_successful"]:
        return DataError(
            f"None of the {len(episodes)} episodes gives a training example {dropped}, because "
            "generate.success_only=true keeps only episodes that succeeded. Play more puzzles "
            "(generate.num_batches), or set generate.success_only=false."
        )
    if "self" not in cfg.generate.policies:
        return DataError(
            f"None of the {len(episodes)} episodes gives a training example {dropped}. Play more "
            "puzzles (generate.num_batches), or run `spa env check` to test the game."
        )
    begin = (
        "start with examples of random play (generate.policy=random; with generate.rounds=2 the "
        "model plays the second round)"
    )
    if cfg.generate.train_on == "current_round":
        begin = "train also on the examples of earlier rounds (generate.train_on=all_rounds)"
    return DataError(
        f"None of the {len(episodes)} episodes has a turn in the world-model format {dropped}. "
        "The model does not follow the response format. Use an "
        f"instruct model, {begin}, or allow longer responses "
        "(generate.sampling.response_length)."
    )


def stored_episodes(cfg: Config, folder: Path) -> list[Episode]:
    """Read all episodes from which the finished data set in `folder` was made; they may be in
    another folder. Raises DataError if one of their files is missing or its size has changed."""
    played = folder.resolve() / read_object(folder / SUMMARY).get("episodes_in", "")
    files = sorted((played / "trajectories").glob("generate-*.jsonl"))
    known = Manifest.read(played)
    # A size that differs from the manifest means that a file was truncated or replaced.
    problem = next(
        (defect for path in files if known and (defect := known.problem(path, played))), ""
    )
    if len(files) < cfg.generate.num_batches:
        problem = (
            f"{played}: the folder has only {len(files)} of {cfg.generate.num_batches} "
            "batches of episodes"
        )
    if problem:
        copied = copies_of(cfg, folder)
        raise DataError(
            f"{problem}. The training examples come from these episodes. Restore the files, "
            f"or remove {folder}{f' and its copy {copied}' if copied else ''} to play the "
            "episodes again."
        )
    return [Episode.from_json(row) for path in files for _, row in read_lines(path)]


def write_dataset(
    cfg: Config,
    out: Path,
    examples: list[SFTExample],
    counts: Counter[str],
    episodes: list[Episode],
    *,
    played_in: Path,
    before: Sequence[Path] = (),
) -> dict[str, Any]:
    """Write wm_train.parquet, wm_val.parquet and summary.json to `out`; return the summary.
    `played_in` is the folder with the episodes, and `before` lists the data sets of earlier
    rounds."""
    # A puzzle stays in training or in validation in all rounds. Otherwise validation would measure
    # puzzles that an earlier round was trained on.
    train, val = split_by_puzzle(
        examples,
        val_fraction=cfg.generate.val_fraction,
        seed=cfg.generate.split_seed,
        trained=puzzles_in([folder / TRAIN_FILE for folder in before]) or (),
        validated=puzzles_in([folder / VAL_FILE for folder in before]) or (),
    )
    # States are shuffled within each part, so that no validation state gets into training.
    if cfg.generate.shuffle_next_states:
        train = shuffle_next_states(train, cfg.seed.train)
        val = shuffle_next_states(val, cfg.seed.train)
    # States are replaced before examples are resampled: prompts contain the responses of earlier
    # examples, which resampling may drop.
    train, val = (
        with_states(part, cfg.generate.states, seed=cfg.seed.train) for part in (train, val)
    )
    # Only training examples are resampled; validation keeps the distribution of play.
    if cfg.generate.coverage:
        train = coverage_sample(train, cfg.seed.train)
    write_parquet(out / TRAIN_FILE, train)
    write_parquet(out / VAL_FILE, val)
    summary: dict[str, Any] = {
        "episodes": len(episodes),
        "examples_train": len(train),
        "examples_val": len(val),
        "puzzles": len({example.puzzle_hash for example in examples}),
        "dropped": dict(sorted(counts.items())),
        "played": {
            name.removeprefix("selfplay/"): value
            for name, value in play_metrics(cfg, episodes).items()
        },
        "shuffled_next_states": cfg.generate.shuffle_next_states,
        "states": cfg.generate.states,
    }
    # The path is relative, so that the folder of the run can be moved.
    if (where := os.path.relpath(played_in.resolve(), out.resolve())) != ".":
        summary["episodes_in"] = where
    if imagined := imagination(cfg.generate.imagine, (played_in / IMAGINED).glob("*.jsonl")):
        summary["imagination"] = imagined
    if hidden := hidden_share(examples) if source_of(cfg).has_states else 0.0:
        summary["hidden_share"] = round(hidden, 4)
    if hidden > MUCH_HIDDEN:
        log.warning(
            "%.0f %% of the words in the observations appear in no message, so SFT trains "
            "the model to guess these words. Return less from world_state_text (`spa env "
            "check` reports the hidden words, too)",
            100 * hidden,
        )
    if branched := [example for example in examples if is_counterfactual(example)]:
        summary["examples_counterfactual"] = len(branched)
    if len(cfg.generate.policies) > 1 or cfg.generate.epsilon > 0:
        summary["model_tokens"] = sum(map(model_tokens, episodes))
    if elsewhere := actions_elsewhere(cfg, examples, episodes):
        summary["actions_elsewhere"] = elsewhere
    write_atomic(out / SUMMARY, [json.dumps(summary, indent=1, sort_keys=True)])
    return summary


def actions_elsewhere(cfg: Config, examples: list[SFTExample], episodes: list[Episode]) -> int:
    """Number of actions taken outside the recorded episodes: to make examples (in copies of the
    game), and by policies that try each puzzle before playing it."""
    # A policy that tries actions before playing does so once per puzzle, not once per episode.
    puzzles = {(policy_of(cfg, e.episode_id), e.tag, e.puzzle_hash) for e in episodes}
    tried = sum(policy_named(name).tried for name, *_ in puzzles if name in policy_names())
    played = {episode.episode_id for episode in episodes}
    own = [
        example for example in examples if example.episode_id in played
    ]  # the others come from earlier rounds
    return sum(int(example.extra.get("tried", 0)) for example in own) + tried


def model_tokens(episode: Episode) -> int:
    """Return the number of tokens in an episode that the model sampled. If all tokens of a turn
    have log-prob 0, another policy played the turn."""
    if episode.sampled is None or episode.turn_index is None or episode.logprobs is None:
        return 0
    turns = [
        episode.sampled & (episode.turn_index == number) for number in range(len(episode.turns))
    ]
    return sum(int(mask.sum()) for mask in turns if episode.logprobs[mask].any())


def play_metrics(cfg: Config, episodes: list[Episode]) -> Metrics:
    """Compute the rollout metrics of self-play.

    World-model metrics cover only the episodes that the model played. They are left out if it
    played none, or if episodes contain random turns.
    """
    metrics = pooled_metrics(episodes, "selfplay")
    # With epsilon, every episode mixes random turns with the model's own.
    own = (
        []
        if cfg.generate.epsilon > 0
        else [each for each in episodes if policy_of(cfg, each.episode_id) == "self"]
    )
    states = pooled_metrics(own, "selfplay") if own else {}
    return {
        name: states[name] if "/wm/" in name else value
        for name, value in metrics.items()
        if "/wm/" not in name or name in states
    }
