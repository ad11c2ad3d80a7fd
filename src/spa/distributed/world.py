"""Ranks of a run: divide work among them, and exchange results.

SPMD: every rank runs the same recipe on the same configuration. Each rank does its share of the
expensive work (rollouts, scoring, gradients) and receives the results of all ranks. Therefore
statistics, filters and decisions are the same on all ranks. In a single process, every collective
returns its input.

Nothing is pickled: results are sent as JSON or tensors. The timeout of the process group limits
every wait.
"""

import gc
import importlib
import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from spa.errors import ConfigError, TrainingError
from spa.run.signals import StopRequested, uninterrupted

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process and the number of ranks, with collectives over all ranks."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """True on rank 0, which writes files and reports to the user."""
        return self.rank == 0

    def parallel_map(
        self,
        items: Sequence[Item],
        work: Callable[[list[Item]], list[Result]],
        *,
        by: Callable[[Item], Any] | None = None,
        pack: Callable[[Result], Any] = lambda result: result,
        unpack: Callable[[Any], Result] = lambda result: result,
    ) -> list[Result]:
        """Apply `work` to all items, divided among the ranks. Returns one result per item, in
        order, on every rank.

        Items for which `by` returns the same key go to the same rank. `pack` converts a result to
        JSON; `unpack` is its inverse.
        """
        if self.size == 1:
            return work(list(items))
        keys = [by(item) if by else index for index, item in enumerate(items)]
        # Number the keys in the order of their first items, which is the same on every rank.
        turn = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        mine = [
            item
            for item, key in zip(items, keys, strict=True)
            if turn[key] % self.size == self.rank
        ]
        packed = self.gather([pack(result) for result in work(mine)])
        # Each rank's results are in the order of its items, so take them from the front.
        streams = [iter(results) for results in packed]
        return [unpack(next(streams[turn[key] % self.size])) for key in keys]

    def deal(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the indices of this rank's rows, int64. Rows are assigned from longest to shortest
        in alternating rank order, so that every rank gets nearly the same number of tokens."""
        if self.size == 1:
            return torch.arange(len(lengths))
        order = torch.argsort(lengths, stable=True, descending=True)
        # Three ranks get rows in the order 0 1 2 2 1 0 0 1 ...: the rank that takes the longest row
        # of one round takes the shortest row of the next.
        place = torch.arange(len(order)) % (2 * self.size)
        return order[torch.minimum(place, 2 * self.size - 1 - place) == self.rank]

    def gather(self, value: Any) -> list[Any]:
        """Gather a JSON value from every rank, in rank order."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with self._together("exchange results"):
            # Exchange lengths first, because `all_gather` needs equal shapes.
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)]))
            most = int(torch.cat(sizes).max())
            parts = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(parts, torch.nn.functional.pad(data, (0, most - len(data))))
        return [
            json.loads(part[: int(n)].numpy().tobytes())
            for part, n in zip(parts, sizes, strict=True)
        ]

    def broadcast(self, find: Callable[[], Result]) -> Result:
        """Call `find` on rank 0 and return its result, a JSON value, on every rank. Ranks that read
        a changing file themselves could get different results."""
        if self.size == 1:
            return find()
        return self.gather(find() if self.is_main else None)[0]

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of `tensor` over all ranks, on every rank."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def all_reduce_sums(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Return the sum of each number over all ranks. The names must be the same on all ranks."""
        values = self.all_reduce_sum(torch.tensor(list(numbers.values()), dtype=torch.float64))
        return dict(zip(numbers, values.tolist(), strict=True))

    def all_reduce_max(self, number: int) -> int:
        """Return the maximum of `number` over all ranks, on every rank."""
        return int(self._reduced(torch.tensor([number]), dist.ReduceOp.MAX))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return bool(self.all_reduce_max(int(flag)))

    def barrier(self) -> None:
        """Wait until all ranks have reached this point."""
        self.all_reduce_max(0)

    def _reduced(self, tensor: torch.Tensor, kind: Any) -> torch.Tensor:
        if self.size == 1:
            return tensor
        whole = tensor.clone()
        with self._together("add up results"):
            dist.all_reduce(whole, kind)
        return whole

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            log.error(
                "stack of rank %d of %d, which lost the other ranks:",
                self.rank,
                self.size,
                stack_info=True,
            )
            raise TrainingError(
                f"rank {self.rank} of {self.size} lost the other ranks while waiting to {what} "
                f"({str(error).splitlines()[0]}). Another rank stopped (see its own message) or is slower "
                "than trainer.rank_timeout_s. Run the same command again to resume from the last complete "
                "checkpoint."
            ) from error


ALONE = World()


def current_world() -> World:
    """Return the world that this process has joined; `ALONE` if it has joined none."""
    return World(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE


@contextmanager
def joined(device: str, timeout_s: float) -> Iterator[World]:
    """Join the other ranks if torchrun has started this process; otherwise yield `ALONE`.

    The backend is gloo on CPUs, and NCCL on GPUs (with gloo for CPU tensors). No rank waits for
    another longer than `timeout_s` seconds. A stop request does not end a single rank: all ranks
    agree on it between two steps.

    Raises ConfigError if `device` names one GPU for all ranks.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    if ":" in device:
        raise ConfigError(
            f"trainer.device={device} puts all ranks on one GPU; set trainer.device to cuda, cpu or auto"
        )
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(dist.get_node_local_rank())  # pyright: ignore[reportPrivateImportUsage]
    # Import this module before the group exists. DDP and FSDP2 would import it later, and the
    # default arguments of its functions would then reference the group.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout_s)
    )
    with uninterrupted():
        try:
            yield current_world()
        except StopRequested as stop:  # raised on all ranks at once
            traceback.clear_frames(stop.__traceback__)  # its frames reference the models
            _leave()
            raise
        # Not called after an error: `_leave` waits for all ranks, and the others may still be
        # running.
        _leave()


def _leave() -> None:
    """Wait for all ranks, then destroy the process group. First release everything that references
    the group (models in reference cycles, meshes in DTensor's caches), so that its threads end now.

    A gloo thread that releases a tensor while the interpreter exits aborts the process: "terminate
    called without an active exception", pytorch/pytorch#179291 and #190489.
    """
    current_world().barrier()
    for mesh in [thing for thing in gc.get_objects() if type(thing) is DeviceMesh]:
        getattr(mesh, "_pg_registry", {}).clear()
    gc.collect()
    dist.destroy_process_group()
