"""Budget of a training run: the number of environment actions, episodes and tokens that it uses."""

from dataclasses import asdict

from spa.errors import DataError
from spa.run.files import read_lines
from spa_report.usage import Budget, of_self_play, so_far
from spa_sweeps.grid import FOLDERS, TrainingRun


def budget(training: TrainingRun) -> dict[int, Budget]:
    """Return PPO step -> resources that the run used up to this step, including self-play. Tokens
    of fine-tuning are not included; see `learnt_tokens`.

    Raises DataError if the `summary.json` of a dataset is missing or damaged.
    """
    before = Budget()
    # Self-play runs before PPO, so step 0 already includes its cost. Episodes played during SFT to
    # evaluate the model are not counted.
    for own in training.rounds:
        played = of_self_play(own.data, asdict(own.cfg.generate))
        if played is None:
            raise DataError(
                f"{own.data / 'summary.json'} is damaged or missing. Remove {own.data} and run the same command again."
            )
        before = before.plus(played)
    lines = read_lines(training.folder / FOLDERS["ppo"] / "metrics.jsonl")
    return so_far(before, ((int(line["step"]), line) for _, line in lines))


def learnt_tokens(training: TrainingRun) -> int:
    """Return the number of example tokens on which the model was trained: in fine-tuning, over all
    epochs and rounds, and in PPO's replay."""
    read = [(own.sft, "train/tokens") for own in training.rounds]
    total = 0.0
    # Replay in PPO also trains on examples, so its tokens count as well.
    for folder, key in [*read, (training.folder / FOLDERS["ppo"], "actor/replay_tokens")]:
        if (path := folder / "metrics.jsonl").is_file():
            total += sum(line.get(key, 0.0) for _, line in read_lines(path))
    return round(total)
