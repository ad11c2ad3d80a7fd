"""Code and servers of others: environments, chat templates, API servers."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from invariant import (
    RUN,
    STAGE_WORDS,
    TESTS,
    Siege,
    declare,
    differences,
    ended,
    launch,
    lost_episodes,
    trained,
    unlike,
    wrong_ending,
)

IN_PROCESS = (
    "raise", "exit", "base", "memory", "huge", "bytes", "nan", "overflow", "words", "none", "four", "info", "reset", "hang",
)  # fmt: skip
HARMLESS = {"objects": "plain"}
"""Faults that lose nothing, and what an environment without the fault says instead."""
IN_WORKERS = ("die", "die_in_reset", "spin", "objects")


def ppo_words(siege: Siege, fault: str, workers: bool) -> list[str]:
    """PPO alone, on an environment that goes wrong in this way."""
    env = f"{{env_type: 'faulty_env:Faulty', max_actions_per_traj: 9, env_config: {{fault: '{fault}'}}}}"
    more = (
        ["es_manager.env_workers=2", "es_manager.env_timeout_s=2"]
        if workers
        else ["es_manager.env_timeout_s=1"]
    )
    tags = [
        f"es_manager.{split}.env_configs={{tags: [Siege], n_groups: null}}"
        for split in ("train", "val")
    ]
    return [
        "run", "base", "--stages", "ppo", *STAGE_WORDS, f"+custom_envs.Siege={env}", *tags, *more, f"model_path={siege.model}",
        f"trainer.run_dir={RUN}",
    ]  # fmt: skip


def environments(siege: Siege, faults: Sequence[str]) -> None:
    """Each fault, in this process or in one of its own, against a run that is told which episodes it loses."""
    for fault in faults:
        there = siege.folder / "environments" / fault
        status, text = ended(launch(there, ppo_words(siege, fault, fault in IN_WORKERS)))
        problem, lost = wrong_ending(status, text), []
        if not problem and status == 0:
            lost = lost_episodes(there)
            problem = unlike_declared(
                there, lost, ppo_words(siege, HARMLESS.get(fault, ""), fault in IN_WORKERS), text
            )
        siege.judge(
            "environments", fault, f"ended, {len(lost)} lost" if status == 0 else "refused", problem
        )


def unlike_declared(there: Path, lost: list[dict[str, str]], words: list[str], said: str) -> str:
    """What a run that lost episodes has different from one without faults in which these are declared lost, or what its
    last message does not say."""
    declared = there / "declared"
    declare(declared, lost)
    status, text = ended(launch(declared, words))
    if status != 0:
        return f"the run with {len(lost)} episodes declared lost ended with status {status}: {text[-300:]}"
    wrong, _ = unlike(there, declared, differences(trained(there), trained(declared)))
    if wrong:
        return f"{len(lost)} lost, differs from the run with these declared: {wrong[:4]}"
    counted = re.search(r"(\d+) of [\d,]+ episodes failed", said)
    if lost and (counted is None or int(counted[1]) != len(lost)):
        return f"the last message does not count {len(lost)} lost episodes"
    return ""


GOOD = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template that the siege's model has."""

TEMPLATES = {
    "good": GOOD,
    "raises": "{{ raise_exception('no') }}",
    "does not parse": "{% for message in",
    "raises after a while": "{% if messages | length > 3 %}{{ raise_exception('too long') }}{% endif %}"
    + GOOD,
    "raises at some puzzles": "{% if 'is at (2,' in messages[-1]['content'] %}{{ raise_exception('no') }}{% endif %}"
    + GOOD,
    "raises at every puzzle": "{% if 'is at (' in messages[-1]['content'] %}{{ raise_exception('no') }}{% endif %}"
    + GOOD,
    "drops messages": GOOD.replace("in messages", "in messages[-1:]"),
    "turns messages around": GOOD.replace("in messages", "in messages | reverse"),
    "writes nothing": "",
    "reaches for Python": "{{ ''.__class__.__mro__[1].__subclasses__() }}" + GOOD,
    "reaches for globals": "{{ raise_exception.__globals__['os'].environ }}" + GOOD,
    "includes a file": "{% include '/etc/passwd' %}" + GOOD,
    "is a megabyte": GOOD + "{# " + "x" * 2**20 + " #}",
    "writes control characters": "\x00\x1b[2J\ud7ff" + GOOD,
}


OTHER_TEXTS = ("writes control characters",)
"""These write something else than the good one, and always the same."""


def template_words(siege: Siege, template: str) -> list[str]:
    """PPO alone, with a chat template of its own."""
    return [
        "run", "base", "--stages", "ppo", *STAGE_WORDS, f"model_path={siege.model}", f"trainer.run_dir={RUN}",
        f"actor_rollout_ref.model.chat_template={template}",
    ]  # fmt: skip


def templates(siege: Siege, names: Sequence[str]) -> None:
    """Chat templates that misbehave: refused, or a run as with the good one in which the same episodes are lost."""
    for name in names:
        there = siege.folder / "templates" / name.replace(" ", "-")
        there.mkdir(parents=True)
        (there / "template.jinja").write_text(TEMPLATES[name])
        status, said = ended(launch(there, template_words(siege, "template.jinja")))
        problem, lost = wrong_ending(status, said), []
        if not problem and status == 0:
            lost = lost_episodes(there)
            if name not in OTHER_TEXTS:
                (there / "template.jinja").write_text(GOOD)
            problem = unlike_declared(there, lost, template_words(siege, "../template.jinja"), said)
        siege.judge(
            "templates", name, f"ended, {len(lost)} lost" if status == 0 else "refused", problem
        )


def servers(siege: Siege) -> None:
    """API servers that misbehave, on a loopback server: the tests of the engines."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", str(TESTS / "engines" / "test_api.py"),
               str(TESTS / "engines" / "test_api_evaluation.py")]  # fmt: skip
    found = subprocess.run(
        command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=900
    )
    for line in found.stdout.splitlines():
        if line.startswith(("PASSED", "FAILED", "ERROR")):
            siege.judge("servers", line, "held", "" if line.startswith("PASSED") else line)
