"""Runs to look at: a real lake, a player of given skill, the real recorder. Deterministic and quick; no model."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from spa.envs.frozen_lake import FrozenLake
from spa.formats.registry import parse_response, world_model_response
from spa.prompts.render import Prompter
from spa.run.recorder import Recorder
from spa.seeds import stream
from spa.types import Episode, Message, StopReason, Turn

TAG = "FrozenLake"
MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}


def make_tokenizer() -> Tokenizer:
    """A small byte-level BPE: any text encodes, and the viewer can decode its ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = [
        "<think><observation>Player (P) is at (0,1); goal (G) is at (2,3); holes (O) are at (1,1)</observation>"
    ]
    words += [
        "</think><answer>Left || Down || Right || Up</answer>",
        "the state your turn actions left",
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(words * 3, trainer)
    return tokenizer


TOKENIZER = make_tokenizer()


@cache
def encode(text: str) -> list[int]:
    """Token ids; most messages of an episode are those of the others."""
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def play(
    rng: np.random.Generator,
    *,
    puzzle: int,
    skill: float,
    foresight: float,
    world_model: bool,
    episode_id: str,
    group: int = 0,
    member: int = 0,
    state_text: str = "coords",
    thoughts: str = "I go on.",
) -> Episode:
    """One episode of a player that moves towards the goal with probability `skill`, else anywhere, and predicts the
    next state right with probability `foresight`."""
    env = FrozenLake(is_slippery=False, state_text=state_text)
    env.reset(seed=puzzle)
    prompter = Prompter(
        mode="add_worldmodel" if world_model else "base",
        state_text=state_text,
        max_turn=5,
        max_actions_per_turn=2,
    )
    messages: list[Message] = list(prompter.first_messages(env))
    turns: list[Turn] = []
    left, done, success = 10, False, False
    stop = StopReason.MAX_TURNS
    while len(turns) < 5 and not done:
        before = env.state_text(state_text)
        wanted = [_choose(env, rng, skill) for _ in range(int(rng.integers(1, 3)))]
        executed, infos, reward = [], [], 0.0
        for action in wanted[:left]:
            number = env.to_action(action)
            assert number is not None
            _, gain, done, _, info = env.step(number)
            executed.append(action)
            infos.append(info)
            reward += float(gain)
            if done:
                success = bool(info["success"])
                break
        after = env.state_text(state_text)
        guess = after if rng.random() < foresight else before
        text = _response(world_model, before, guess, thoughts, wanted, broken=rng.random() < 0.06)
        response = parse_response(text, mode=prompter.mode, max_actions=2)
        left -= len(executed)
        turns.append(
            Turn(
                state=before, actions_left=left + len(executed), response_text=text, response=response,
                executed=tuple(executed), reward=reward, penalty=0.0 if response.well_formed else -0.1,
                next_state=after, infos=tuple(infos),
            )
        )  # fmt: skip
        messages.append({"role": "assistant", "content": text})
        if not done:
            messages.append(
                prompter.next_message(env, turn=len(turns) + 1, actions_left=left, reward=reward)
            )
    if done:
        stop = StopReason.SUCCESS if success else StopReason.FAILURE
    return Episode(
        episode_id=episode_id, tag=TAG, mode=prompter.mode, state_text=state_text, puzzle_seed=puzzle, noise_seed=0,
        puzzle_hash=f"{puzzle:08x}", group=group, member=member, stop=stop, success=success, turns=tuple(turns),
        messages=tuple(messages), **_tokens(messages, rng),
    )  # fmt: skip


def _choose(env: FrozenLake, rng: np.random.Generator, skill: float) -> str:
    row, col = divmod(env.player, env.size)
    goal_row, goal_col = divmod(env.lake.goal, env.size)
    if rng.random() >= skill:
        return list(MOVES)[int(rng.integers(4))]
    best = []
    for name, (down, right) in MOVES.items():
        r, c = row + down, col + right
        if 0 <= r < env.size and 0 <= c < env.size and r * env.size + c not in env.lake.holes:
            best.append((abs(goal_row - r) + abs(goal_col - c), name))
    return min(best)[1] if best else "Up"


def _response(
    world_model: bool, now: str, guess: str, thoughts: str, actions: Sequence[str], *, broken: bool
) -> str:
    answer = " || ".join(actions)
    if broken:
        return f"<think>{thoughts} {answer}"
    if world_model:
        return world_model_response(now, thoughts, guess, answer)
    return f"<think>{thoughts}</think><answer>{answer}</answer>"


def _tokens(messages: Sequence[Message], rng: np.random.Generator) -> dict[str, np.ndarray]:
    ids: list[int] = []
    sampled: list[bool] = []
    turn_index: list[int] = []
    turn = -1
    for message in messages:
        by_model = message["role"] == "assistant"
        turn += by_model
        new = encode(message["content"].encode(errors="replace").decode())
        ids += new
        sampled += [by_model] * len(new)
        turn_index += [turn if by_model else turn + (turn >= 0)] * len(new)
    logprobs = np.where(sampled, -rng.gamma(0.3, 1.0, len(ids)), 0.0)
    return {
        "token_ids": np.array(ids, np.int32), "sampled": np.array(sampled, np.bool_),
        "logprobs": logprobs.astype(np.float32), "turn_index": np.array(turn_index, np.int16),
    }  # fmt: skip


def write_stage(
    directory: Path, *, arm: str, seed: int, steps: int = 10, skill: tuple[float, float] = (0.2, 0.7),
    foresight: float = 0.6, world_model: bool = True, puzzles: int = 4, samples: int = 2,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """A PPO stage: `steps` steps with validation every 5; returns pass rates before and after."""
    rng = stream(seed, "fixture", *arm.encode())
    config = {
        "seed": seed,
        "arm": arm,
        "trainer": {"total_training_steps": steps},
        "actor": {"lr": 1e-6},
    }
    config["ctx_manager"] = {"mode": "add_worldmodel" if world_model else "base"}
    rates: dict[str, dict[str, float]] = {}
    with Recorder(directory, stage="ppo", config=config, total_steps=steps) as recorder:
        for step in range(steps + 1):
            level = skill[0] + (skill[1] - skill[0]) * step / steps
            metrics = {
                "actor/loss": 0.01 * float(rng.normal()), "actor/entropy": 0.6 - 0.02 * step, "rollout/mismatch_kl": 1e-6,
                "actor/pg_clipfrac": 0.02 + 0.01 * float(rng.random()), "actor/ppo_kl": 0.003 * float(rng.random()),
                f"train/{TAG}/score": level, f"train/{TAG}/response_length": 40 + step + float(rng.random()),
                f"train/{TAG}/format_rate": 0.9 + 0.05 * float(rng.random()),
            }  # fmt: skip
            if step % 5 == 0:
                with recorder.timer("validation"):
                    episodes = [
                        play(rng, puzzle=10_000 + p, skill=level, foresight=foresight, world_model=world_model,
                             episode_id=f"val/{step}/{p}/{k}", group=p, member=k)
                        for p in range(puzzles) for k in range(samples)
                    ]  # fmt: skip
                recorder.trajectories(step, "val", episodes)
                wins = np.array([episode.success for episode in episodes]).reshape(puzzles, samples)
                metrics[f"val-env/{TAG}/success"] = metrics[f"val-env/{TAG}/pass@1"] = float(
                    wins.mean()
                )
                metrics[f"val-env/{TAG}/pass@8"] = float(wins.any(1).mean())
                rates["after"] = {"pass@1": float(wins.mean()), "pass@8": float(wins.any(1).mean())}
                rates.setdefault("before", rates["after"])
            if step:
                with recorder.timer("rollout"):
                    played = [
                        play(rng, puzzle=step * 4 + p, skill=level, foresight=foresight, world_model=world_model,
                             episode_id=f"train/{step}/{p}/0", group=p)
                        for p in range(4)
                    ]  # fmt: skip
                recorder.trajectories(step, "train", played)
                scores = {e.episode_id: {"advantages": rng.normal(size=len(e.token_ids)).round(4).tolist()} for e in played if e.token_ids is not None}  # fmt: skip
                recorder.token_scores(step, "train", scores)
                metrics[f"train/{TAG}/success"] = float(
                    np.mean([episode.success for episode in played])
                )
            recorder.log(step, metrics)
    folder = directory / f"global_step_{steps}"
    folder.mkdir(exist_ok=True)
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return rates


def write_sft(directory: Path, *, seed: int) -> dict[str, float]:
    """An SFT stage of three epochs."""
    rng = stream(seed, "fixture_sft")
    last = {}
    with Recorder(directory, stage="sft", config={"seed": seed, "optim": {"lr": 1e-4}}) as recorder:
        for step in range(1, 31):
            metrics = {"train/loss": 2.0 / step + 0.05 * float(rng.random())}
            if step % 10 == 0:
                last = {"wm/obs_exact": 0.6 + 0.01 * step, "wm/prediction_em": 0.02 * step}
                metrics |= {f"val/{key}": value for key, value in last.items()} | {
                    "val/loss": 2.1 / step
                }
            recorder.log(step, metrics)
    return {"observation_exact": last["wm/obs_exact"], "prediction_exact": last["wm/prediction_em"]}


def write_demo(run: Path, *, seeds: Sequence[int] = (0,)) -> Path:
    """A comparison of vanilla and SPA as `spa compare` leaves it, with its summary.json."""
    per_seed = []
    for seed in seeds:
        base = run if len(seeds) == 1 else run / f"seed_{seed}"
        world = write_sft(base / "spa" / "sft", seed=seed)
        methods = {
            "vanilla": write_stage(base / "vanilla" / "ppo", arm="vanilla", seed=seed, skill=(0.2, 0.3), world_model=False, puzzles=12),
            "spa": write_stage(base / "spa" / "ppo", arm="spa", seed=seed, skill=(0.2, 0.8), puzzles=12),
        }  # fmt: skip
        per_seed.append({"seed": seed, "methods": methods, "world_model": world})

    def mean(*path: str) -> float:
        found: list[Any] = list(per_seed)
        for name in path:
            found = [entry[name] for entry in found]
        return float(np.mean(found))

    arms = ("vanilla", "spa")
    methods: dict[str, Any] = {
        arm: {
            when: {k: mean("methods", arm, when, k) for k in ("pass@1", "pass@8")}
            for when in ("before", "after")
        }
        for arm in arms
    }
    methods["vanilla"]["after_total"] = {"pass@1": 0.3, "pass@8": 0.5}
    gains = [
        row["methods"]["spa"]["after"]["pass@1"] - row["methods"]["vanilla"]["after"]["pass@1"]
        for row in per_seed
    ]
    spread = {
        "mean": float(np.mean(gains)),
        "low": min(gains) - 0.02,
        "high": max(gains) + 0.02,
        "n": 12 * len(gains),
    }
    summary: dict[str, Any] = {
        "seed": 0, "methods": methods, "world_model": {"prediction_exact": mean("world_model", "prediction_exact")},
        "difference": {"vanilla": spread, "vanilla_same_total_episodes": spread},
        "episodes": {"vanilla": {"ppo": 40, "self_play": 0}, "spa": {"ppo": 40, "self_play": 16}},
        "seconds": {"spa/data": 25.0, "spa/sft": 170.0, "spa/ppo": 200.0, "vanilla/ppo": 150.0, "total": 395.0},
        "peak_memory_gb": 2.5, "versions": {"spa": "0.1.0", "torch": "2.13.0", "commit": "0123456789abcdef"},
    }  # fmt: skip
    if len(seeds) > 1:
        summary["seeds"] = per_seed
    (run / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return run
