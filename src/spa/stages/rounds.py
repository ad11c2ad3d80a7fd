"""Iterated self-play (`generate.rounds`), for models that do not write the format before SFT.

Round 1 makes examples with `generate.policy` and fine-tunes on them. In every further round the
fine-tuned model plays new puzzles itself, with `generate.imagine` the best of its responses by
its own predictions. It trains further on the examples of all rounds so far, or of this one alone
(`generate.train_on`). The last round has the run's own folders, those before it have `round_N/` in
the folder of the run.

A model that searches by its own predictions has two rounds of another kind: single moves of random
play, and then written searches that it has made itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.config.schema import Config, ImagineConfig
from spa.config.stages import Stage
from spa.distributed.world import current_world
from spa.errors import DataError, ModelError
from spa.renamed import current_metrics
from spa.run.files import write_atomic
from spa.run.manifest import result_of
from spa.stages.gate import GATE_FILE

ROUNDS_FILE = "rounds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: its configuration, where its data set and its model lie, and the rounds before it."""

    number: int  # from 1
    cfg: Config
    data: Path
    sft: Path
    before: tuple["Round", ...] = ()

    @property
    def first_batch(self) -> int:
        """The number of its first batch of self-play, so that no round plays the puzzles of
        another."""
        return sum(done.cfg.generate.num_batches for done in self.before)

    @property
    def stages(self) -> tuple[tuple[Stage, Path], ...]:
        """Its stages in their order, with their folders."""
        return ("selfplay", self.data), ("sft", self.sft)

    @property
    def earlier(self) -> list[tuple[Config, Path]]:
        """Configuration and self-play of the rounds before it whose examples count in it, too."""
        counts = self.cfg.generate.train_on == "all_rounds"
        return [(done.cfg, done.data) for done in self.before] if counts else []

    def ready(self) -> Config:
        """Its configuration with the model that the round before has made, which plays and is
        fine-tuned further."""
        if not self.before:
            return self.cfg
        folder = self.before[-1].sft
        # Rank 0 reads the disk for all, so that no rank trains from another file.
        checkpoint = current_world().broadcast(lambda: str(result_of(folder) or ""))
        if not checkpoint:
            raise ModelError(lost_checkpoint(folder))
        sft = replace(self.cfg.sft, model=replace(self.cfg.sft.model, partial_pretrain=checkpoint))
        return replace(self.cfg, model_path=checkpoint, sft=sft)


def first_round(cfg: Config) -> Config:
    """The configuration with the first of its rounds alone. The first of several has nothing to
    plan with yet."""
    if cfg.generate.policy == "search" and cfg.generate.rounds > 1:
        return round_of_moves(cfg)
    # With one round every value of `train_on` selects the same examples. One value for all of them
    # gives one fingerprint.
    own = replace(cfg.generate, train_on="all_rounds")
    if cfg.generate.rounds > 1:
        own = replace(own, rounds=1, later_batches=None, imagine=ImagineConfig())
    return replace(cfg, generate=own)


