"""Shortest solutions of the 2x2 cube by bidirectional search.

A cube counts as solved in any orientation. So turning the lower layer is equivalent to turning the
upper layer in the opposite direction, as seen from above. Hence some shortest solution never moves
the corner between down, back and left. That leaves turns of three faces, a single solved cube as
the goal, and 3,674,160 positions, all at most 14 quarter turns away.
"""

from spa_games.cube import FACES, turn

TURNS = ("U", "U'", "F", "F'", "R", "R'")
INVERSE = {name: name[0] if name.endswith("'") else name + "'" for name in TURNS}
_OPPOSITE = {"W": "Y", "Y": "W", "G": "B", "B": "G", "R": "O", "O": "R"}
# Indices of the stickers of the fixed corner: lower left on the down face, lower right on the back
# face, lower left on the left face.
_FIXED = {"D": 22, "B": 19, "L": 6}
_FACING = {"D": "U", "B": "F", "L": "R"}


def goal_of(cube: str) -> str:
    """Return the solved cube that has the same down-back-left corner as `cube`."""
    colour = {face: cube[index] for face, index in _FIXED.items()}
    colour |= {_FACING[face]: _OPPOSITE[letter] for face, letter in colour.items()}
    return "".join(colour[face] * 4 for face in FACES)


def solve(cube: str) -> tuple[str, ...]:
    """Find a shortest sequence of quarter turns that solves `cube`, the 24 stickers of a solvable
    cube."""
    return _search(cube, 14) or ()


def distance(cube: str, *, limit: int = 14) -> int | None:
    """The fewest quarter turns that solve `cube`, or None if it needs more than `limit`."""
    path = _search(cube, limit)
    return None if path is None else len(path)


def _search(cube: str, limit: int) -> tuple[str, ...] | None:
    """Search breadth-first from both ends, one whole level at a time, so that the first meeting
    gives a shortest solution. Return None if there is no solution of at most `limit` turns."""
    # Maps a position to the turns from `cube` to it.
    ahead: dict[str, tuple[str, ...]] = {cube: ()}
    # Maps a position to the turns from it to the goal.
    behind: dict[str, tuple[str, ...]] = {goal_of(cube): ()}
    edge_ahead = list(ahead)
    edge_behind = list(behind)
    if cube in behind:
        return ()
    for level in range(limit):
        # Levels alternate between the two ends, so n levels find every solution of n turns.
        forward = level % 2 == 0
        seen, other = (ahead, behind) if forward else (behind, ahead)
        fresh = []
        for position in edge_ahead if forward else edge_behind:
            for name in TURNS:
                reached = turn(position, name)
                if reached not in seen:
                    # The search from the goal runs backwards, so the turn must be inverted.
                    seen[reached] = (
                        (*seen[position], name) if forward else (INVERSE[name], *seen[position])
                    )
                    fresh.append(reached)
        meeting = next((position for position in fresh if position in other), None)
        if meeting is not None:
            return ahead[meeting] + behind[meeting]
        if forward:
            edge_ahead = fresh
        else:
            edge_behind = fresh
    return None
