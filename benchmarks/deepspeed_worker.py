"""DeepSpeed's own async_io handle, driven by a line of JSON for each command and each answer.

Runs as a script, in any interpreter that has torch and deepspeed and needs nothing else of this
package: the JIT build, the imports and the exit handlers of DeepSpeed stay out of the process that
measures the others.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


class Worker:
    """Holds the handle and the buffers between commands, as a training process would."""

    def __init__(self, block_size: int, queue_depth: int) -> None:
        import deepspeed
        import torch
        from deepspeed.ops.op_builder import AsyncIOBuilder

        self._torch = torch
        self._op = AsyncIOBuilder().load(verbose=False)
        self._shape = (block_size, queue_depth, False, True, 1)
        self._handle = self._op.aio_handle(*self._shape)
        self._buffers: dict[tuple[int, int, str], list[Any]] = {}
        self._swapped: Any = None
        self.version = deepspeed.__version__

    def large(self, path: str, nbytes: int, reading: bool, memory: str) -> Answer:
        """One tensor, pinned by DeepSpeed or plain, to or from one file."""
        (tensor,) = self._tensors(1, nbytes, memory)
        call = self._handle.sync_pread if reading else self._handle.sync_pwrite
        return self._timed(lambda: call(tensor, path, 0), 1, nbytes)

    def many(self, paths: list[str], nbytes: int, reading: bool, passes: int) -> Answer:
        """Many pinned tensors, each a file: submitted one by one, then awaited."""
        tensors = self._tensors(len(paths), nbytes, "pinned")
        call = self._handle.async_pread if reading else self._handle.async_pwrite

        def transfer() -> int:
            done = 0
            for _ in range(passes):
                for tensor, path in zip(tensors, paths, strict=True):
                    call(tensor, path, 0)
                done += self._handle.wait()
            return done

        count = len(paths) * passes
        return self._timed(transfer, count, nbytes * count)

    def small(self, path: str, nbytes: int, calls: int) -> Answer:
        """Single sync_pread calls of `nbytes` into pinned memory."""
        tensor = self._tensor(nbytes, "pinned")
        times = self._each(lambda: self._handle.sync_pread(tensor, path, 0), calls)
        self._handle.free_cpu_locked_tensor(tensor)
        return {"seconds": times}

    def handles(self, calls: int) -> Answer:
        """Creating and destroying a handle."""
        return {"seconds": self._each(lambda: self._op.aio_handle(*self._shape), calls)}

    def pinning(self, nbytes: int, calls: int) -> Answer:
        """Page-locking and releasing, each call's seconds."""
        example = self._torch.empty(0, dtype=self._torch.uint8)
        lock, release = [], []
        for _ in range(calls):
            start = time.perf_counter()
            tensor = self._handle.new_cpu_locked_tensor(nbytes, example)
            middle = time.perf_counter()
            self._handle.free_cpu_locked_tensor(tensor)
            lock.append(middle - start)
            release.append(time.perf_counter() - middle)
        return {"lock": lock, "release": release}

    def pins(self, nbytes: int, calls: int) -> Answer:
        """Its native backend: seconds of pinning a tensor, with a copy and without."""
        native = _native()
        if native is None:
            return {}
        source = self._torch.ones(nbytes, dtype=self._torch.uint8)
        times: dict[str, list[float]] = {"copy": [], "scratch": []}
        for _ in range(calls):
            for key, make_copy in (("copy", True), ("scratch", False)):
                start = time.perf_counter()
                pinned = native.pin(source, make_copy=make_copy)
                times[key].append(time.perf_counter() - start)
                native.unpin(pinned)
                del pinned
        return times

    def lookups(self, regions: list[int], nbytes: int) -> Answer:
        """Its native backend: mean seconds of is_pinned on one region, by how many there are."""
        native = _native()
        if native is None:
            return {}
        source = self._torch.ones(nbytes, dtype=self._torch.uint8)
        pinned: list[Any] = []
        times: dict[str, list[float]] = {}
        for count in regions:
            pinned += [native.pin(source) for _ in range(count - len(pinned))]
            part, calls = pinned[count // 2][100:200], max(10_000 // count, 10)
            times[str(count)] = []
            for _ in range(10):
                start = time.perf_counter()
                for _ in range(calls):
                    native.is_pinned(part)
                times[str(count)].append((time.perf_counter() - start) / calls)
        for tensor in pinned:
            native.unpin(tensor)
        return times

    def peaks(self, nbytes: int) -> Answer:
        """Its native backend: bytes by which the highest resident size rose for a scratch."""
        native = _native()
        if native is None:
            return {}
        torch = self._torch
        empty = torch.empty(0, dtype=torch.uint8)
        ways: dict[str, Callable[[], Any]] = {
            "pin_empty": lambda: native.pin_empty(empty, (nbytes,)),
            "pin(make_copy=False)": lambda: native.pin(
                torch.empty(nbytes, dtype=torch.uint8), make_copy=False
            ),
        }
        peaks = {}
        for name, make in ways.items():
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
            before = _status_bytes("VmRSS")
            made = make()
            peaks[name] = [_status_bytes("VmHWM") - before]
            native.unpin(made)
            del made
        return peaks

    def swapper(self, **arguments: Any) -> Answer:
        """Its optimizer swapper, with states that two steps have made."""
        self._swapped = importlib.import_module("deepspeed_swapper").SwappedSteps(**arguments)
        for _ in range(2):
            self._swapped.step()
        return {}

    def swapper_step(self, nbytes: int) -> Answer:
        """One step, which reads and writes that many bytes together."""

        def step() -> int:
            self._swapped.step()
            return 1

        return self._timed(step, 1, nbytes)

    def swapper_check(self) -> Answer:
        """Bytes that it stores; an error where they are not what the last step computed."""
        self._swapped.check()
        return {"stored": self._swapped.stored()}

    def forget(self) -> Answer:
        """Release the buffers kept between commands, and the swapper."""
        self._swapped = None
        for (_, _, memory), tensors in self._buffers.items():
            for tensor in tensors:
                if memory == "pinned":
                    self._handle.free_cpu_locked_tensor(tensor)
        self._buffers = {}
        return {}

    def _tensors(self, count: int, nbytes: int, memory: str) -> list[Any]:
        """`count` buffers, the same ones in every run."""
        key = (count, nbytes, memory)
        if key not in self._buffers:
            self._buffers[key] = [self._tensor(nbytes, memory) for _ in range(count)]
        return self._buffers[key]

    def _tensor(self, nbytes: int, memory: str) -> Any:
        torch = self._torch
        if memory == "plain":
            return torch.full((nbytes,), 1, dtype=torch.uint8)
        empty = torch.empty(0, dtype=torch.uint8)
        tensor = self._handle.new_cpu_locked_tensor(nbytes, empty)
        tensor.fill_(1)
        return tensor

    def _timed(self, transfer: Callable[[], int], operations: int, nbytes: int) -> Answer:
        cpu, start = cpu_seconds(), time.perf_counter()
        done = transfer()
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        if done != operations:
            raise RuntimeError(f"DeepSpeed completed {done} of {operations} operations")
        return {"seconds": seconds, "cpu_seconds": cpu, "nbytes": nbytes, "operations": operations}

    @staticmethod
    def _each(call: Callable[[], object], count: int) -> list[float]:
        times = []
        for _ in range(count):
            start = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start) * 1e-9)
        return times


def _native() -> Any:
    """DeepSpeed's NativePinnedMemory; None in versions without it."""
    try:
        from deepspeed.utils.pin_memory import NativePinnedMemory
    except ImportError:
        return None
    return NativePinnedMemory()


def _status_bytes(name: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(f"{name}:"))


def cpu_seconds() -> float:
    """User and system seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve(make: Callable[..., Any]) -> None:
    """Answer commands until standard input ends; "start" makes what the others are methods of."""
    # DeepSpeed and its compiler write to standard output: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it keeps a file open per request
    worker: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("command")
        try:
            if name == "start":
                worker = make(**command)
                answer: Answer = {"version": worker.version}
            else:
                answer = getattr(worker, name)(**command)
        except Exception as error:  # handed to the parent, which raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    serve(Worker)
