"""Measure a small instruct model with each wording of a prompt: format, states and success.

    python benchmarks/prompts.py FOLDER [--model smollm2] [--original ENVS_YAML] [--groups 32]

`--original`: `config/envs.yaml` of a checkout of the original, whose instructions are then rows of their own. What was
measured lies in FOLDER, one file per row, and is not measured again; the table is printed as Markdown.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

TAGS = ("FrozenLakeNoSlip", "SimpleSokoban")
# whose instructions the rows take
ORIGINAL = {"FrozenLakeNoSlip": "FrozenLake", "SimpleSokoban": "SimpleSokoban"}
COMMON: dict[str, Any] = {
    "defaults": ["base", "_self_"],
    "trainer": {"threads": 1},
    "seed": {"val": 910000},
    "agent_proxy": {"max_turn": 2},
    "actor_rollout_ref": {
        "rollout": {
            "response_length": 256,
            "max_model_len": 2048,
            "val_kwargs": {"temperature": 1.0},
        }
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"ctx_manager": {"mode": "base"}},
    "world model, with a sample reply": {},
    "world model, without": {"ctx_manager": {"example": False}},
    "world model, placeholders in words": {"ctx_manager": {"placeholders": "words"}},
    "world model, plan first": {"agent_proxy": {"response_format": "plan_first"}},
    "world model, coordinates alone": {"state_text": "coords"},
}


def merged(tree: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """`tree` with the values of `other`, section by section."""
    return tree | {
        key: merged(tree[key], value)
        if isinstance(value, dict) and isinstance(tree.get(key), dict)
        else value
        for key, value in other.items()
    }


def configurations(model: str, original: Path | None) -> dict[tuple[str, str], dict[str, Any]]:
    """The configuration of every row: (tag, variant)."""
    configs: dict[tuple[str, str], dict[str, Any]] = {}
    source = (
        {}
        if original is None
        else yaml.safe_load(original.read_text(encoding="utf-8"))["custom_envs"]
    )
    for tag in TAGS:
        tags = {
            "es_manager": {
                "val": {"env_configs": {"tags": [tag]}},
                "train": {"env_configs": {"tags": [tag]}},
            }
        }
        start = merged(
            COMMON, {"model_path": model, "ctx_manager": {"mode": "add_worldmodel"}, **tags}
        )
        for name, settings in VARIANTS.items():
            configs[tag, name] = merged(start, settings)
        for mode, key in (
            ("base", "env_instruction"),
            ("add_worldmodel", "env_instruction_add_worldmodel"),
        ):
            if source:
                text = source[ORIGINAL[tag]][key]
                asked = {"mode": mode, "placeholders": "words", "example": False}
                name = "original's wording, " + ("base" if mode == "base" else "world model")
                configs[tag, name] = merged(
                    start, {"ctx_manager": asked, "custom_envs": {tag: {key: text}}}
                )
    return configs


def measured(folder: Path, name: str, config: dict[str, Any], groups: int) -> dict[str, Any]:
    """The result of `spa eval` for one row; from `folder` if it is there."""
    output = folder / f"{name}.json"
    if not output.is_file():
        written = folder / f"{name}.yaml"
        written.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-m", "spa", "eval", config["model_path"], "--config", written]
        command += ["--groups", str(groups), "--samples", "1", "--k", "1", "--output", output]
        subprocess.run(command, check=True)
    return json.loads(output.read_text(encoding="utf-8"))


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--original", type=Path)
    parser.add_argument("--groups", type=int, default=32)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        "| game | prompt | format | observation exact | prediction exact | success |",
        "|---|---|---|---|---|---|",
    ]
    for number, ((tag, variant), config) in enumerate(
        configurations(asked.model, asked.original).items()
    ):
        result = measured(asked.folder, f"{number:02d}", config, asked.groups)["tags"][tag]
        rows.append(f"| {tag} | {variant} | {cells(result)} |")
    print("\n".join(rows))


def cells(result: dict[str, Any]) -> str:
    """Format, observation, prediction and success in percent; a dash where nothing could be read."""
    names = ("format_rate", "observation_exact", "prediction_exact", "pass@1")
    values = [result.get(name) for name in names]
    means = [value["mean"] if isinstance(value, dict) else value for value in values]
    return " | ".join("–" if value is None else f"{100 * value:.0f}" for value in means)


if __name__ == "__main__":
    main()
