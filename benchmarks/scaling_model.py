"""The time model of scaling_model.md: seconds of one PPO step on many GPUs, from stated assumptions. Prints its table.

    python benchmarks/scaling_model.py

Nothing here is measured on GPUs: `Machine` and `Load` are the assumptions, and each can be replaced by a measurement.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A policy; the critic is as large."""

    name: str
    parameters: float
    kv_bytes: float  # per token, bfloat16


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind in nodes, and the processors beside them."""

    flops: float = 990e12  # dense bfloat16 peak of an H100
    mfu: float = 0.35  # share of it that scoring and updates reach
    memory: float = 3.35e12  # bytes/s
    memory_share: float = 0.5  # of it that decoding reaches
    launch: float = 2e-3  # seconds per decoded token that no memory traffic explains
    per_node: int = 8
    inside: float = 300e9  # bytes/s per GPU within a node
    between: float = 35e9  # bytes/s per GPU between nodes (400 Gbit/s at 70 %)
    host_link: float = 2e9  # bytes/s per rank for trajectories (gloo over TCP)
    pack: float = 0.35e-3  # seconds to pack an episode (measured)
    unpack: float = 0.16e-3  # seconds to unpack one (measured)


@dataclass(frozen=True)
class Load:
    """One rank's work in a step: groups of the recipe's size, a quarter of them kept."""

    episodes: int = 32
    kept: float = 0.25
    turns: int = 5
    response: int = 400  # the longest of a turn's responses: all wait for it
    tokens: int = 1800  # per episode, prompts and responses
    mini_batches: int = 2
    episode_bytes: float = 46e3


MODELS = (Model("1.5B", 1.54e9, 28_672), Model("7B", 7.62e9, 57_344))
RANKS = (8, 64, 1024)
PHASES = ("rollout", "score", "update", "communication", "episodes")


def step(model: Model, ranks: int, machine: Machine, load: Load) -> dict[str, float]:
    """Seconds of each phase, on one rank (all wait for each other). Shards lie inside a node (`fsdp_size=8`)."""
    read = 2 * model.parameters + load.episodes * load.tokens / 2 * model.kv_bytes
    per_token = read / (machine.memory * machine.memory_share) + machine.launch
    trained = load.episodes * load.kept * load.tokens
    useful = machine.flops * machine.mfu
    everyone = load.episodes * ranks
    return {
        "rollout": load.turns * load.response * per_token,
        "score": 2 * 2 * model.parameters * trained / useful,  # forward, policy and critic
        # forward, recomputed forward, backward
        "update": 2 * 8 * model.parameters * trained / useful,
        "communication": exchanged(model, ranks, machine, load),
        "episodes": load.episodes * machine.pack
        + everyone * (load.episode_bytes / machine.host_link + machine.unpack),
    }


def exchanged(model: Model, ranks: int, machine: Machine, load: Load) -> float:
    """Seconds of weights and gradients on the wire, as if nothing overlapped with computing."""
    shards = min(ranks, machine.per_node)
    part = (shards - 1) / shards / machine.inside
    # score; forward and backward: two models
    gathers = 2 * model.parameters * (2 + 2 * 2 * load.mini_batches)
    reduced = 2 * load.mini_batches * 4 * model.parameters
    sampler = 4 * model.parameters
    nodes = ranks / shards
    across = 2 * (nodes - 1) / nodes * reduced / shards / machine.between
    return (gathers + reduced + sampler) * part + across


def table() -> list[str]:
    """Rows of Markdown."""
    rows = [f"| model | GPUs | episodes per step | {' | '.join(PHASES)} | step | efficiency |"]
    rows.append("|" + "---|" * (len(PHASES) + 5))
    for model in MODELS:
        first = sum(step(model, RANKS[0], Machine(), Load()).values())
        for ranks in RANKS:
            phases = step(model, ranks, Machine(), Load())
            total = sum(phases.values())
            cells = [f"{phases[name]:.1f} s" for name in PHASES]
            rows.append(
                f"| {model.name} | {ranks:,} | {Load().episodes * ranks:,} | {' | '.join(cells)} | {total:.1f} s | "
                f"{first / total:.0%} |"
            )
    return rows


if __name__ == "__main__":
    print("\n".join(table()))
