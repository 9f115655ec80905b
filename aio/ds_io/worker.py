"""One process's part of a run, and the processes of it: together in every loop, or not at all.

1. The parent tells every process the number of a loop, and waits for all answers.
2. A process prepares its file, waits at a barrier for the others, then times its transfer.
3. The first that fails or dies ends the run: the parent kills the others, which may be at the
   barrier, and reports that failure. A process whose parent is gone ends too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

from aio.ds_io.engines import Engine, HandleEngine
from aio.ds_io.options import Options
from aio.ds_io.torch_engine import TorchEngine
from aio.measure.command import one_line
from aio.measure.harness import BenchError, stopwatch

# What a full drive, a missing limit or a wrong option raises: told in one line. All else is a bug.
FAILURES = (OSError, MemoryError, ValueError, RuntimeError, EOFError)


@dataclass(frozen=True)
class Part:
    """What one process did in one loop. `start` and `end` are of CLOCK_MONOTONIC, in seconds."""

    start: float
    end: float
    cpu_seconds: float
    moved: dict[str, int]  # bytes by path
    file: str  # "existing", "fresh" or "overwrite"
    cached: float | None  # share of the file that the page cache had before it was read
    memory: str
    latency: Mapping[str, object] | None  # of all loops so far

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def nbytes(self) -> int:
        return sum(self.moved.values())


class Team(Protocol):
    """Whoever does the loops."""

    def loop(self, number: int) -> list[Part]:
        """One loop by all processes, in their order. Raises one of FAILURES."""

    def close(self) -> None:
        """End them."""


class Worker:
    """One process's part; `meet` returns once every process is ready to start."""

    def __init__(
        self,
        options: Options,
        rank: int,
        folder: Path,
        stack: ExitStack,
        meet: Callable[[], object] = lambda: None,
    ) -> None:
        kind: type[Engine] = TorchEngine if options.serializes else HandleEngine
        self._engine = kind(options, rank, folder, stack)
        self._validate = options.validate
        self._meet = meet

    def loop(self, number: int) -> Part:
        """Prepare, wait for the others, transfer, account for every byte."""
        engine = self._engine
        state = engine.prepare(number)
        cached = engine.cached(number)
        self._meet()
        with stopwatch() as watch:
            start = time.monotonic()
            engine.transfer(number)
            end = time.monotonic()
        moved = engine.account(number)
        if self._validate:
            engine.check(number)
        return Part(
            start, end, watch.cpu_seconds, moved, state, cached, engine.memory, engine.latency()
        )


class OneProcess:
    """A team of this process alone."""

    def __init__(self, options: Options, folder: Path) -> None:
        with ExitStack() as stack:
            self._worker = Worker(options, 0, folder, stack)
            self._stack = stack.pop_all()

    def loop(self, number: int) -> list[Part]:
        return [self._worker.loop(number)]

    def close(self) -> None:
        self._stack.close()


class ManyProcesses:
    """A team of processes of their own, one for each folder."""

    def __init__(self, options: Options, folders: list[Path]) -> None:
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(len(folders))
        self._processes: list[SpawnProcess] = []
        self._pipes: list[Connection] = []
        try:
            for rank, folder in enumerate(folders):
                ours, theirs = context.Pipe()
                arguments = (theirs, barrier, options, rank, folder)
                process = context.Process(target=_child, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
            self._gather()
        except BaseException:
            self.close()
            raise

    def loop(self, number: int) -> list[Part]:
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send(number)
            except OSError:
                raise self._death(rank) from None
        return self._gather()

    def close(self) -> None:
        """Kill what still runs; transfers under way end with the process."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def _gather(self) -> list[Any]:
        """An answer from every process, in their order; raises the first failure."""
        answers: dict[int, Any] = {}
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting:
            for ready in wait(list(waiting)):
                rank = waiting.pop(ready)  # type: ignore[call-overload]
                try:
                    answers[rank] = self._pipes[rank].recv()
                except (EOFError, OSError):
                    raise self._death(rank) from None
                if isinstance(answers[rank], str):
                    raise BenchError(f"process {rank}: {answers[rank]}")
        return [answers[rank] for rank in range(len(self._pipes))]

    def _death(self, rank: int) -> BenchError:
        process = self._processes[rank]
        process.join()
        code = process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return BenchError(f"process {rank} ended before it was done ({how})")


def _child(  # pragma: no cover - it ends by SIGKILL, and its counts with it
    pipe: Connection, barrier: Any, options: Options, rank: int, folder: Path
) -> None:
    """A process of the team: answers with a Part for each number, or once with a failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with ExitStack() as stack:
            worker = Worker(options, rank, folder, stack, barrier.wait)
            pipe.send(None)
            while True:
                pipe.send(worker.loop(pipe.recv()))
    except FAILURES as error:
        pipe.send(one_line(error))


def _end_with_parent() -> None:  # pragma: no cover - as _child
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def open_team(options: Options, folders: list[Path]) -> Team:
    """One process is this one; more are processes of their own."""
    return OneProcess(options, folders[0]) if len(folders) == 1 else ManyProcesses(options, folders)
