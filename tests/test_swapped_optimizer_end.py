"""However a swapped optimizer ends, its files and its memory go (G-04, G-10)."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from aio.swap import SwappedOptimizer
from pinned_manager import pinned_stats
from support.child import run_child
from support.counters import until
from support.forks import expect_child_ok, fork_and
from support.swapped import give_gradients, made_parameters

pytestmark = pytest.mark.usefixtures("one_thread")


def used(disk: Path) -> SwappedOptimizer:
    params = made_parameters((4000,), (3,))
    swapped = SwappedOptimizer(
        params, torch.optim.Adam, swap_dir=disk, sub_group_bytes=1, cache_bytes=1 << 20
    )
    give_gradients(params, 0)
    swapped.step()
    return swapped


def test_close(disk: Path) -> None:
    swapped = used(disk)
    assert not swapped.closed
    swapped.close()
    swapped.close()
    assert swapped.closed
    assert list(disk.iterdir()) == []
    gc.collect()  # what other tests have left
    until(lambda: pinned_stats()["by_tag"].get("swap", 0) == 0, "the buffers are gone")
    for use in (swapped.step, swapped.state_dict, lambda: swapped.save(disk / "x")):
        with pytest.raises(RuntimeError, match="closed"):
            use()


@pytest.mark.parametrize("cycle", [False, True])
def test_dropping_it(disk: Path, cycle: bool) -> None:
    swapped = used(disk)
    if cycle:
        swapped.defaults["itself"] = swapped
    del swapped
    gc.collect()
    until(lambda: list(disk.iterdir()) == [], "the files are gone")
    until(lambda: pinned_stats()["by_tag"].get("swap", 0) == 0, "the buffers are gone")


def test_the_end_of_the_interpreter(disk: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "import test_swapped_optimizer_end as t\n"
        "kept = t.used(Path(sys.argv[1]))\n"
    )
    done = run_child(script, disk)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(disk.iterdir()) == []


def test_a_forked_child_owns_nothing(disk: Path) -> None:
    swapped = used(disk)

    def in_child() -> None:
        with pytest.raises(RuntimeError, match="forked"):
            swapped.step()
        swapped.close()

    expect_child_ok(fork_and(in_child))
    assert len(list(disk.iterdir())) == 1
    swapped.step()
    swapped.close()
    assert list(disk.iterdir()) == []
