"""What is recorded of a machine, and the room on it, where the kernel tells less than usual."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from aio.measure import machine, room
from aio.measure.harness import BenchError


def texts(**found: str) -> Callable[[Path], str]:
    """read_text() where files of these names are all that there is."""
    return lambda path: found.get(path.name, "")


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        ("processor\t: 0\nmodel name\t: Fast (R) CPU: 3 GHz\nflags\t: a b", "Fast (R) CPU: 3 GHz"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", platform.machine()),  # as on Arm
        ("", platform.machine()),
    ],
)
def test_the_processor(monkeypatch: pytest.MonkeyPatch, text: str, cpu: str) -> None:
    monkeypatch.setattr(machine, "read_text", texts(cpuinfo=text))
    assert machine.describe("program")["cpu"] == cpu


@pytest.mark.parametrize("model", ["", "FAST DISK 2T"])
def test_the_drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str) -> None:
    """Virtual ones have no model."""
    block = tmp_path / "sdx" / "sdx1"
    (tmp_path / "sdx" / "queue").mkdir(parents=True)
    (tmp_path / "sdx" / "queue" / "scheduler").write_text("[none] kyber\n")
    block.mkdir()
    if model:
        (tmp_path / "sdx" / "device").mkdir()
        (tmp_path / "sdx" / "device" / "model").write_text(f"{model}\n")
    monkeypatch.setattr(machine, "block_device_of", lambda folder: block)
    found = machine.describe_folder(tmp_path)
    assert (found["device"], found["scheduler"]) == ("sdx1", "[none] kyber")
    assert found.get("model", "") == model
    assert "model" in found or not model


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "read_text", texts(meminfo="MemTotal: 9 kB\nMemAvailable:  8 kB\n"))
    room.check_memory(8192)
    with pytest.raises(BenchError, match="available"):
        room.check_memory(8193)


@pytest.mark.parametrize("text", ["MemTotal:  9 kB\nMemFree: 1 kB\n", ""])
def test_memory_that_nobody_knows_of_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(room, "read_text", texts(meminfo=text))
    assert room.available_memory() is None
    room.check_memory(1 << 60)
