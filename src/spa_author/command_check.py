"""`spa env check`: run the conformance suite on an environment."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

import yaml

from spa.commands.arguments import ENVIRONMENTS, positive_number
from spa.errors import ConfigError
from spa.run.console import write_out

if TYPE_CHECKING:
    from spa.envs.base import TextEnv
    from spa_author.checker import Finding


def check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env check`."""
    parser.add_argument(
        "env",
        metavar="ENV",
        help="environment to check: a tag, a registered type, or the import path of your class, such as "
        "my_pkg.env:MyEnv",
    )
    parser.add_argument(
        "options",
        nargs="*",
        metavar="key=value",
        help="options that are passed to the environment class",
    )
    parser.add_argument(
        "--config",
        default="base",
        metavar="CONFIG",
        help=ENVIRONMENTS,
    )
    parser.add_argument(
        "--steps",
        type=positive_number,
        default=200,
        metavar="N",
        help="largest number of actions in each episode of the check (default: 200)",
    )


def check(options: argparse.Namespace) -> int:
    """Check an environment, print the findings, and return 0 if all checks passed, 1 otherwise.

    Raises ConfigError if an option cannot be read or the environment does not exist.
    """
    from spa.envs.limits import boundary
    from spa.envs.registry import make_env
    from spa_author.checker import all_checks, run_checks

    env_type, config = _resolve(options.env, options.config)
    config |= _overrides(options.options)

    def make() -> "TextEnv":
        return make_env(env_type, config)

    # If the class cannot be instantiated, one error is raised here, before the checks begin.
    with boundary("making it"):
        make()
    passed = [
        _print_finding(finding) for finding in run_checks(all_checks(make, steps=options.steps))
    ]
    # Errors of the rollout loop are harder to read than those of a single check, so a whole episode
    # is played only if all checks passed.
    if all(passed):
        last = {"a complete episode can be played and stored": lambda: _play(env_type, config)}
        passed += [_print_finding(finding) for finding in run_checks(last)]
    failed = passed.count(False)
    write_out(
        f"{options.env}: {f'{failed} of {len(passed)} checks failed' if failed else 'all checks passed'}\n"
    )
    return 1 if failed else 0


def _print_finding(finding: "Finding") -> bool:
    """Print a finding and flush the output. Returns whether its check passed."""
    note = f" ({finding.message})" if finding.ok and finding.message else ""
    write_out(f"{'ok  ' if finding.ok else 'FAIL'} {finding.check}{note}\n")
    if not finding.ok:
        write_out(f"     what: {finding.message}\n     why:  {finding.advice}\n")
    # Flushed line by line, since a slow check would otherwise look like a hang.
    sys.stdout.flush()
    return finding.ok


def _resolve(name: str, config: str) -> tuple[str, dict[str, Any]]:
    """Return the environment type and options of a tag. A name that is not a tag is treated as a
    type without options."""
    from spa.config.load import load_config

    spec = load_config(config).custom_envs.get(name)
    return (name, {}) if spec is None else (spec.env_type, dict(spec.env_config or {}))


def _overrides(texts: list[str]) -> dict[str, Any]:
    """Parse `key=value` texts with YAML values."""
    out = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"cannot read the option {text!r}; write the option as key=value")
        try:
            out[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"cannot read the value of {key!r} as YAML; correct the value: {' '.join(str(error).split())}"
            ) from error
    return out


def _play(env_type: str, config: dict[str, Any]) -> None:
    """Play random episodes through the real turn loop in both prompt modes. Raises Flaw if an
    episode fails, or if storing it as JSON changes it."""
    import json

    from spa.envs.pool import group_specs
    from spa.envs.registry import make_env
    from spa.policies.scripted import random_engine
    from spa.prompts.render import Prompter
    from spa.rollout.loop import collect
    from spa.types import Episode, SamplingParams
    from spa_author.checker import Flaw

    # Two puzzles with two episodes each, like the groups of a training step.
    specs = group_specs("check", base_seed=0, step=0, tags=["t"], n_groups=[2], group_size=2)
    for mode in ("base", "add_worldmodel"):
        episodes = collect(
            specs,
            make_env=lambda _: make_env(env_type, config),
            prompters={"t": Prompter(mode=mode)},
            template=None,
            engine=random_engine(max_actions=2),
            sampling=SamplingParams(max_tokens=400),
            format_penalty=-0.1,
            max_model_len=4096,
        )
        for episode in episodes:
            if episode.error:
                raise Flaw(
                    episode.error, "an environment must not raise an exception during an episode"
                )
            # Trajectory files are JSON Lines. An episode that a JSON round trip changes could not
            # be replayed from its file.
            if Episode.from_json(json.loads(json.dumps(episode.to_json()))) != episode:
                raise Flaw(
                    f"episode {episode.episode_id} changes when the episode is stored as JSON and read back",
                    "the info dictionary must contain only plain JSON values",
                )
