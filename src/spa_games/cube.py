"""The 2x2 Rubik's cube as a string of 24 stickers, and its twelve quarter turns as permutations."""

from itertools import product

import numpy as np

FACES = "ULFRBD"
# Colours of the solved faces, in the order of FACES: white is up, orange left, green in front.
COLOURS = {"W": "white", "O": "orange", "G": "green", "R": "red", "B": "blue", "Y": "yellow"}
SOLVED = "".join(colour * 4 for colour in COLOURS)

Vector = tuple[int, int, int]


# The x axis points right, y up, z towards the viewer. For each face: its outward normal, and the
# directions in which row and column numbers increase when the cube is unfolded around the front
# face.
_FRAMES: dict[str, tuple[Vector, Vector, Vector]] = {
    "U": ((0, 1, 0), (0, 0, 1), (1, 0, 0)),
    "L": ((-1, 0, 0), (0, -1, 0), (0, 0, 1)),
    "F": ((0, 0, 1), (0, -1, 0), (1, 0, 0)),
    "R": ((1, 0, 0), (0, -1, 0), (0, 0, -1)),
    "B": ((0, 0, -1), (0, -1, 0), (-1, 0, 0)),
    "D": ((0, -1, 0), (0, 0, -1), (1, 0, 0)),
}


def _stickers() -> list[tuple[Vector, Vector]]:
    """The corner and the outward normal of each of the 24 stickers, face by face in the order of
    `FACES`, row by row."""
    out = []
    for face in FACES:
        normal, down, right = _FRAMES[face]
        for row, col in product((-1, 1), (-1, 1)):
            x, y, z = (n + row * d + col * r for n, d, r in zip(normal, down, right, strict=True))
            out.append(((x, y, z), normal))
    return out


def _clockwise(vector: Vector, axis: Vector) -> Vector:
    """Rotate `vector` by a quarter turn, clockwise as seen from the tip of `axis`."""
    # A rotation by -90 degrees: the component along `axis` stays, and the rest is replaced by its
    # cross product with `axis`.
    x, y, z = np.dot(vector, axis) * np.array(axis) + np.cross(vector, axis)
    return (int(x), int(y), int(z))


def _quarter_turns() -> dict[str, tuple[int, ...]]:
    """Map each turn's label to its permutation of the stickers.

    Entry i of a permutation is the index of the sticker that moves to position i. `U` turns the
    upper face clockwise, `U'` counter-clockwise, as seen from outside; likewise for the other
    faces.
    """
    stickers = _stickers()
    place = {sticker: index for index, sticker in enumerate(stickers)}
    turns = {}
    for face in FACES:
        axis = _FRAMES[face][0]
        forward = list(range(24))
        for index, (corner, normal) in enumerate(stickers):
            # Coordinates are 1 or -1, so the product is 1 for corners in the layer of this face.
            if np.dot(corner, axis) == 1:
                forward[place[_clockwise(corner, axis), _clockwise(normal, axis)]] = index
        turns[face] = tuple(forward)
        # The counter-clockwise turn is the inverse permutation.
        turns[face + "'"] = tuple(forward.index(index) for index in range(24))
    return turns


TURNS = _quarter_turns()
ACTIONS = tuple(TURNS)


def turn(cube: str, label: str) -> str:
    """Return the stickers of `cube` after the quarter turn `label`, one of `ACTIONS`."""
    return "".join([cube[index] for index in TURNS[label]])


def is_solved(cube: str) -> bool:
    """Return whether each face has one colour, in any orientation of the cube."""
    return all(cube[start : start + 4] == cube[start] * 4 for start in range(0, 24, 4))
