"""Specifications of the episodes to play: their tags, groups, members and seeds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from spa.seeds import stream_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """One episode to play. Members of a group share the puzzle, but not the noise.

    Example: EpisodeSpec(episode_id="train/3/17/0", tag="FrozenLake", group=17, member=0,
    puzzle_seed=10113, noise_seed=4, sample_seed=9)
    """

    episode_id: str
    tag: str
    group: int
    member: int
    puzzle_seed: int
    noise_seed: int
    sample_seed: int  # seeds the engine's sampling
    validation: bool = False
    seat: int = 0  # the player of this episode in a game of several players
    # Id shared by the episodes that play one game together. Empty if no other episode plays in the
    # same game.
    table: str = ""

    def reset_options(self) -> dict[str, Any]:
        """Return the options of `reset`, apart from the puzzle seed. `validation` is for
        environments whose data has its own splits."""
        return {"noise_seed": self.noise_seed, "validation": self.validation}


def group_specs(
    purpose: str,
    *,
    base_seed: int,
    step: int,
    tags: Sequence[str],
    n_groups: Sequence[int],
    group_size: int,
    self_play: Collection[str] = (),
) -> list[EpisodeSpec]:
    """List the episodes of one step, ordered by tag, group and member.

    Groups of a tag in `self_play` come in pairs, one group for each of the two players. Member m of
    one group plays against member m of the other, with the first group's puzzle and noise. All
    members of a group play as the same player, so that they are comparable. For other tags, groups
    alternate between player 0 and player 1, which has no effect in single-player games.

    The puzzle of group g at step s has the seed `base_seed + s * groups + g`, as in the original.
    Both groups of a pair use the g of the first. So no two steps share a puzzle seed, and a resumed
    run plays the same puzzles as an uninterrupted one. Every member has its own sampling seed. It
    shares its noise seed only with its opponent in a pair.
    """
    groups = sum(n_groups)
    tag_of = [tag for tag, count in zip(tags, n_groups, strict=True) for _ in range(count)]
    # For each group, its index among the groups of the same tag.
    within = [number for count in n_groups for number in range(count)]
    specs = []
    for group in range(groups):
        paired = tag_of[group] in self_play
        seat = within[group] % 2
        # Both groups of a pair play the puzzle and the noise of the pair's first group.
        first = group - seat if paired else group
        for member in range(group_size):
            specs.append(
                EpisodeSpec(
                    episode_id=f"{purpose}/{step}/{group}/{member}",
                    tag=tag_of[group],
                    group=group,
                    member=member,
                    puzzle_seed=base_seed + step * groups + first,
                    noise_seed=stream_seed(base_seed, f"{purpose}/noise", step, first, member),
                    # This seed uses `group`, not `first`, so that the two players of a game sample
                    # differently.
                    sample_seed=stream_seed(base_seed, f"{purpose}/sample", step, group, member),
                    validation=purpose == "val",
                    seat=seat,
                    table=f"{purpose}/{step}/{first}/{member}" if paired else "",
                )
            )
    return specs
