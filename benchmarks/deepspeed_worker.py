"""DeepSpeed's own async_io handle, driven by a line of JSON for each command and each answer.

Runs as a script, in any interpreter that has torch and deepspeed and needs nothing else of this
package: the JIT build, the imports and the exit handlers of DeepSpeed stay out of the process that
measures the others.
"""

from __future__ import annotations

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

    def forget(self) -> Answer:
        """Release the buffers kept between commands."""
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
        cpu, start = _cpu(), time.perf_counter()
        done = transfer()
        seconds, cpu = time.perf_counter() - start, _cpu() - cpu
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


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Answer commands until standard input ends."""
    # DeepSpeed and its compiler write to standard output: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it keeps a file open per request
    worker: Worker | None = None
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("command")
        try:
            if name == "start":
                worker = Worker(**command)
                answer: Answer = {"version": worker.version}
            else:
                answer = getattr(worker, name)(**command)
        except Exception as error:  # handed to the parent, which raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
