"""An empty pinned scratch takes once its size: no second buffer, no source that stays (E-15)."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from pinned_manager import pin_memory
from support.child import child_answer
from support.pinning import VARIABLE, pinning_accelerator

SIZE = 256 << 20

# Only a process that has done nothing else can tell: what others freed would be used again.
PEAKS = """
import json, os, sys, torch
import pinned_manager as pm
from support.counters import status_kb
size = int(sys.argv[1])
shape = (size // 4096, 4096)

def peak(backend, make):
    "The most that was resident (VmHWM, which writing 5 resets), and whether it is pinned."
    os.environ["DS_PIN_MEMORY_BACKEND"] = backend
    pm.empty_cache()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = status_kb("VmRSS")
    scratch = make()
    if backend == "torch":
        scratch.fill_(1)
    return [(status_kb("VmHWM") - before) * 1024 / size, pm.is_pinned(scratch)]

template = lambda: torch.empty(shape, dtype=torch.uint8)
pm.pin_memory(torch.ones(1))
answer = {
    "pin_empty": peak("native", lambda: pm.pin_empty(shape, dtype=torch.uint8)),
    "pin_empty_like": peak("native", lambda: pm.pin_empty_like(template())),
    "no copy": peak("native", lambda: pm.pin_memory(template(), make_copy=False)),
    "flat": peak("native", lambda: pm.pin_memory(template().t(), False, match_shape=False)),
    "torch": peak("torch", lambda: pm.pin_memory(template(), make_copy=False)),
    "copy": peak("native", lambda: pm.pin_memory(template().fill_(1))),
}
print(json.dumps(answer))
"""


@pytest.mark.not_sanitized("their shadow memory is resident too")
def test_one_buffer() -> None:
    """The copy shows that the figure can tell: with its source there are two buffers."""
    answer = child_answer(PEAKS, SIZE)
    peaks = {how: peak for how, (peak, _) in answer.items()}
    assert peaks.pop("copy") >= 1.98
    assert {how: peak for how, peak in peaks.items() if not 0.99 < peak < 1.02} == {}
    pinned = {how for how, (_, pinned) in answer.items() if pinned}
    assert pinned == answer.keys() if torch.cuda.is_available() else answer.keys() - {"torch"}


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("make_copy", [True, False])
def test_the_source_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, backend: str, make_copy: bool
) -> None:
    monkeypatch.setenv(VARIABLE, backend)
    with pinning_accelerator(monkeypatch):
        source = torch.ones(1000)
        gone = weakref.ref(source.untyped_storage())
        pinned = pin_memory(source, make_copy=make_copy)
        del source
        gc.collect()
        assert gone() is None
        assert pinned.numel() == 1000