def round_of_moves(cfg: Config) -> Config:
    """The configuration of random play, one action a turn, and of fine-tuning on its single moves:
    the first round of a model that writes examples by its own predictions
    (`generate.search.dynamics: model`)."""
    own = cfg.generate.search
    tags = cfg.es_manager.train.env_configs.tags
    # One action per turn and as many turns as actions are allowed: each turn is one transition.
    proxy = replace(
        cfg.agent_proxy,
        response_format="plan_first",
        max_actions_per_turn=1,
        max_turn=max(cfg.custom_envs[tag].max_actions_per_traj for tag in tags),
    )
    # A tag's own number of turns would win over that of agent_proxy.
    games = {tag: replace(spec, max_turn=None) for tag, spec in cfg.custom_envs.items()}
    return replace(
        cfg,
        agent_proxy=proxy,
        custom_envs=games,
        ctx_manager=replace(cfg.ctx_manager, history=True),
        generate=replace(
            cfg.generate, rounds=1, group_size=1, policy="random", reply_format="moves"
        ),
        # `moves` counts examples and `moves_per_step` is the batch size: together they fix the
        # number of steps.
        sft=replace(
            cfg.sft,
            data=replace(cfg.sft.data, train_batch_size=own.moves_per_step),
            trainer=replace(
                cfg.sft.trainer,
                total_training_steps=max(1, own.moves // own.moves_per_step),
                eval_episodes=0,
            ),
        ),
        # Nothing is measured after this round (`eval_episodes=0`), so there is nothing to judge.
        gate=replace(cfg.gate, enable=False),
    )


def lost_checkpoint(folder: Path) -> str:
    """What to say of a finished fine-tuning that cannot be gone on from."""
    return (
        f"{folder}: the checkpoint of the finished stage is missing or damaged. Remove the "
        "folder, then repeat the same command to run the stage again."
    )


def rounds_of(cfg: Config, data: Path, sft: Path) -> list[Round]:
    """All rounds of a run, of which `data` and `sft` are the last one's folders. Their
    configurations name the model that the run begins with (see `Round.ready`).

    Examples in base format teach nothing that could be played on with, so they have one round,
    fine-tuned for as long as all rounds together.
    """
    count = cfg.generate.rounds
    trainer = cfg.sft.trainer
    if count == 1:
        return [Round(number=1, cfg=first_round(cfg), data=data, sft=sft)]
    if cfg.generate.policy == "search":
        folder = round_folders(cfg)[0]
        moves = Round(number=1, cfg=round_of_moves(cfg), data=folder / "data", sft=folder / "sft")
        # `resume_path` names a checkpoint of the first round.
        search = replace(
            cfg,
            generate=replace(cfg.generate, rounds=1),
            sft=replace(cfg.sft, trainer=replace(trainer, resume_path=None)),
        )
        return [moves, Round(number=2, cfg=search, data=data, sft=sft, before=(moves,))]
    alone = first_round(cfg).generate
    # Later rounds are played by the fine-tuned model, whatever policy played the first.
    later = replace(
        cfg.generate,
        rounds=1,
        num_batches=cfg.generate.batches_of_later_rounds,
        later_batches=None,
        policy="self",
        mixture=None,
    )
    if cfg.generate.reply_format == "base":
        steps = trainer.total_training_steps
        longer = replace(
            trainer,
            # None stays None: then the epochs count.
            total_training_steps=steps and steps * count,
            total_epochs=trainer.total_epochs * count,
        )
        own = replace(cfg, generate=alone, sft=replace(cfg.sft, trainer=longer))
        return [Round(number=1, cfg=own, data=data, sft=sft)]
    rounds: list[Round] = []
    for number in range(1, count + 1):
        # Each round has another seed: examples of earlier rounds are repeated in another order.
        seed = trainer.seed + number - 1
        own = replace(
            cfg,
            generate=alone if number == 1 else later,
            sft=replace(
                cfg.sft,
                trainer=replace(
                    trainer, seed=seed, resume_path=trainer.resume_path if number == 1 else None
                ),
            ),
        )
        folders = (data, sft)
        if number < count:
            folder = Path(cfg.trainer.run_dir) / f"round_{number}"
            folders = (folder / "data", folder / "sft")
            # A failed gate would ask for more training, which the next round brings anyway.
            own = replace(own, gate=replace(own.gate, enable=False))
        rounds.append(
            Round(number=number, cfg=own, data=folders[0], sft=folders[1], before=tuple(rounds))
        )
    return rounds


def round_folders(cfg: Config) -> tuple[Path, ...]:
    """The folders of all rounds but the last."""
    return tuple(
        Path(cfg.trainer.run_dir) / f"round_{number}" for number in range(1, cfg.generate.rounds)
    )


def told(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """What each round added: who played and how well in the format, the examples that it was
    fine-tuned on, and what the model then knew."""
    return [
        {
            "round": each.number,
            "policy": ", ".join(each.cfg.generate.policies),
            **_part(each.data / "summary.json", ("rows_train", "rows_val"), ()),
            "played": _part(
                each.data / "summary.json",
                (),
                ("success", "format_rate", "wm/obs_exact", "wm/prediction_em"),
            ),
            "learnt": _part(
                each.sft / GATE_FILE,
                (
                    "diagnosis",
                    "format_rate",
                    "observation_exact",
                    "prediction_exact",
                    "copy_exact",
                    "changed_f1",
                ),
                (),
            ),
        }
        for each in rounds
    ]


def _part(path: Path, names: Sequence[str], played: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        own = current_metrics(found.get("played", {}))
        return {name: found[name] for name in names} | {
            name: own[name] for name in played if name in own
        }
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Remove the folder of the round, then repeat "
            "the command to run the round again."
        ) from error


def write_rounds(directory: Path, rounds: Sequence[Round]) -> None:
    """Write rounds.json next to the checkpoints of the last round."""
    write_atomic(directory / ROUNDS_FILE, [json.dumps(told(rounds), indent=1)])
