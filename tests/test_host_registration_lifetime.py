"""What a device reaches is unregistered before its pages are unlocked, whoever drops it and when
(E-03, E-19, E-24).

The fake accelerator looks at the kernel's books: it fails the test when it is asked for memory that
is not locked any more.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import _deepnvme
import aio
from pinned_manager import (
    empty_cache,
    free_locked_tensor,
    get_cache_limit,
    new_locked_tensor,
    pinned_stats,
    set_cache_limit,
)
from support.child import child_answer
from support.counters import status_kb
from support.dlpack import Consumed
from support.fake_accelerator import FakeAccelerator, fake_accelerator
from support.forks import expect_child_ok, fork_and
from support.threads import in_threads

MIB = 1 << 20
SIZES = (4096, MIB)  # of a shared mapping, and of its own


@pytest.fixture
def accelerator() -> Iterator[FakeAccelerator]:
    with fake_accelerator() as made:
        yield made


@pytest.fixture
def nothing_is_kept() -> Iterator[None]:
    """Freed memory is given back at once; nothing of other tests shares a mapping with it."""
    gc.collect()
    limit = get_cache_limit()
    set_cache_limit(0)
    yield
    set_cache_limit(limit)


def new(nbytes: int) -> torch.Tensor:
    return new_locked_tensor(nbytes, torch.uint8, "test")


@pytest.mark.parametrize("nbytes", SIZES)
def test_dropped(accelerator: FakeAccelerator, nothing_is_kept: None, nbytes: int) -> None:
    tensor = new(nbytes)
    assert accelerator.covers(tensor)
    del tensor
    gc.collect()
    assert accelerator.ranges == {}
    assert pinned_stats()["cached"] == 0


@pytest.mark.parametrize("nbytes", SIZES)
def test_over_the_limit(accelerator: FakeAccelerator, nbytes: int) -> None:
    del_me = new(nbytes)
    del del_me
    assert accelerator.ranges != {}  # cached
    limit = get_cache_limit()
    set_cache_limit(0)
    assert accelerator.ranges == {}
    set_cache_limit(limit)


@pytest.mark.parametrize("nbytes", SIZES)
def test_emptied(accelerator: FakeAccelerator, nbytes: int) -> None:
    tensor = new(nbytes)
    empty_cache()
    assert accelerator.covers(tensor)
    del tensor
    empty_cache()
    assert accelerator.ranges == {}


def test_unpinned_with_aliases_left(accelerator: FakeAccelerator) -> None:
    locked = status_kb("VmLck")
    tensor = new(MIB)
    alias = tensor[10:]
    assert free_locked_tensor(tensor)
    assert accelerator.ranges == {}
    assert status_kb("VmLck") == locked
    alias.fill_(1)


def test_unpinned_while_in_use(accelerator: FakeAccelerator) -> None:
    tensor = new(MIB)
    hold = _deepnvme.pin.hold(tensor[5:])
    assert hold is not None
    assert hold.address == tensor.data_ptr()
    assert free_locked_tensor(tensor)
    assert accelerator.covers(tensor)
    del hold
    assert accelerator.ranges == {}


def test_unpinned_during_a_request(accelerator: FakeAccelerator, disk: Path, backend: str) -> None:
    with aio.aio_handle(backend=backend) as handle:
        tensors = [new(4 * MIB) for _ in range(4)]
        for number, tensor in enumerate(tensors):
            handle.async_pwrite(tensor.fill_(number), str(disk / str(number)))
            assert free_locked_tensor(tensor)
        assert handle.wait() == 4
    pinned_stats()  # takes back what I/O threads could not
    assert accelerator.ranges == {}
    for number in range(4):
        assert (disk / str(number)).read_bytes() == bytes([number]) * (4 * MIB)


@pytest.mark.parametrize("nbytes", SIZES)
def test_dropped_by_a_thread_without_the_gil(
    accelerator: FakeAccelerator, nothing_is_kept: None, nbytes: int
) -> None:
    locked = status_kb("VmLck")
    for with_gil in (True, False):
        region = Consumed(_deepnvme.pin.allocate_dlpack(nbytes, "test"))
        size = sum(accelerator.ranges.values())
        assert size >= nbytes
        calls = accelerator.unregistrations
        thread = threading.Thread(target=region.let_go, args=(with_gil,))
        thread.start()
        thread.join()
        if not with_gil:  # set aside: locked, and counted
            assert accelerator.unregistrations == calls
            assert status_kb("VmLck") - locked == size // 1024
        assert pinned_stats()["cached"] == 0  # whoever enters takes it back
        assert accelerator.ranges == {}
        assert status_kb("VmLck") == locked


def test_the_limit_is_met_by_what_waits_for_the_device(accelerator: FakeAccelerator) -> None:
    """A lock that fails for want of memory takes back what the pool has given up meanwhile."""
    answer = child_answer(LIMITED)
    assert answer == {"second": True, "ranges": 1}


LIMITED = """
import json, resource
import ctypes
import torch
from pinned_manager import new_locked_tensor, set_accelerator
from support.fake_accelerator import FakeAccelerator
MIB = 1 << 20
accelerator = FakeAccelerator()
set_accelerator(accelerator)
new_locked_tensor(5 * MIB, torch.uint8)  # dropped: cached and registered
resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))
libc = ctypes.CDLL(None, use_errno=True)  # without CAP_IPC_LOCK the limit holds
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
sets = (ctypes.c_uint32 * 6)()
if libc.capset(header, sets) != 0:
    raise OSError(ctypes.get_errno(), "capset")
