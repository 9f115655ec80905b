"""What is reported is what is pinned is what the kernel has locked, whatever threads do (E-16)."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator

import pytest
import torch

import aio
import pinned_manager.accounting as accounting
from pinned_manager import (
    PinError,
    is_pinned,
    new_locked_tensor,
    pin_empty,
    pin_memory,
    pinned_memory_stats,
    pinned_memory_summary,
    pinned_memory_tag,
    track_pinned_memory,
    unpin_memory,
)
from support.child import child_answer, with_low_memlock
from support.pinning import VARIABLE, Baseline, pages
from support.threads import in_threads

GB = 1 << 30


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "native")


class Worker:
    """One thread's tensors, and what it did to them."""

    SIZES = (0, 1, 1000, 1024, 5000, 70_000, 200_000)  # elements, 4 bytes each

    def __init__(self, number: int) -> None:
        self.choose = random.Random(number)
        self.live: list[torch.Tensor] = []
        self.freed: list[torch.Tensor] = []
        self.calls = 0

    @property
    def nbytes(self) -> int:
        return sum(pages(tensor.untyped_storage().nbytes()) for tensor in self.live)

    def step(self) -> None:
        action = self.choose.choice([self.pin, self.pin, self.empty, self.unpin, self.drop])
        self.choose.choice([action, action, self.fail, self.free_again, self.pin_again])()

    def pin(self) -> None:
        self.add(pin_memory(torch.ones(self.choose.choice(self.SIZES))))

    def empty(self) -> None:
        self.add(pin_empty(self.choose.choice(self.SIZES)))

    def add(self, tensor: torch.Tensor) -> None:
        assert is_pinned(tensor) is (tensor.numel() > 0)
        if tensor.numel():
            self.live.append(tensor)
            self.calls += 1

    def unpin(self) -> None:
        if self.live:
            tensor = self.live.pop(self.choose.randrange(len(self.live)))
            assert unpin_memory(tensor) is True
            self.freed = [*self.freed[-3:], tensor]

    def drop(self) -> None:
        if self.live:
            self.live.pop(self.choose.randrange(len(self.live)))

    def free_again(self) -> None:
        if self.freed:
            assert unpin_memory(self.choose.choice(self.freed)) is False
        assert unpin_memory(torch.ones(3)) is False

    def pin_again(self) -> None:
        if self.live:
            tensor = self.choose.choice(self.live)
            assert pin_memory(tensor) is tensor

    def fail(self) -> None:
        with pytest.raises(MemoryError):
            pin_empty(1 << 48)


def test_eight_threads() -> None:
    """They stop together now and then; all three accounts agree then, and at the end are zero."""
    held, before = Baseline.now(), pinned_memory_stats()
    workers = [Worker(number) for number in range(8)]

    def look() -> None:
        held.check(sum(worker.nbytes for worker in workers))
        now = pinned_memory_stats()
        assert now["regions"] - before["regions"] == sum(len(worker.live) for worker in workers)
        assert now["calls"] - before["calls"] == sum(worker.calls for worker in workers)

    together = threading.Barrier(len(workers), action=look)

    def run(worker: Worker) -> None:
        try:
            for number in range(150):
                worker.step()
                if number % 10 == 9:
                    together.wait()
        except BaseException:
            together.abort()
            raise

    in_threads(*(lambda worker=worker: run(worker) for worker in workers))  # type: ignore[misc]
    assert held.checks == 15
    workers.clear()
    held.check_nothing_is_left()


UNDER_A_LIMIT = """
import json, os, torch
os.environ["DS_PIN_MEMORY_BACKEND"] = "native"
import pinned_manager as pm
from support.counters import status_kb
MIB = 1 << 20
held, refused, reports = [], 0, []
for nbytes in [3 * MIB, 9 * MIB, 4 * MIB, 2 * MIB, 5000, 4 * MIB, 0]:
    before = pm.pinned_memory_stats()
    try:
        held.append(pm.pin_empty(nbytes, dtype=torch.uint8))
    except pm.PinError:
        refused += 1
        after = pm.pinned_memory_stats()
        after["cached"] = before["cached"]
        reports.append(after == before)
    now = pm.pinned_memory_stats()
    reports.append(now["live"] == sum(-(-t.nbytes // 4096) * 4096 for t in held))
    reports.append(now["live"] + now["cached"] == status_kb("VmLck") * 1024)
held.clear()
pm.empty_cache()
print(json.dumps([refused, all(reports), pm.pinned_memory_stats()["live"], status_kb("VmLck")]))
"""


def test_what_the_memlock_limit_refuses_is_not_counted() -> None:
    """8 MiB may be locked: 9 MiB never fit, a further 2 MiB not beside 3 + 4, 4 MiB not again."""
    answer = child_answer(UNDER_A_LIMIT, wrapper=with_low_memlock(8 << 20))
    assert answer == [3, True, 0, 0]


def test_tags() -> None:
    with pinned_memory_tag("optimizer"):
        first = pin_memory(torch.ones(1000))
        with pinned_memory_tag("inner"):
            second = pin_empty(2000)
        third = new_locked_tensor(10, torch.int8)
        with aio.aio_handle() as handle:
            of_a_handle = handle.new_cpu_locked_tensor(1, torch.empty(0))
        named = new_locked_tensor(10, torch.int8, "named")
    other = pin_memory(torch.ones(1000))
    tags = pinned_memory_stats()["by_tag"]
    assert tags["optimizer"] == 3 * 4096
    assert tags["inner"] == 8192
    assert tags["named"] == 4096
    assert tags["pin_memory"] == 4096
    del first, second, third, of_a_handle, named, other
    assert pinned_memory_stats()["by_tag"].keys().isdisjoint({"optimizer", "inner", "named"})


