"""The accelerator of the process: the first that torch has, found without starting a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from pinned_manager import accelerators
from pinned_manager.accelerators import get_accelerator, set_accelerator
from pinned_manager.accelerators.cpu import CpuAccelerator
from support.child import child_answer
from support.fake_accelerator import FakeAccelerator
from support.fake_runtime import FakeModule


@pytest.fixture(autouse=True)
def look_again() -> Iterator[None]:
    set_accelerator(None)
    yield
    set_accelerator(None)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """torch has these devices available, and no others."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int("cuda" in names))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in names)
    for name in ("xpu", "npu", "hpu"):
        module = FakeModule()
        module.is_available = lambda name=name: name in names  # type: ignore[misc, assignment]
        monkeypatch.setattr(torch, name, module, raising=False)


@pytest.mark.parametrize("name", ["cuda", "xpu", "npu", "hpu", "mps"])
def test_the_one_that_is_available(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    only(monkeypatch, name)
    assert get_accelerator().name == name
    assert get_accelerator() is get_accelerator()


def test_the_first_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "mps", "npu", "xpu")
    assert get_accelerator().name == "xpu"


def test_none(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    assert isinstance(get_accelerator(), CpuAccelerator)


def test_set() -> None:
    mine = FakeAccelerator()
    set_accelerator(mine)
    assert get_accelerator() is mine
    with pytest.raises(TypeError, match="Accelerator"):
        set_accelerator("cuda")  # type: ignore[arg-type]
    assert get_accelerator() is mine
    set_accelerator(None)
    assert get_accelerator() is not mine


def test_looked_for_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    looked: list[int] = []
    started = threading.Barrier(8)

    def count() -> int:
        looked.append(1)
        return 0

    monkeypatch.setattr(torch.cuda, "device_count", count)
    found: list[accelerators.Accelerator] = []

    def look() -> None:
        started.wait()
        found.append(get_accelerator())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looked) == 1
    assert len(set(map(id, found))) == 1


NOTHING_STARTS = """
import json
import torch
started = []
for module in (torch.cuda, torch.xpu):
    module._lazy_init = lambda: started.append("init")
torch.cuda.cudart = lambda: started.append("cudart")
import pinned_manager
pinned_manager.is_pinned(torch.ones(1))
pinned_manager.get_accelerator()
print(json.dumps(started))
"""


def test_no_device_is_started_by_import_or_by_looking() -> None:
    assert child_answer(NOTHING_STARTS) == []


class Lock:
    """Somebody else has it until this thread asks for it, and does something before."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.first = first

    def __enter__(self) -> None:
        self.first()

    def __exit__(self, *exception: object) -> None:
        return


def test_one_that_was_set_while_this_thread_waited_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = FakeAccelerator()
    monkeypatch.setattr(
        accelerators, "_lock", Lock(lambda: setattr(accelerators, "_current", mine))
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("looked for"))
    assert get_accelerator() is mine


def test_one_that_is_forgotten_as_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given all the same: nobody gets none."""

    class Forgetting(Lock):
        def __exit__(self, *exception: object) -> None:
            accelerators._current = None

    only(monkeypatch, "xpu")
    monkeypatch.setattr(accelerators, "_lock", Forgetting(lambda: None))
    assert get_accelerator().name == "xpu"