second = new_locked_tensor(6 * MIB, torch.uint8)
print(json.dumps({"second": accelerator.covers(second), "ranges": len(accelerator.ranges)}))
"""

AT_EXIT = """
import atexit, json, sys, threading

def report():
    print(json.dumps({"ranges": sorted(accelerator.ranges.values()), "faults": accelerator.faults}))
    sys.stdout.flush()
    accelerator.unregister_host_memory = accelerator.register_host_memory = None  # too late

atexit.register(report)  # runs last
import torch
from pinned_manager import copy_to_device, new_locked_tensor, record_stream, set_accelerator
from support.fake_accelerator import FakeAccelerator
from support.fake_device import TYPE, FakeTensor, fake_device
accelerator = FakeAccelerator()
set_accelerator(accelerator)
MIB = 1 << 20

class Never:
    def record_event(self):
        return self

    def query(self):
        return False

new_locked_tensor(MIB, torch.uint8)  # cached
live = new_locked_tensor(2 * MIB, torch.uint8)
used = new_locked_tensor(3 * MIB, torch.uint8)
record_stream(used, Never())
del used

def hold_one():
    mine = new_locked_tensor(4 * MIB, torch.uint8)
    ready.set()
    threading.Event().wait()

ready = threading.Event()
threading.Thread(target=hold_one, daemon=True).start()
ready.wait()
"""


def test_at_exit() -> None:
    """The pool is given back while Python still runs; what lives on is left to the kernel."""
    answer = child_answer(AT_EXIT)
    assert answer == {"ranges": [2 * MIB, 3 * MIB, 4 * MIB], "faults": []}


def test_a_forked_child_leaves_the_device_alone(accelerator: FakeAccelerator) -> None:
    tensor = new(MIB)
    waiting = Consumed(_deepnvme.pin.allocate_dlpack(2 * MIB, "test"))
    set_cache_limit(get_cache_limit())
    calls = (accelerator.registrations, accelerator.unregistrations)

    def child() -> None:
        own = new(MIB)
        assert _deepnvme.pin.is_pinned(own)
        assert not _deepnvme.pin.is_pinned(tensor)
        del own
        waiting.let_go(with_gil=True)
        empty_cache()
        assert (accelerator.registrations, accelerator.unregistrations) == calls

    expect_child_ok(fork_and(child))
    assert accelerator.covers(tensor)
    waiting.let_go(with_gil=True)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from((4096, 300_000, MIB)),
            st.sampled_from(["drop", "unpin", "hold", "without the GIL", "empty", "keep"]),
        ),
        max_size=15,
    )
)
def test_any_order(steps: list[tuple[int, str]]) -> None:
    with fake_accelerator() as accelerator:
        kept: list[object] = []
        for nbytes, step in steps:
            if step == "without the GIL":
                Consumed(_deepnvme.pin.allocate_dlpack(nbytes, "test")).let_go(with_gil=False)
                continue
            tensor = new(nbytes)
            assert accelerator.covers(tensor)
            if step == "unpin":
                assert free_locked_tensor(tensor)
            elif step == "hold":
                kept.append(_deepnvme.pin.hold(tensor))
                assert free_locked_tensor(tensor)
            elif step == "empty":
                empty_cache()
            elif step == "keep":
                kept.append(tensor)
            del tensor
        kept.clear()


def test_threads() -> None:
    with fake_accelerator() as accelerator:
        accelerator.looks_at_memory = False  # reading /proc so often would take minutes

        def churn(seed: int) -> None:
            for turn in range(150):
                nbytes = (4096, 300_000, 600_000)[(seed + turn) % 3]
                region = Consumed(_deepnvme.pin.allocate_dlpack(nbytes, str(seed)))
                if turn % 5 == 0:
                    _deepnvme.pin.release(region.address)
                region.let_go(with_gil=turn % 2 == 0)
                if turn % 11 == 0:
                    empty_cache()

        in_threads(*(partial(churn, seed) for seed in range(8)))
        assert pinned_stats()["in_use"] == 0
