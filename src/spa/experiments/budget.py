"""What a training has used: actions in the environment, and tokens."""

from typing import NamedTuple

from spa.errors import DataError
from spa.experiments.grid import FOLDERS, Run
from spa.run.files import read_lines, read_object
from spa.stages.rounds import Round


class Budget(NamedTuple):
    """Actions in the environment, and tokens that the model sampled."""

    environment_steps: float
    tokens: float


def budget(training: Run) -> dict[int, Budget]:
    """PPO step -> what had been used by then: actions in the environment, and tokens that the model
    sampled, with those that a planner began its responses with.

    Play by others than the model costs actions and no tokens, and so do branches, plans to choose
    from, and the tries of the scout. Validation counts nowhere. `learnt_tokens` counts the tokens of
    fine-tuning.
    """
    actions = 0.0
    tokens = 0.0
    # Rounds before PPO come first, so step 0 has their cost already.
    for own in training.rounds:
        before = _played(own)
        actions = actions + before.environment_steps
        tokens = tokens + before.tokens
    found = {0: Budget(actions, tokens)}
    for _, line in read_lines(training.folder / FOLDERS["ppo"] / "metrics.jsonl"):
        tags = [
            key.split("/")[1]
            for key in line
            if key.startswith("train/") and key.endswith("/episodes")
        ]
        for tag in tags:
            # Metrics are means per episode; times the number of episodes they are totals.
            played = line[f"train/{tag}/episodes"]
            actions += played * line.get(f"train/{tag}/num_actions", 0.0)
            tokens += played * line.get(f"train/{tag}/response_length", 0.0)
        found[int(line["step"])] = Budget(actions, tokens)
    return found


def _played(own: Round) -> Budget:
    """Actions and tokens of a round's self-play."""
    path = own.data / "summary.json"
    summary = read_object(path)
    if "played" not in summary:
        raise DataError(
            f"{path} is damaged or missing. Remove {path.parent} and run the same command again."
        )
    played = summary["played"]
    generate = own.cfg.generate
    shares = generate.mixture or {generate.policy: 1.0}
    # The share of turns that the model itself played: its part of the mixture, less what epsilon
    # made random.
    share = (
        float(shares.get("self", 0.0)) / sum(map(float, shares.values())) * (1 - generate.epsilon)
    )
    # With planning each turn samples several responses, which this count includes.
    drawn = summary.get("imagination", {}).get("tokens_per_episode") or played.get(
        "response_length", 0.0
    )
    actions = played["episodes"] * played["num_actions"] + summary.get("actions_elsewhere", 0)
    asked = summary.get("search", {}).get("tokens", 0)  # single moves, asked of the model
    return Budget(actions, share * played["episodes"] * drawn + asked)


def learnt_tokens(training: Run) -> int:
    """Tokens of rows that the model was trained on: in fine-tuning, over all its epochs and rounds,
    and in replay."""
    read = [(own.sft, "train/tokens") for own in training.rounds]
    total = 0.0
    # Replay in PPO trains on the same rows again.
    for folder, key in [*read, (training.folder / FOLDERS["ppo"], "actor/replay_tokens")]:
        if (path := folder / "metrics.jsonl").is_file():
            total += sum(line.get(key, 0.0) for _, line in read_lines(path))
    return round(total)
