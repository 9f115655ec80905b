"""Ctrl-C or an exception anywhere in step(): finish_step() does the rest, nothing twice (C-06)."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import aio
from aio.swap import SwappedOptimizer
from aio.swap.pipeline import Pipeline
from pinned_manager.states import interrupts
from support.counters import counters
from support.swapped import give_gradients, made_parameters, parameter_bits, state_bits, twins

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = (str(Path(aio.__file__).parent / "swap"), interrupts.__file__)
SHAPES = ((700,), (700,), (700,), (30,), (30,), (700,))
SUB_GROUPS = ((0,), (1,), (2,), (3, 4), (5,))  # one of them has two parameters
SUB_GROUP_BYTES = 700 * 8
EXTENT = 8 << 10  # bytes: of the largest sub-group, in whole blocks
STRIDE = 131
CACHES = {"no cache": 0, "some cached": 2 * SUB_GROUP_BYTES}


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """A test that runs in the background of a shell finds the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Counting(torch.optim.Adam):
    """Counts its calls, and fails in the one that ``fails_in`` says."""

    calls = 0
    fails_in = 0

    def step(self, closure: Any = None) -> Any:
        Counting.calls += 1
        if Counting.calls == Counting.fails_in:
            raise ArithmeticError("enough")
        return super().step(closure)


class Interrupting:
    """Within it, SIGINT arrives before the n-th line of FILES that this thread runs, of certain
    functions if ``functions`` names them.
    """

    def __init__(self, line: int, functions: Sequence[str] = ()) -> None:
        self.line = line
        self.functions = functions
        self.lines = 0
        self.updates_before = 0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(FILES):
            return None
        if self.functions and code.co_name not in self.functions:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                self.updates_before = Counting.calls
                signal.raise_signal(signal.SIGINT)
        return self._trace

    def __enter__(self) -> Interrupting:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)


class Training:
    """A swapped optimizer and a plain one, which is never interrupted."""

    def __init__(self, directory: Path, cache_bytes: int = 0) -> None:
        Counting.calls = Counting.fails_in = 0
        self.plain_params = made_parameters(*SHAPES)
        self.params = twins(self.plain_params)
        self.plain = torch.optim.Adam(self.plain_params)
        self.swapped = SwappedOptimizer(
            self.params,
            Counting,
            swap_dir=directory,
            sub_group_bytes=SUB_GROUP_BYTES,
            cache_bytes=cache_bytes,
        )
        self.steps = 0
        for _ in range(3):
            self.step(self.swapped.step)
        assert len(self.swapped._sub_groups) == len(SUB_GROUPS)

    def step(self, do: Callable[[], Any]) -> None:
        """The next step: the plain optimizer's, and what ``do`` does with the swapped one."""
        give_gradients(self.params, self.steps)
        give_gradients(self.plain_params, self.steps)
        self.steps += 1
        old = self.look()
        self.plain.step()
        do()
        if self.look() == old:  # it came before the step had begun
            self.swapped.step()
        assert self.look() == look_at(self.plain_params, self.plain)

    def interrupted(self, line: int, functions: Sequence[str] = ()) -> bool:
        """A step with SIGINT before that line of it. False where the step has fewer."""
        interrupting = Interrupting(line, functions)

        def step() -> None:
            before = Counting.calls
            old, new = self.look(), look_at(self.plain_params, self.plain)
            with suppress(KeyboardInterrupt), interrupting:
                self.swapped.step()
            updates = Counting.calls
            pipeline = self.swapped._pipeline
            assert not pipeline._reads
            assert not pipeline._writes
            # It waits for the update that it came in, and for no other one.
            assert interrupting.lines < line or updates <= interrupting.updates_before + 1
            found = self.look()
            for members in SUB_GROUPS:
                each = [tuple(seen[member] for member in members) for seen in (found, old, new)]
                assert each[0] in each[1:], f"line {line}, parameters {members}"
            self.swapped.finish_step()
            assert Counting.calls - before in (0, len(SUB_GROUPS))  # none twice

        self.step(step)
        return interrupting.lines >= line

    def look(self) -> list[Any]:
        return look_at(self.params, self.swapped)


def look_at(params: Any, optimizer: Any) -> list[Any]:
    """The bits of each parameter, with those of its states."""
    states = state_bits(optimizer)
    return [(raw, states.get(at)) for at, raw in enumerate(parameter_bits(params))]


def lines_of_a_step(training: Training, functions: Sequence[str] = ()) -> int:
    counting = Interrupting(0, functions)

    def step() -> None:
        with counting:
            training.swapped.step()

    training.step(step)
    return counting.lines


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_interrupted_at_any_line(disk: Path, cache_bytes: int) -> None:
    with counters():
        training = Training(disk, cache_bytes)
        lines = lines_of_a_step(training)
        # Each of them would take minutes. The number of lines differs a little from step to step.
        tried = range(1 + cache_bytes % STRIDE, lines, STRIDE)
        assert len(tried) > 20
        heard = sum(training.interrupted(line) for line in tried)
        assert heard > 0.8 * len(tried)
        stats = training.swapped.stats()
        assert stats["peak_buffer_bytes"] <= 3 * EXTENT + cache_bytes
        assert training.swapped._store.stats()["in_flight"] == 0
        training.swapped.close()
        del training
    assert list(disk.iterdir()) == []


def test_interrupted_again_while_it_gives_back(disk: Path, monkeypatch: Any) -> None:
    training = Training(disk)
    drain, seen = Pipeline._drain, []

    def interrupted_drain(pipeline: Pipeline) -> None:
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            seen.append(len(pipeline._reads) + len(pipeline._writes))
            signal.raise_signal(signal.SIGINT)
        drain(pipeline)

    monkeypatch.setattr(Pipeline, "_drain", interrupted_drain)
    with training.swapped:
        for line in range(1, lines_of_a_step(training, ["heard"]) + 1, 3):
            training.interrupted(line, ["heard"])
        assert len(seen) > 5
        assert max(seen) > 0  # transfers were in flight
        assert training.swapped.stats()["buffer_bytes"] <= 3 * EXTENT


def test_interrupted_in_a_step_of_an_operation(disk: Path) -> None:
    """Whoever waits for it in another thread, or later, gets its result."""
    training = Training(disk)
    functions = ["_advance", "_run", "_step"]
    with training.swapped:
        for line in range(1, lines_of_a_step(training, functions) + 1, 11):
            training.interrupted(line, functions)
        assert training.swapped._store.stats()["in_flight"] == 0


@pytest.mark.parametrize("update", range(1, len(SUB_GROUPS) + 1))
def test_an_update_that_raises(disk: Path, update: int) -> None:
    training = Training(disk)

    def step() -> None:
        Counting.fails_in = Counting.calls + update
        with pytest.raises(ArithmeticError, match="enough"):
            training.swapped.step()
        training.swapped.finish_step()

    with training.swapped:
        training.step(step)
        training.step(training.swapped.step)


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_that_raises(disk: Path, when: str) -> None:
    """Before a step nothing has changed, and after it, it is whole."""
    training = Training(disk)

    def fails(optimizer: Any, *arguments: Any) -> None:
        raise ArithmeticError("enough")

    def step() -> None:
        hook = getattr(training.swapped, f"register_step_{when}_hook")(fails)
        before = Counting.calls
        with pytest.raises(ArithmeticError, match="enough"):
            training.swapped.step()
        hook.remove()
        training.swapped.finish_step()
        assert Counting.calls - before == (0 if when == "pre" else len(SUB_GROUPS))

    with training.swapped:
        training.step(step)
        training.step(training.swapped.step)
