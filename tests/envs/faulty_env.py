"""An environment that goes wrong as it is told, for tests that need a module that other processes can import."""

import os
import signal
import sys
import time
from typing import Any

from spa.envs.frozen_lake import FrozenLake


class Panic(BaseException):
    """No Exception, like a panic of a library in Rust."""


class Faulty(FrozenLake):
    """FrozenLake without slip that, at puzzle seeds divisible by 3, does `fault` in its second step."""

    def __init__(self, fault: str = "", **options: Any) -> None:
        super().__init__(is_slippery=False, **options)
        self.fault_kind = fault
        self.is_bad, self.calls = False, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.is_bad, self.calls = self.goes_wrong(seed), 0
        if self.is_bad and self.fault_kind == "reset":
            raise RuntimeError("no puzzle today")
        if self.is_bad and self.fault_kind == "die_in_reset":
            os._exit(7)
        return super().reset(seed=seed, options=options)

    def goes_wrong(self, seed: int | None) -> bool:
        """Whether this puzzle is one of the bad ones."""
        return seed is not None and seed % 3 == 0

    def random_plan(self, rng: Any, count: int) -> tuple[str, ...]:
        if self.is_bad and self.fault_kind == "die_in_random_plan":
            os._exit(7)
        return super().random_plan(rng, count)

    def clone(self, noise_seed: int | None = None) -> "Faulty":
        if self.is_bad and self.fault_kind == "clone":
            sys.exit(0)
        return super().clone(noise_seed)

    def step(self, action: Any) -> Any:
        self.calls += 1
        if not (self.is_bad and self.calls == 2):
            return super().step(action)
        if self.fault_kind == "raise":
            raise RuntimeError("the ice broke")
        if self.fault_kind == "exit":
            sys.exit(0)
        if self.fault_kind == "interrupt":
            raise KeyboardInterrupt
        if self.fault_kind == "base":
            raise Panic("no ice left")
        if self.fault_kind == "memory":
            raise MemoryError
        if self.fault_kind == "huge":
            self.state_text = lambda mode: "x" * 21_000_000  # type: ignore[method-assign]
        if self.fault_kind == "bytes":
            self.state_text = lambda mode: b"x"  # type: ignore[method-assign]
        if self.fault_kind == "hang":
            time.sleep(3600)
        if self.fault_kind == "spin":
            while True:
                try:
                    time.sleep(0.01)
                except Exception:  # noqa: BLE001 - as bad code does
                    continue
        if self.fault_kind == "die":
            os._exit(7)
        if self.fault_kind == "kill_group":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        text, reward, terminated, truncated, info = super().step(action)
        return {
            "nan": (text, float("nan"), terminated, truncated, info),
            "overflow": (text, 1e308, terminated, truncated, info),
            "words": (text, "much", terminated, truncated, info),
            "none": None,
            "four": (text, reward, terminated, info),
            "objects": (
                text,
                reward,
                terminated,
                truncated,
                {**info, "of_mine": Panic(), "deep": [{"a": {1, 2}}]},
            ),
            "plain": (
                text,
                reward,
                terminated,
                truncated,
                {**info, "of_mine": "<Panic>", "deep": [{"a": "<set>"}]},
            ),
            "info": (text, reward, terminated, truncated, None),
        }.get(self.fault_kind, (text, reward, terminated, truncated, info))
