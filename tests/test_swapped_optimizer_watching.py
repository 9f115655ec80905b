"""What a long save and a profiler show of a swapped optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from aio.swap import SwappedOptimizer
from support.swapped import give_gradients, made_parameters

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def params() -> list[torch.nn.Parameter]:
    return made_parameters((4000,), (4000,), (4000,))


def test_ranges_of_the_profiler(disk: Path, params: list[torch.nn.Parameter]) -> None:
    with SwappedOptimizer(params, torch.optim.Adam, swap_dir=disk, sub_group_bytes=1) as swapped:
        give_gradients(params, 0)
        swapped.step()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            swapped.step()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["swap.compute"] == 3
    assert counts["swap.wait_read"] == 2
    assert counts["swap.wait_write"] == 2
    assert counts["Optimizer.step#SwappedOptimizer.step"] == 1
    assert "Optimizer.step#Adam.step" not in counts


def test_a_bar(
    disk: Path, params: list[torch.nn.Parameter], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    with SwappedOptimizer(
        params, torch.optim.Adam, swap_dir=disk / "swap", sub_group_bytes=1
    ) as swapped:
        give_gradients(params, 0)
        swapped.step()
        swapped.save(disk / "quiet")
        assert capsys.readouterr() == ("", "")
        swapped.save(disk / "loud", progress=True)
        shown = capsys.readouterr().err
    assert "save" in shown
    assert "100%" in shown
    assert (disk / "loud").read_bytes() == (disk / "quiet").read_bytes()
