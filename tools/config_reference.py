"""Reference pages that only the site has, made from the source: `python tools/config_reference.py FOLDER`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from cli_reference import reference
from metric_reference import metrics_page

from spa.config.fields import Key, flatten
from spa.config.load import PARTS, config_names, load_config, shipped
from spa.config.schema import Config, field_types, schema_keys, to_plain, type_name
from spa.config.stages import STAGES, stages_of
from spa.tables import Table
from spa_original import compat

CHAIN = ("ppo_trainer", "sft_trainer", "base", "train_ppo_sfted.sh", "finetune_ft.sh")
"""Files of the original in the order in which they override each other."""


def main(args: Sequence[str]) -> int:
    """Write the pages into the folder `args[0]`."""
    for name, make in PAGES.items():
        (Path(args[0]) / name).write_text(make(), encoding="utf-8")
    return 0


def configuration_page() -> str:
    """Every key with its type, default and meaning."""
    names = ", ".join(f"`{name}`" for name in config_names() if name not in PARTS)
    parts = [
        "# Configuration",
        f"Shipped configurations: {names}.",
        "A command takes one of these names, your own YAML file, or a folder with one, and then overrides:\n\n"
        "```\n"
        "spa config show _3_frozen_lake agent_proxy.max_turn=3\n"
        "spa config show my_run.yaml 'es_manager.train.env_configs.tags=[FrozenLake,Sudoku]' ~custom_envs.Bandit\n"
        "```",
        "An override replaces the value of your file, which replaces that of the shipped files, which replaces the "
        "default below. Your file may name shipped files. Keys that it leaves out have the values of `base`:\n\n"
        "```yaml\ndefaults: [_3_frozen_lake]\nmodel_path: builtin:tiny\nagent_proxy: {max_turn: 3}\n```",
        "`key=value` sets a key, and so does `+key=value`. `~key` resets it to the value of `base`, or removes an "
        "environment tag. A list replaces the whole list. A mapping is merged with the mapping that is there; to "
        "replace it, remove it first: `~generate.mixture generate.mixture={expert: 1}`. A text with `=`, `,` or "
        "brackets needs quotes: `key='a=b'`. `spa` reports all problems of a configuration at once, with the nearest "
        "valid keys.",
        "A default in `${...}` is the value of that key.",
        "*Affects* names what a changed key changes. **selfplay, sft, ppo, eval**: the result of these stages, so "
        "`spa` refuses to reuse them. *content* means that the content of the file, model or checkpoint counts, and "
        "not its path. **numerics**: memory and speed, and at most the last digits; `spa` reuses finished stages with "
        "a warning. **paths**: paths, saved files, the gate and the launcher. **logging**: what is measured, logged "
        "and shown. A change of an environment or API model affects the runs that use it. "
        "`trainer.total_training_steps` affects the result only where a learning rate depends on it.",
    ]
    # The shipped tree comes second: it shows `${other.key}` where a default is another key.
    defaults = flatten(to_plain(load_config("base"))) | flatten(shipped("base"))
    sections = [
        (name, kind) for name, kind, _ in schema_keys() if "." not in name and is_dataclass(kind)
    ]
    top = [name for name in field_types(Config) if name not in dict(sections)]
    parts += [
        "## Top level",
        _key_table([name for name in top if name not in ("custom_envs", "model_info")], defaults),
    ]
    for name, kind in sections:
        keys = [key for key, _, about in schema_keys() if key.startswith(f"{name}.") and about]
        parts += [f"## {name}", first_paragraph(kind), _key_table(keys, defaults)]
    for name in ("custom_envs", "model_info"):
        keys = [key for key, _, about in schema_keys() if key.startswith(f"{name}.") and about]
        parts += [
            f"## {name}",
            "`*` is a name of your own.",
            _key_table(keys, _entry_defaults(name)),
        ]
    return "\n\n".join(parts) + "\n"


def first_paragraph(kind: object) -> str:
    """The first paragraph of the docstring of a class, in one line."""
    return " ".join(str(kind.__doc__).split("\n\n")[0].split())


def original_page() -> str:
    """Changed defaults, scripts, environment variables, presets and keys of the original."""
    keys = compat.original_keys()
    parts = [
        "# Keys and scripts of the original",
        "[Parity](parity.md) lists the differences between the two programs.",
        "## Changed defaults",
        Table(
            ("key", "original", "here", "why"),
            [(f"`{key}`", *rest) for key, *rest in changed_defaults()],
        ).markdown(),
        "## Scripts",
        Table(
            ("original", "status", "here"),
            [(f"`{i.name}`", i.status, i.note) for i in compat.SCRIPTS],
        ).markdown(),
        "## Environment variables",
        Table(
            ("original", "status", "here"),
            [(f"`{i.name}`", i.status, i.note) for i in compat.ENVIRONMENT],
        ).markdown(),
        "## Configuration files",
        Table(
            ("original", "status", "note"),
            [(f"`{i.name}`", i.status, i.note) for i in compat.PRESETS],
        ).markdown(),
        "## Configuration keys",
        "Keys of `sft_trainer` are under `sft` here. Supported: same name, same meaning.",
    ]
    for status, title in (
        ("mapped", "Mapped"),
        ("refused", "Refused"),
        ("ignored", "Accepted without effect"),
    ):
        chosen = [(key, item) for key, item in keys.items() if item.status == status]
        rows = [
            (f"`{key}`", f"`{item.to}`: {item.note}" if item.to else item.note)
            for key, item in chosen
        ]
        parts += [
            f"### {title}",
            Table(("key", "becomes" if status == "mapped" else "why"), rows).markdown(),
        ]
    supported = [key for key, item in keys.items() if item.status == "supported"]
    envs = [key for key in supported if key.startswith("custom_envs.")]
    sections: dict[str, list[str]] = {}
    for key in supported:
        section, _, rest = key.partition(".")
        if key not in envs:
            sections.setdefault(section, []).append(f"`{rest or key}`")
    rows = [(f"`{section}`", ", ".join(listed)) for section, listed in sections.items()]
    parts += [
        "### Supported",
        Table(("section", "keys"), [*rows, ("`custom_envs`", f"all {len(envs)} keys")]).markdown(),
    ]
    return "\n\n".join(parts) + "\n"


def changed_defaults() -> list[tuple[str, str, str, str]]:
    """Key, the original's effective value, ours, and the reason, for every supported key of `base`
    that differs."""
    ours = flatten(to_plain(load_config("base")))
    rows = []
    for key, item in compat.original_keys().items():
        values = [item.files[name] for name in CHAIN if name in item.files]
        if (
            item.status != "supported"
            or not values
            or key.startswith("custom_envs.")
            or key not in ours
        ):
            continue
        # The last file that sets a key is what the original ran with.
        if _is_given_elsewhere(values[-1]) or _number(values[-1]) == ours[key]:
            continue
        rows.append((key, f"`{_yaml(values[-1])}`", f"`{_yaml(ours[key])}`", item.note))
    return rows


def _key_table(keys: Sequence[str], defaults: dict[str, Any]) -> str:
    about = {key: (kind, note) for key, kind, note in schema_keys() if note}
    rows = []
    for key in keys:
        kind, note = about[key]
        default = f"`{_yaml(defaults[key])}`" if key in defaults else "required"
        rows.append(
            (f"`{key}`", type_name(kind) + note.range(), default, _affects(key, note), note.help)
        )
    return Table(("key", "type", "default", "affects", "meaning"), rows).markdown()


def _affects(name: str, key: Key) -> str:
    if key.affects != "semantics":
        return key.affects
    stages = stages_of(name)
    listed = "all" if stages == STAGES else ", ".join(stages)
    return listed if key.content == "value" else f"{listed} (content)"


def _entry_defaults(section: str) -> dict[str, Any]:
    entry = get_args(next(kind for name, kind, _ in schema_keys() if name == section))[1]
    defaults = {
        item.name: {} if item.default_factory is dict else item.default for item in fields(entry)
    }
    return {
        f"{section}.*.{name}": value for name, value in defaults.items() if value is not MISSING
    }


def _is_given_elsewhere(value: Any) -> bool:
    """Paths are blanked in the table, and an interpolation is another key's value."""
    return isinstance(value, str) and (value.startswith("<") or "${" in value)


def _number(value: Any) -> Any:
    try:
        # YAML 1.1 reads `1e-6`, which has no point, as a text.
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _yaml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": reference,
    "configuration.md": configuration_page,
    "metrics.md": metrics_page,
    "original-keys.md": original_page,
}
"""Pages that the site has in addition to those of docs/."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
