"""What every bridge's tests ask of its tasks."""

import random

from spa.envs.registry import make_env
from spa_author.checker import check


def failures(env_type, options=None, steps=30):
    """What `spa env check` finds, without the checks that pass; also that global randomness is left alone."""
    random.seed(3)
    before = random.getstate()
    found = check(lambda: make_env(env_type, options), seeds=3, steps=steps)
    untouched = random.getstate() == before
    return [(finding.check, finding.message) for finding in found if not finding.ok] + [
        ("global randomness", "was changed")
    ] * (not untouched)
