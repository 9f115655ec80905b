"""A store moves tensors from where they are: no second copy, nothing that grows (G-12, G-15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapStore
from pinned_manager import empty_cache, is_pinned, pinned_stats
from support.child import child_answer
from support.counters import until
from support.files import need_memory, need_room
from support.pinning import no_more_pins

MIB = 1 << 20

SCRIPT = """
import json, sys
import torch
from aio.swap import SwapStore
from support.counters import status_kb
mib = 1 << 20
large = [torch.ones(64 * mib // 4) for _ in range(4)]
small = [torch.ones(1000) for _ in range(16_000)]
with SwapStore(sys.argv[1]) as store:
    store.put("warm", [large[0][:3], small[0]]).result()
    store.get("warm").result()
    before = status_kb("VmHWM")
    for _ in range(2):
        store.put("large", large).result()
        store.put("small", small).result()
        store.get("large", large).result()
        store.get("small", small).result()
    print(json.dumps([before, status_kb("VmHWM")]))
"""


@pytest.mark.not_sanitized("their shadow memory is resident too")
def test_peak(disk: Path) -> None:
    """320 MiB through at most a few blocks; what objects and page tables take is allowed for."""
    need_memory(900 * MIB)
    need_room(disk, 900 * MIB)
    before, after = child_answer(SCRIPT, disk)
    assert (after - before) * 1024 < 100 * MIB


def test_without_memory_that_can_be_locked(disk: Path, make_handle: Any) -> None:
    """Ordinary memory, of the same content: for results, chunks and what is prefetched."""
    tensors = {
        "small": torch.arange(1000),
        "large": torch.arange(70_001, dtype=torch.bfloat16).reshape(1, -1),
    }
    with no_more_pins(), SwapStore(disk, make_handle()) as store:
        store.put("x", tensors).result()
        new = store.get("x").result()
        store.prefetch("x").result()
        for got in (new, store.get("x").result()):
            assert list(got) == list(tensors)
            assert all(torch.equal(got[name], tensors[name]) for name in tensors)
            assert not any(is_pinned(tensor) for tensor in got.values())
        assert pinned_stats()["by_tag"].get("swap", 0) == 0


def test_nothing_grows(disk: Path, make_handle: Any) -> None:
    tensors = [torch.ones(300_000), torch.ones(10)]
    with SwapStore(disk, make_handle()) as store:

        def nothing_is_held() -> bool:
            return "swap" not in pinned_stats()["by_tag"]

        def step(number: int) -> tuple[int, int, int]:
            store.put("a", tensors)
            store.put("b", tensors, in_place=True)
            store.prefetch("a").result()
            store.get("a").result()
            store.get("b", tensors).result()
            store.delete("a")
            store.flush().result()
            # The thread that has told the last result lets go of its memory after that.
            until(nothing_is_held, "memory that nobody refers to is given up")
            stats = store.stats()
            return stats["allocated"], stats["in_flight"], pinned_stats()["cached"]

        empty_cache()
        first = [step(number) for number in range(3)][-1]
        assert first[:2] == (store.stats()["allocated"], 0)
        assert [step(number) for number in range(50)][-1][:2] == first[:2]
        assert pinned_stats()["cached"] <= 2 * first[2]
