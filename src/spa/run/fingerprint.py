"""Fingerprints that identify the results of stages. A fingerprint covers the settings of a stage,
the content of its inputs, its revision, and the fingerprint of the stage before. `spa.run.hashing`
computes fingerprints.

Package versions, CPU and thread count are recorded alongside. They change at most the last digits
of results, so a difference in them is never an error.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from spa.config.stages import UNRECORDED, StageName, default_of, without_idle_replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Inputs that determine one stage's result, and the environment in which it was made.

    Attributes:
        settings: dotted key -> plain value, for the keys that the schema marks `semantics`.
        content: name of an input -> SHA-256.
        parent: the complete fingerprint of the previous stage, so that changes of that stage can be
            reported even if its folder is missing.
        numerics: dotted key -> plain value, for keys that change at most the last digits of
            results. Recorded, but not part of `digest`.
        environment: package versions, CPU or GPU, and threads. Recorded, but not part of `digest`.
    """

    stage: StageName
    settings: Mapping[str, Any]
    content: Mapping[str, str]
    parent: "Fingerprint | None" = None
    revision: int = 1
    numerics: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that the result depends on. Settings with their default value are
        left out, so that adding a setting to the schema changes no digest."""
        settings = without_idle_replay(self.settings)
        chosen = {
            key: value
            for key, value in settings.items()
            if _plain(value) != _plain(default_of(key))
        }
        parent = self.parent.digest if self.parent else None
        counted = (self.stage, chosen, dict(self.content), parent, self.revision)
        # Sorted: the digest must not depend on the order of the settings.
        return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The fingerprint as plain values, for records."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Restore a fingerprint from `to_json`. Raises ValueError for any other input."""
        try:
            return cls(
                stage=content["stage"],
                settings=dict(content["settings"]),
                content=dict(content["content"]),
                parent=None if content["parent"] is None else cls.from_json(content["parent"]),
                revision=int(content["revision"]),
                numerics=dict(content["numerics"]),
                environment=dict(content["environment"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no fingerprint: {error}") from error


def differences(old: Fingerprint, new: Fingerprint) -> dict[str, tuple[Any, Any]]:
    """Compare two fingerprints, including the stages before them: key -> (old, new).

    A missing key counts as having the schema's default, so that a run can be resumed after the
    schema gained a setting. For keys in `UNRECORDED`, a missing value matches any value.
    """
    before = without_idle_replay(old.settings)
    now = without_idle_replay(new.settings)
    unknown = {key for key in UNRECORDED.get(new.stage, ()) if key not in before}
    now = {key: value for key, value in now.items() if key not in unknown}
    changed = _changed(before, now, default_of) | _changed(old.content, new.content)
    if old.revision != new.revision:
        changed[f"revision of {new.stage} in this version of spa"] = (old.revision, new.revision)
    if old.parent and new.parent:
        # The differences of the earlier stage come first: they usually cause the others.
        return differences(old.parent, new.parent) | changed
    if old.parent or new.parent:
        changed["the previous stage"] = (
            old.parent and old.parent.digest,
            new.parent and new.parent.digest,
        )
    return changed


def numerical_differences(old: Fingerprint, new: Fingerprint) -> dict[str, tuple[Any, Any]]:
    """Compare the entries that change at most the last digits of results: settings for memory and
    speed, package versions, CPU or GPU, and threads."""
    return _changed(old.numerics, new.numerics, default_of) | _changed(
        old.environment, new.environment
    )


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any], default: Callable[[str], Any] = lambda key: None
) -> dict[str, tuple[Any, Any]]:
    pairs = {
        key: tuple(side[key] if key in side else default(key) for side in (old, new))
        for key in sorted({*old, *new})
    }
    return {key: (a, b) for key, (a, b) in pairs.items() if _plain(a) != _plain(b)}


def _plain(value: Any) -> Any:
    """Convert tuples to lists, and an empty mapping to None."""
    return json.loads(json.dumps(value, default=str)) or (
        None if isinstance(value, Mapping) else value
    )
