"""When a device fails, nothing of the call stays in flight, and no other failure is forgotten."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
import aio.device_transfer as device_transfer
from support.buffers import pattern
from support.counters import counters
from support.fake_device import BLOCK, FakeDevice, FakeTensor, FakeType, empty
from support.files import contents
from support.in_flight import TEXT, refuses_text
from support.no_threads import REFUSED, no_threads

pytest_plugins = ["support.device_fixtures"]


class Told:
    """A request, an event or a block's part of one, which says whether it was waited for."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.waited = False

    def wait(self, timeout: float | None = None) -> bool:
        self.waited = True
        return True

    def result(self) -> int:
        return 0

    def query(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.waited = True
        if self.failure is not None:
            raise self.failure


class HostRequestsOf:
    """The core of a handle, but requests of host tensors are this ticket."""

    def __init__(self, core: Any, ticket: Told) -> None:
        self._core = core
        self._ticket = ticket

    def submit_many(self, items: Any, write: bool) -> Told:
        return self._ticket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def test_host_tensors_of_the_same_call_are_waited_for(
    disk: Path, device: FakeDevice, make_handle: Any
) -> None:
    path = disk / "file"
    path.write_bytes(pattern(BLOCK))
    handle, ticket = make_handle(), Told()
    handle._devices._core = HostRequestsOf(handle._core, ticket)
    device.fail_copies = 1
    future = handle.submit_pread_many([(empty(BLOCK), path), (bytearray(BLOCK), path)])
    assert isinstance(future.exception(), RuntimeError)
    assert ticket.waited


BAD_ITEMS: dict[str, Any] = {
    "device tensor, no name": (empty(BLOCK), None),
    "device tensor, offset": (empty(BLOCK), "FILE", -1),
    "device tensor alone": (empty(BLOCK),),
    "device tensor and too much": (empty(BLOCK), "FILE", 0, 0),
    "another device's": (FakeTensor(b"abcd", device=FakeType("unheard-of")), "FILE"),
    "host, no name": (b"host", None),
    "nothing": (),
    "none": None,
}


@pytest.mark.parametrize("what", BAD_ITEMS)
def test_an_item_that_cannot_be_moves_nothing_of_the_others(
    disk: Path, device: FakeDevice, make_handle: Any, what: str
) -> None:
    files = [disk / "of the device", disk / "of the host"]
    for path in files:
        path.write_bytes(pattern(BLOCK))
    bad = BAD_ITEMS[what]
    if bad is not None:
        bad = tuple(files[0] if member == "FILE" else member for member in bad)
    good: list[Any] = [(FakeTensor(pattern(BLOCK, 1)), files[0]), (pattern(BLOCK, 2), files[1])]
    handle, raised = make_handle(), []
    with counters():
        for items in ([bad], [*good, bad], [bad, *good]):
            with pytest.raises((TypeError, ValueError)) as refused:
                handle.submit_pwrite_many(items)
            raised.append(refused.value)  # and with it all that its traceback holds
    handle.close()  # what had been started would be in the files now
    assert [contents(path) for path in files] == [pattern(BLOCK)] * 2
    assert device.copies == 0


@pytest.mark.parametrize("opened", [True, False])
def test_many_without_a_thread(
    disk: Path, device: FakeDevice, make_handle: Any, opened: bool
) -> None:
    """Nothing of the device, now or later, and nothing of the host is in flight."""
    path = disk / "file" if opened else disk / "missing" / "file"
    if opened:
        path.write_bytes(pattern(BLOCK))
    handle, ticket = make_handle(), Told()
    handle._devices._core = HostRequestsOf(handle._core, ticket)
    items: list[Any] = [(FakeTensor(pattern(BLOCK, seed)), path) for seed in (1, 2)]
    with counters(), no_threads(), pytest.raises(RuntimeError, match=REFUSED):
        handle.submit_pwrite_many([*items, (b"host", disk / "other")])
    assert ticket.waited
    assert handle.sync_pwrite(FakeTensor(pattern(BLOCK, 3)), disk / "new") == 1
    if opened:
        assert contents(path) == pattern(BLOCK)


@pytest.mark.parametrize("many", [False, True])
def test_failures_that_cannot_be_raised_are_logged(
    disk: Path, device: FakeDevice, make_handle: Any, caplog: pytest.LogCaptureFixture, many: bool
) -> None:
    path = disk / "file"
    path.write_bytes(pattern(BLOCK))
    handle, bad = make_handle(), refuses_text()
    device.fail_copies = 2

    def use() -> None:
        if many:
            handle.pwrite_many([(empty(BLOCK), path), (empty(BLOCK), path), (TEXT, bad)])
            return
        for _ in range(2):
            handle.async_pwrite(empty(BLOCK), path)
        handle.async_pwrite(TEXT, bad)
        handle.wait()

    with pytest.raises(RuntimeError, match="does not copy"):
        use()
    words = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert sum("does not copy" in one for one in words) == 1
    assert sum(str(bad) in one for one in words) == 1
    assert handle.wait() == 0


def test_a_device_whose_event_fails_leaves_no_block_in_use() -> None:
    broken, request, copy = Told(RuntimeError("broken")), Told(), Told()
    memory = torch.empty(0, dtype=torch.uint8)
    parts: list[Any] = [(None, broken), (request, None), (None, copy)]
    blocks = [device_transfer._Block(memory, ticket, event) for ticket, event in parts]
    with pytest.raises(RuntimeError, match="broken"):
        device_transfer._abandon(blocks)
    assert request.waited
    for block in blocks:
        block.settle()
    assert copy.waited


def test_blocks_that_were_made_in_part_are_made_again(
    disk: Path, device: FakeDevice, make_handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, data = make_handle(), pattern(9 * BLOCK)
    make, made = device_transfer.new_locked_tensor, 0

    def once_out_of_memory(*arguments: Any) -> torch.Tensor:
        nonlocal made
        made += 1
        if made == 2:
            raise MemoryError("no memory for a block")
        return make(*arguments)

    monkeypatch.setattr(device_transfer, "new_locked_tensor", once_out_of_memory)
    with pytest.raises(MemoryError):
        handle.sync_pwrite(FakeTensor(data), disk / "file")
    assert handle.sync_pwrite(FakeTensor(data), disk / "file") == 1
    assert contents(disk / "file") == data


def test_a_write_without_a_thread_is_never_carried_out(
    disk: Path, device: FakeDevice, make_handle: Any
) -> None:
    """Neither then nor with the next one, which finds a thread: the caller was told that it was not
    started.
    """
    handle, old, refused = make_handle(), disk / "old", FakeTensor(pattern(BLOCK, 1))
    old.write_bytes(pattern(BLOCK))
    with no_threads(), pytest.raises(RuntimeError, match=REFUSED):
        handle.async_pwrite(refused, old)
    assert handle.wait() == 0
    assert handle.sync_pwrite(FakeTensor(pattern(BLOCK, 2)), disk / "new") == 1
    assert contents(old) == pattern(BLOCK)
    assert contents(disk / "new") == pattern(BLOCK, 2)


def test_the_exception_under_way_matters_more(
    disk: Path, device: FakeDevice, make_handle: Any, caplog: pytest.LogCaptureFixture
) -> None:
    device.fail_copies = 1

    def use() -> None:
        with aio.aio_handle() as handle:
            handle.async_pwrite(empty(BLOCK), disk / "file")
            raise LookupError("of the program")

    with pytest.raises(LookupError):
        use()
    assert "does not copy" in caplog.text
