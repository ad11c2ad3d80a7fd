"""Configurations that a person, a script or nobody might write."""

from collections.abc import Sequence

import numpy as np
from invariant import Siege, within


def mutated(
    rng: np.random.Generator, keys: Sequence[str], values: Sequence[str]
) -> tuple[str, list[str]]:
    """A YAML file and overrides that a person, a script or nobody might write."""

    def value(depth: int) -> str:
        kind = int(rng.integers(0, 8 if depth < 6 else 5))
        if kind < 4:
            return str(rng.choice(values))
        if kind == 4:
            return "${" + str(rng.choice(keys)) + "}"
        if kind == 5:
            return "[" + ", ".join(value(depth + 1) for _ in range(rng.integers(0, 4))) + "]"
        if kind == 6:
            return (
                "{"
                + ", ".join(f"k{n}: {value(depth + 1)}" for n in range(rng.integers(0, 3)))
                + "}"
            )
        return (
            f"&a{rng.integers(0, 3)} {value(depth + 1)}"
            if rng.random() < 0.5
            else f"*a{rng.integers(0, 3)}"
        )

    lines, overrides = [], []
    for _ in range(rng.integers(0, 4)):
        parts, indent = str(rng.choice(keys)).split("."), 0
        for part in parts[:-1]:
            lines.append(" " * indent + part + ":")
            indent += 2
        lines.append(" " * indent + f"{parts[-1]}: {value(0)}")
    for _ in range(rng.integers(0, 3)):
        sign = rng.choice(["", "", "+", "++", "~"])
        overrides.append(f"{sign}{rng.choice(keys)}={value(0)}")
    text = "\n".join(lines)
    if rng.random() < 0.1 and text:  # torn, or with a byte that does not belong there
        cut = int(rng.integers(0, len(text)))
        text = text[:cut] + str(
            rng.choice(["\x00", "\t", "\ud800".encode("utf-8", "replace").decode(), "'", ""])
        )
    return text, overrides


def config(siege: Siege, cases: int) -> None:
    """Configurations by a grammar: each loads, or is refused in one message."""
    from spa.config.load import load_config
    from spa.config.schema import schema_keys
    from spa.errors import SpaError

    rng = siege.rng("config")
    keys = [path.replace("*", "FrozenLakeNoSlip") for path, _, _ in schema_keys()]
    keys += ["defaults", "nobody.knows", "trainer", "es_manager.train", "custom_envs", "a.b.c.d.e"]
    values = ["0", "-1", "1", "3", "1e308", "9223372036854775807", "1e-400", ".nan", ".inf", "null", "true", "''", "auto",
              "'${oc.env:HOME}'", "'\\0'", "é", "FrozenLake", "[1,2]", "../..", "/dev/full", "-5", "0x10", "1_000", "2020-01-01",
              "!!python/none x", "'${'", "'}'", "\"a b\""]  # fmt: skip
    place = siege.folder / "mine.yaml"
    for number in range(cases):
        text, overrides = mutated(rng, keys, values)
        place.write_text(text)
        name, outcome, problem = f"case {number} (seed {siege.seed})", "loaded", ""
        try:
            with within(20):
                load_config(place if rng.random() < 0.7 else "base", overrides)
        except SpaError as error:
            outcome = "refused in one message"
            problem = (
                "" if 0 < len(str(error)) < 6000 else f"a message of {len(str(error))} characters"
            )
        except BaseException as error:  # noqa: BLE001 - that there is no other is what is tested
            problem = f"{type(error).__name__}: {str(error)[:200]} from {text!r} {overrides!r}"
        siege.judge("config", name, outcome, problem)