def test_a_tag_is_of_its_thread_and_ends_with_its_block() -> None:
    kept: list[torch.Tensor] = []
    with pinned_memory_tag("here"):
        in_threads(lambda: kept.append(pin_empty(10)))
        with pytest.raises(LookupError), pinned_memory_tag("failing"):
            raise LookupError
        kept.append(pin_empty(10))
    tags = pinned_memory_stats()["by_tag"]
    assert tags["here"] == 4096
    assert tags["pin_memory"] == 4096
    assert "failing" not in tags
    with pytest.raises(TypeError, match="int"), pinned_memory_tag(3):  # type: ignore[arg-type]
        pass


def test_live_peak_and_calls_are_three_things() -> None:
    before = pinned_memory_stats()
    for _ in range(5):
        tensor = pin_empty(50_000)
        assert unpin_memory(tensor) is True
    after = pinned_memory_stats()
    assert after["live"] == before["live"]
    assert after["calls"] - before["calls"] == 5
    assert after["peak"] >= before["live"] + pages(200_000)
    assert after["by_backend"]["native"]["peak"] <= after["peak"]


@pytest.fixture
def tracked() -> Iterator[None]:
    """Nothing tracked stays."""
    before = pinned_memory_stats()["by_backend"]["tracked"]["live"]
    yield
    assert pinned_memory_stats()["by_backend"]["tracked"]["live"] == before


@pytest.mark.usefixtures("tracked")
def test_tracked_memory() -> None:
    """What others pinned, as they say; it can be taken back, but not more than that."""
    before = pinned_memory_stats()
    track_pinned_memory(1000)
    with pinned_memory_tag("theirs"):
        track_pinned_memory(500)
    now = pinned_memory_stats()
    assert now["live"] - before["live"] == 1500
    assert now["calls"] - before["calls"] == 2
    assert now["by_tag"]["tracked"] == 1000
    assert now["by_tag"]["theirs"] == 500
    with pytest.raises(ValueError, match=r"1001 bytes .* 'tracked'.* 1000 tracked"):
        track_pinned_memory(-1001)
    with pytest.raises(TypeError):
        track_pinned_memory(1.5)  # type: ignore[arg-type]
    track_pinned_memory(-1000)
    with pinned_memory_tag("theirs"):
        track_pinned_memory(-500)
    after = pinned_memory_stats()
    assert after["live"] == before["live"]
    assert after["by_tag"] == before["by_tag"]


@pytest.mark.usefixtures("tracked")
def test_tracked_in_eight_threads() -> None:
    def work() -> None:
        for _ in range(200):
            track_pinned_memory(10)
            track_pinned_memory(-10)

    before = pinned_memory_stats()
    in_threads(*[work] * 8)
    assert pinned_memory_stats()["calls"] - before["calls"] == 1600


def test_summary(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pinned_manager"):
        tensor = pin_empty(3 << 18)
        live = accounting.format_bytes(pinned_memory_stats()["live"])
        pinned_memory_summary("after init")
        pinned_memory_summary()
    del tensor
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith(f"[pinned-memory after init] {live} pinned now")
    assert lines[1].startswith(f"[pinned-memory] {live} pinned now")
    assert {record.levelno for record in caplog.records} == {logging.INFO}


@pytest.mark.usefixtures("tracked")
def test_milestones(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line at 32, 64, 128 ... GB that are live at once, each once."""
    if pinned_memory_stats()["live"] >= GB:
        pytest.skip("this process has a gigabyte pinned, which the expected lines leave out")
    monkeypatch.setattr(accounting, "_milestones", accounting._Milestones())
    crossed = []

    def track(gigabytes: int) -> None:
        caplog.clear()
        track_pinned_memory(gigabytes * GB)
        crossed.append([record.getMessage().split("crossed ")[1][:6] for record in caplog.records])

    with caplog.at_level(logging.INFO, logger="pinned_manager"):
        for gigabytes in (20, -20, 20, 20, -30, 25, 100, -135, 130):
            track(gigabytes)
        track(-130)
    assert crossed == [[], [], [], ["32.000"], [], [], ["64.000", "128.00"], [], [], []]


def test_milestones_of_what_is_pinned_here(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = pinned_memory_stats()["live"]
    monkeypatch.setattr(accounting, "_milestones", accounting._Milestones(live + (1 << 20)))
    with caplog.at_level(logging.INFO, logger="pinned_manager"):
        for _ in range(10):  # 5 MiB in all, but never a MiB at once
            tensor = pin_empty(1 << 17)
            assert unpin_memory(tensor) is True
        assert caplog.records == []
        tensor = pin_empty(1 << 18)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    del tensor


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (5 << 20, "5.00 MB"), (3 << 29, "1.500 GB")],
)
def test_bytes_in_words(nbytes: int, text: str) -> None:
    assert accounting.format_bytes(nbytes) == text


def test_a_failed_pin_says_why() -> None:
    with pytest.raises(PinError) as caught:
        pin_memory(torch.empty(1).expand(1 << 48))
    assert caught.value.nbytes == 4 << 48
