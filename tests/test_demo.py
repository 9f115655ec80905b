"""The demo tells the truth: equal only if each moment came back from disk, none kept in memory."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TINY = ("--steps", "2", "--dim", "64", "--layers", "1")
HANG_S = 120


def run_demo(*arguments: object, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, EXAMPLES / "train_with_nvme_states.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of examples/, imported as the script itself does."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


class Twins:
    """A model trained in memory and its twin with moments in `folder`, in several small groups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handle: Any, folder: Path) -> None:
        states = example("nvme_states", monkeypatch)
        monkeypatch.setattr(states, "GROUP_BYTES", 1024)
        self.in_memory = self._model()
        self.reference = torch.optim.AdamW(self.in_memory.parameters(), lr=0.01)
        self.on_disk = self._model()
        self.swapped = states.NvmeAdamW(self.on_disk.parameters(), handle, folder, lr=0.01)

    @staticmethod
    def _model() -> torch.nn.Module:
        torch.manual_seed(1)
        sizes = (3, 17, 33, 9, 5)
        return torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(sizes)))

    def step(self) -> None:
        for model, optimizer in (
            (self.in_memory, self.reference),
            (self.on_disk, self.swapped),
        ):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 12).view(4, 3)).square().mean().backward()
            optimizer.step()


@pytest.fixture
def twins(
    monkeypatch: pytest.MonkeyPatch, make_handle: Callable[..., Any], backend: str, directory: Path
) -> Twins:
    return Twins(monkeypatch, make_handle(backend), directory)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return example("train_with_nvme_states", monkeypatch)


@pytest.mark.not_sanitized("nearly all of it is training by torch")
def test_says_equal_and_leaves_nothing(backend: str, disk: Path) -> None:
    done = run_demo(*TINY, "--dir", disk, "--backend", backend)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Equal bit for bit" in done.stdout
    assert backend in done.stdout
    assert list(disk.iterdir()) == []


def test_same_without_asserts(disk: Path) -> None:
    done = run_demo(*TINY, "--dir", disk, options=("-O",))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Equal bit for bit" in done.stdout


def test_wrong_option_is_named() -> None:
    done = run_demo("--dim", "33")
    assert done.returncode == 2
    assert "multiple of 32" in done.stderr


def test_equal_after_each_step(twins: Twins, demo: ModuleType) -> None:
    assert len(twins.swapped.groups) > 3
    for _ in range(4):
        twins.step()
        found = demo.compare(twins.in_memory, twins.reference, twins.on_disk, twins.swapped)
        assert (found.parameters, found.moments, found.different) == (8, 16, [])


def test_no_moment_stays_in_memory(twins: Twins) -> None:
    for _ in range(2):
        twins.step()
        assert twins.swapped.bytes_in_optimizers() == 0
        for buffer in twins.swapped.buffers:
            assert bool(buffer.isnan().all())


def test_one_flipped_bit_on_disk_is_found(twins: Twins, demo: ModuleType) -> None:
    twins.step()
    group = twins.swapped.groups[1]
    data = bytearray(group.path.read_bytes())
    data[0] ^= 1
    group.path.write_bytes(data)
    found = demo.compare(twins.in_memory, twins.reference, twins.on_disk, twins.swapped)
    names = {id(p): name for name, p in twins.on_disk.named_parameters()}
    assert found.different == [f"exp_avg of {names[id(group.parameters[0])]}"]


def test_status_is_1_for_a_difference(demo: ModuleType) -> None:
    said: list[str] = []
    console = SimpleNamespace(print=said.append)
    assert demo.tell(demo.Comparison(2, 4, ["head.bias"]), console) == 1
    assert "NOT EQUAL" in said[0]
    assert "head.bias" in said[0]


def test_comparison_is_of_bytes(demo: ModuleType) -> None:
    zero, minus_zero = torch.tensor([0.0]), torch.tensor([-0.0])
    nan = torch.tensor([float("nan")])
    assert demo.same_bits(zero, zero.clone())
    assert demo.same_bits(nan, nan.clone())
    assert not demo.same_bits(zero, minus_zero)
    assert not demo.same_bits(zero, zero.double())
    assert not demo.same_bits(zero, zero.view(1, 1))
