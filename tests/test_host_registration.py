"""Locked memory is registered with the accelerator once, wholly or not at all (E-24)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import pytest
import torch

import _deepnvme
from pinned_manager import free_locked_tensor, host_registration, new_locked_tensor, pinned_stats
from pinned_manager.accelerators import set_accelerator
from support.child import child_answer
from support.fake_accelerator import FakeAccelerator, fake_accelerator

MIB = 1 << 20
SIZES = (1, 4096, 300_000, MIB)  # the first two share a mapping with others
VARIABLE = "DS_PIN_MEMORY_REGISTER_DEVICE"


@pytest.fixture
def accelerator() -> Iterator[FakeAccelerator]:
    with fake_accelerator() as made:
        yield made


def new(nbytes: int) -> torch.Tensor:
    return new_locked_tensor(nbytes, torch.uint8, "test")


@pytest.mark.parametrize("nbytes", SIZES)
def test_registered_once_and_reused(accelerator: FakeAccelerator, nbytes: int) -> None:
    tensor = new(nbytes)
    assert accelerator.covers(tensor)
    neighbour = new(nbytes)
    assert accelerator.covers(neighbour)
    made = accelerator.registrations
    del tensor, neighbour
    again = [new(nbytes), new(nbytes)]
    assert accelerator.registrations == made
    assert accelerator.unregistrations == 0
    assert all(map(accelerator.covers, again))


def test_another_accelerator_is_offered_what_the_last_did_not_take(
    accelerator: FakeAccelerator,
) -> None:
    accelerator.refuse = lambda number: True
    tensor = new(MIB)
    del tensor
    assert new(MIB).nbytes == MIB
    assert accelerator.registrations == 1
    other = FakeAccelerator()
    set_accelerator(other)
    tensor = new(MIB)
    assert other.covers(tensor)
    del tensor
    _deepnvme.pin.empty_cache()
    assert other.ranges == {}
    assert other.faults == []


def test_refusal_is_said_once(
    accelerator: FakeAccelerator, caplog: pytest.LogCaptureFixture
) -> None:
    accelerator.refuse = lambda number: True
    with caplog.at_level(logging.WARNING, "pinned_manager"):
        tensors = [new(MIB), new(2 * MIB)]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert VARIABLE in said[0]
    assert str(MIB) in said[0]
    assert all(_deepnvme.pin.is_pinned(tensor) for tensor in tensors)


@pytest.mark.parametrize("error", [RuntimeError("no runtime"), AssertionError("not compiled")])
def test_a_runtime_that_raises_is_a_refusal(
    accelerator: FakeAccelerator, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse(number: int) -> bool:
        raise error

    accelerator.refuse = refuse
    tensor = new(MIB)
    assert _deepnvme.pin.is_pinned(tensor)
    assert str(error) in caplog.text


def test_an_interrupt_undoes_the_chunks(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_registration, "CHUNK_BYTES", MIB // 4)

    def interrupt(number: int) -> bool:
        if number == 3:
            raise KeyboardInterrupt
        return False

    accelerator.refuse = interrupt
    in_use = pinned_stats()["in_use"]
    with pytest.raises(KeyboardInterrupt):
        new(MIB)
    assert accelerator.ranges == {}
    assert pinned_stats()["in_use"] == in_use
    accelerator.refuse = lambda number: False
    tensor = new(MIB)
    assert len(accelerator.ranges) == 4  # it was offered again
    del tensor


@pytest.mark.parametrize("failing", [1, 2, 5])
def test_a_failing_chunk_undoes_the_others(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(host_registration, "CHUNK_BYTES", 300_000 // 4 // 4096 * 4096)
    accelerator.refuse = lambda number: number == failing
    tensor = new(300_000)
    assert accelerator.ranges == {}
    assert accelerator.registrations == failing
    assert _deepnvme.pin.is_pinned(tensor)


def test_chunks_cover_the_mapping_without_a_gap(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_registration, "CHUNK_BYTES", 3 * 4096)
    tensor = new(300_000)
    ranges = sorted(accelerator.ranges.items())
    assert ranges[0][0] == tensor.data_ptr()
    for (base, size), (following, _) in itertools.pairwise(ranges):
        assert base + size == following
        assert size <= 3 * 4096
    assert sum(size for _, size in ranges) == -(-300_000 // 4096) * 4096
    assert free_locked_tensor(tensor)
    assert accelerator.ranges == {}


def test_chunks_are_below_what_drivers_refuse() -> None:
    assert host_registration.CHUNK_BYTES < 512 << 30


def test_a_rollback_that_fails_keeps_the_memory(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_registration, "CHUNK_BYTES", 150_000 // 4096 * 4096)
    accelerator.refuse = lambda number: number == 2
    accelerator.keep = lambda number: number == 1
    tensor = new(300_000)
    assert len(accelerator.ranges) == 1
    assert free_locked_tensor(tensor)  # its second try to unregister works
    assert accelerator.ranges == {}


KEPT = """
import json, logging
import torch
from pinned_manager import empty_cache, free_locked_tensor, new_locked_tensor, pinned_stats
from pinned_manager import set_accelerator
from support.counters import status_kb
from support.fake_accelerator import FakeAccelerator
said = []
class Listener(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("pinned_manager").addHandler(Listener())
MIB = 1 << 20
accelerator = FakeAccelerator()
accelerator.keep = lambda number: True
set_accelerator(accelerator)
tensors = [new_locked_tensor(2 * MIB, torch.uint8) for _ in range(3)]
locked = status_kb("VmLck")
freed = [free_locked_tensor(tensor) for tensor in tensors]
tensors.clear()
empty_cache()
stats = pinned_stats()
print(json.dumps({
    "freed": freed, "unlocked": locked - status_kb("VmLck"), "said": len(said),
    "in_use": stats["in_use"], "cached": stats["cached"] // MIB, "faults": accelerator.faults,
}))
"""


def test_a_failed_unregistration_keeps_the_memory() -> None:
    answer = child_answer(KEPT)  # a process of its own: it is locked for good
    expected = {"freed": [True] * 3, "unlocked": 0, "said": 1}
    assert answer == {**expected, "in_use": 0, "cached": 6, "faults": []}


def test_memory_of_the_user(accelerator: FakeAccelerator) -> None:
    own = torch.empty(3 * MIB, dtype=torch.uint8)
    accelerator.looks_at_memory = False
    address = own.data_ptr()
    register, unregister = (
        host_registration.register_host_memory,
        host_registration.unregister_host_memory,
    )
    assert register(address, MIB)
    assert register(address, MIB)
    assert accelerator.registrations == 1
    with pytest.raises(ValueError, match=str(MIB)):
        register(address, 2 * MIB)
    assert unregister(address)
    assert not unregister(address)
    assert accelerator.ranges == {}
    for wrong in ((0, 1), (address, 0), (address, -1)):
        with pytest.raises(ValueError, match="no memory"):
            register(*wrong)
    with pytest.raises(TypeError):
        register("0", 1)  # type: ignore[arg-type]
    pinned = new(MIB)
    assert not unregister(pinned.data_ptr())
    assert accelerator.covers(pinned)


def test_memory_of_the_user_that_is_not_aligned_for_the_accelerator(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "pin_memory_alignment", lambda: 4096)
    address = torch.empty(3 * MIB, dtype=torch.uint8).data_ptr() // 4096 * 4096
    for wrong in ((address + 2048, MIB), (address, MIB + 1)):
        with pytest.raises(ValueError, match=r"must divide by 4096 bytes on fake"):
            host_registration.register_host_memory(*wrong)
    assert accelerator.registrations == 0


def test_an_accelerator_that_fails_to_let_go_is_asked_again(
    accelerator: FakeAccelerator, caplog: pytest.LogCaptureFixture
) -> None:
    """It may reach the memory still, so that it counts as registered."""

    def fail(number: int) -> bool:
        raise RuntimeError("the device hangs")

    accelerator.looks_at_memory = False
    own = torch.empty(3 * MIB, dtype=torch.uint8).data_ptr()
    assert host_registration.register_host_memory(own, MIB)
    accelerator.keep = fail
    assert host_registration.unregister_host_memory(own) is False
    assert accelerator.ranges == {own: MIB}
    accelerator.keep = lambda number: False
    assert host_registration.unregister_host_memory(own) is True
    assert accelerator.ranges == {}
    assert "the device hangs" in caplog.text
    assert accelerator.faults == []


def test_without_an_accelerator_nothing_is_registered() -> None:
    tensor = new(MIB)
    assert not host_registration.register_host_memory(tensor.data_ptr(), MIB)
    assert not host_registration.unregister_host_memory(tensor.data_ptr())


@pytest.mark.parametrize(
    ("value", "enabled"),
    [(None, True), ("", True)]
    + [(word, True) for word in ("1", "true", "YES", "On")]
    + [(word, False) for word in ("0", "False", "no", "OFF")],
)
def test_variable(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch, value: str | None, enabled: bool
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    set_accelerator(accelerator)  # the variable is read again
    tensor = new(MIB)
    assert accelerator.covers(tensor) is enabled
    assert bool(accelerator.registrations) is enabled


WRONG = """
import json, os
import torch, pinned_manager
from support.counters import status_kb
before = status_kb("VmLck")
said = []
for attempt in range(2):
    try:
        pinned_manager.new_locked_tensor(4096, torch.uint8)
    except ValueError as error:
        said.append(str(error))
os.environ["DS_PIN_MEMORY_REGISTER_DEVICE"] = "off"
pinned_manager.new_locked_tensor(4096, torch.uint8)
print(json.dumps([said, status_kb("VmLck") - before >= 4]))
"""


def test_a_wrong_value_is_an_error_before_anything_is_locked() -> None:
    said, works_later = child_answer(WRONG, environment={VARIABLE: "maybe"})
    assert len(said) == 2
    assert works_later
    for word in ("maybe", "yes", "off", VARIABLE):
        assert word in said[0]
