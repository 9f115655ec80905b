"""AdamW whose moments live in files: in memory only while their parameters are being updated.

AdamW keeps two numbers per parameter, `exp_avg` and `exp_avg_sq`: twice the size of the model. They
are needed only inside `step()`. Here they stay on disk, one file per group of parameters, and pass
through three page-locked buffers:

    time ->            step i              step i+1            step i+2
    buffer A           read  group i+1     update group i+1    write group i+1
    buffer B           update group i      write group i       read  group i+3
    buffer C           write group i-1     read  group i+2     update group i+2

so that the disk reads the next group and writes the last one while the processor updates this one.
The arithmetic is `torch.optim.AdamW` itself, on views of a buffer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import aio

MOMENTS = ("exp_avg", "exp_avg_sq")
BUFFERS = 3  # one being read, one being updated, one being written
# A user may lock 8 MiB on most systems: three buffers of this size leave room in it.
GROUP_BYTES = 2 << 20
NOT_IN_MEMORY = torch.empty(0)


@dataclass(frozen=True)
class Group:
    """Some parameters, the optimizer that updates just these, and the file with their moments."""

    optimizer: torch.optim.AdamW
    parameters: list[nn.Parameter]
    path: Path
    numel: int  # of both moments of all parameters

    def attach(self, moments: Tensor) -> None:
        """Make the optimizer's state views of `moments`, in the order that the file has."""
        offset = 0
        for parameter in self.parameters:
            for name in MOMENTS:
                piece = moments[offset : offset + parameter.numel()]
                self.optimizer.state[parameter][name] = piece.view(parameter.shape)
                offset += parameter.numel()

    def detach(self) -> None:
        """Leave nothing of the moments in the optimizer (its step counter stays)."""
        for parameter in self.parameters:
            for name in MOMENTS:
                self.optimizer.state[parameter][name] = NOT_IN_MEMORY


class NvmeAdamW:
    """`torch.optim.AdamW` for float32 parameters, with the moments in files in `directory`.

    `handle` must have no other requests in flight during a call: `handle.wait()` waits for all.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        handle: aio.aio_handle,
        directory: Path,
        *,
        lr: float,
    ) -> None:
        self.handle = handle
        self.bytes_moved = 0
        self.seconds_in_flight = 0.0  # from a submission to the return of the wait() for it
        self.seconds_waiting = 0.0  # of those, inside wait(): with nothing else left to do
        self._pending = 0
        self._submitted_at = 0.0
        self.groups = [
            Group(
                torch.optim.AdamW(members, lr=lr),
                members,
                directory / f"moments_{number:03d}.bin",
                sum(len(MOMENTS) * p.numel() for p in members),
            )
            for number, members in enumerate(_split(parameters))
        ]
        self.buffers = self._new_buffers(max(group.numel for group in self.groups))
        self._write_initial_moments()

    def step(self) -> None:
        """Update every parameter once; reads and writes all moments."""
        last = len(self.groups) - 1
        self._read(0)
        for number, group in enumerate(self.groups):
            self._wait()  # this group has been read, and the one before the last written
            if number > 0:
                self._write(number - 1)
            if number < last:
                self._read(number + 1)
            group.attach(self._moments(number))
            group.optimizer.step()
            group.detach()
        self._wait()
        self._write(last)
        self._wait()
        # Whatever the next step computes with must have come from the disk: a stale moment is NaN.
        for buffer in self.buffers:
            buffer.fill_(float("nan"))

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""
        for group in self.groups:
            group.optimizer.zero_grad()

    def read_moments(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        """Yield (parameter, name, moment) from disk; a moment is valid until the next is taken."""
        for number, group in enumerate(self.groups):
            self._read(number)
            self._wait()
            group.attach(self._moments(number))
            for parameter in group.parameters:
                for name in MOMENTS:
                    yield parameter, name, group.optimizer.state[parameter][name]
            group.detach()

    def bytes_on_disk(self) -> int:
        """Size of all moments."""
        return sum(group.numel for group in self.groups) * self.buffers[0].element_size()

    def bytes_in_optimizers(self) -> int:
        """Size of the moments that the optimizers hold in memory now: 0 between steps."""
        return sum(
            group.optimizer.state[parameter][name].nbytes
            for group in self.groups
            for parameter in group.parameters
            for name in MOMENTS
        )

    def close(self) -> None:
        """Give the page-locked buffers back. The files stay."""
        for buffer in self.buffers:
            self.handle.free_cpu_locked_tensor(buffer)
        self.buffers = []

    def _new_buffers(self, numel: int) -> list[Tensor]:
        example = torch.empty(0, dtype=torch.float32)
        try:
            return [self.handle.new_cpu_locked_tensor(numel, example) for _ in range(BUFFERS)]
        except aio.PinError:
            # Any memory works. Where the system lets nobody lock this much, bytes are copied once.
            return [torch.empty(numel, dtype=torch.float32) for _ in range(BUFFERS)]

    def _write_initial_moments(self) -> None:
        """AdamW starts from zeros; it makes its state at the first step unless it finds one."""
        for buffer in self.buffers:
            buffer.zero_()
        for number, group in enumerate(self.groups):
            for parameter in group.parameters:
                group.optimizer.state[parameter]["step"] = torch.tensor(0.0)
            group.detach()
            self._write(number)
        self._wait()

    def _moments(self, number: int) -> Tensor:
        """The part of a buffer that group `number` uses while it is in memory."""
        return self.buffers[number % BUFFERS][: self.groups[number].numel]

    def _read(self, number: int) -> None:
        moments = self._submitting(number)
        self.handle.async_pread(moments, self.groups[number].path)

    def _write(self, number: int) -> None:
        moments = self._submitting(number)
        self.handle.async_pwrite(moments, self.groups[number].path)

    def _submitting(self, number: int) -> Tensor:
        if self._pending == 0:
            self._submitted_at = time.perf_counter()
        self._pending += 1
        moments = self._moments(number)
        self.bytes_moved += moments.nbytes
        return moments

    def _wait(self) -> None:
        if self._pending == 0:
            return
        before = time.perf_counter()
        completed = self.handle.wait()  # raises aio.AioError if any request failed
        after = time.perf_counter()
        if completed != self._pending:
            raise RuntimeError(f"{self._pending} requests submitted, {completed} completed")
        self._pending = 0
        self.seconds_waiting += after - before
        self.seconds_in_flight += after - self._submitted_at


def _split(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters in order, in groups whose moments take up to GROUP_BYTES, or one larger one."""
    groups: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        if parameter.dtype != torch.float32:
            raise TypeError(f"parameters must be float32, got {parameter.dtype}")
        size = len(MOMENTS) * parameter.nbytes
        if not groups or size > room:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(parameter)
        room -= size
    if not groups:
        raise ValueError("no parameters to optimize")
    return groups
