"""Small images of grid games for vision models and the documentation, defined here pixel by
pixel."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

TILE = 16
"""Width and height of a cell in pixels. Sprites have 8 x 8 pixels and are scaled by 2."""

_COLOURS = {
    "k": (38, 38, 46),  # ink
    "w": (245, 245, 240),
    "b": (150, 74, 58),  # brick
    "m": (110, 54, 44),  # mortar
    "f": (222, 211, 184),  # floor
    "g": (206, 194, 165),  # floor grain
    "c": (196, 142, 74),  # crate
    "d": (139, 94, 43),  # crate edge
    "r": (214, 64, 69),  # target and flag
    "e": (84, 160, 80),  # crate in place
    "h": (48, 104, 48),  # edge of a crate in place
    "s": (240, 198, 160),  # skin
    "u": (52, 101, 176),  # coat
    "i": (206, 230, 244),  # ice
    "j": (178, 211, 234),  # ice grain
    "o": (32, 68, 108),  # water
    "p": (58, 104, 150),  # shore
}
_SPRITES = {
    "wall": "bbbmbbbb bbbmbbbb mmmmmmmm bmbbbbbm bmbbbbbm mmmmmmmm bbbmbbbb mmmmmmmm",
    "floor": "ffffffff ffffffgf ffffffff fgffffff ffffffff ffffffff ffffgfff ffffffff",
    "ice": "iiiiiiij iiiijiij iiijiiij iiiiiiij ijiiiiij jiiiiiij iiiiiiij jjjjjjjj",
    "hole": "........ ..pppp.. .poooop. poooooop poooooop .poooop. ..pppp.. ........",
    "flag": "...k.... ...krr.. ...krrrr ...krr.. ...k.... ...k.... ...k.... ..kkk...",
    "target": "........ ..rrrr.. .r....r. .r.rr.r. .r.rr.r. .r....r. ..rrrr.. ........",
    "box": "dddddddd dcccccdd dcdccdcd dccddccd dccddccd dcdccdcd ddcccccd dddddddd",
    "box in place": "hhhhhhhh heeeeehh heheeheh heehheeh heehheeh heheeheh hheeeeeh hhhhhhhh",
    "player": "..kkkk.. ..ksskk. ..ssss.. ..uuuu.. .uuuuuu. .suuuus. ..kkkk.. ..k..k..",
    "swimmer": "........ ........ ..kkkk.. ..ksskk. ..ssss.. pooooop. .pppppp. ........",
}


@lru_cache
def tile(*layers: str) -> np.ndarray:
    """Stack the named sprites, first one at the bottom, into an image of one cell.

    Returns a read-only uint8 array [TILE, TILE, 3]. Dots in a sprite are transparent.
    """
    image = np.zeros((8, 8, 3), dtype=np.uint8)
    for name in layers:
        for row, line in enumerate(_SPRITES[name].split()):
            for col, letter in enumerate(line):
                if letter != ".":
                    image[row, col] = _COLOURS[letter]
    scaled = image.repeat(TILE // 8, axis=0).repeat(TILE // 8, axis=1)
    # Tiles are cached and shared by all images, so nothing may write to them.
    scaled.flags.writeable = False
    return scaled


def picture(rows: Sequence[Sequence[tuple[str, ...]]]) -> np.ndarray:
    """Render a board as uint8 [rows * TILE, cols * TILE, 3]. Each cell is a tuple of sprite names,
    from bottom to top."""
    return np.concatenate(
        [np.concatenate([tile(*cell) for cell in row], axis=1) for row in rows], axis=0
    )
