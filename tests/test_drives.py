"""What is known of file systems and drives; nothing is guessed where /proc or udev is silent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aio import drives, top
from support.profiles import only_uuids

NEVER = "4095:1048575"  # the highest numbers there can be


def test_without_proc(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a chroot: the number of the device still tells file systems apart."""
    read = Path.read_text

    def hide(path: Path) -> str:
        if path.is_relative_to("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", hide)
    assert drives.mount_of(disk) == ("unknown", "unknown")
    number = os.stat(disk).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    assert drives.source_of_device(device) == "unknown"
    monkeypatch.setattr(drives, "BY_UUID", disk / "none")
    found = drives.identity(disk)
    assert (found["file_system"], found["device"]) == ("unknown", device)


def test_a_descriptor_whose_mount_is_not_told(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fdinfo has had the number since Linux 3.15."""
    read = drives.read_text
    monkeypatch.setattr(
        drives, "read_text", lambda path: "pos:\t0" if "fdinfo" in str(path) else read(path)
    )
    assert drives.mount_of(disk) == ("unknown", "unknown")


def test_a_device_that_nothing_is_mounted_from() -> None:
    assert drives.source_of_device(NEVER) == "unknown"
    assert top.device_name(NEVER) == "unknown"


def test_a_mount_without_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """mount(2) takes an empty one, and then its options are what follows."""
    line = "36 25 0:41 / /mnt/a\\040-\\040b rw shared:1 - tmpfs  rw,size=8k\n"
    other = "37 25 0:42 / /mnt/b rw - ext4 /dev/loop7 rw\n"
    monkeypatch.setattr(drives, "read_text", lambda path: (line + other).strip())
    assert drives.source_of_device("0:41") == ""
    assert drives.source_of_device("0:42") == "/dev/loop7"


@pytest.mark.parametrize("ours", [True, False])
def test_uuids_of_other_drives(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    block = drives.block_device_of(disk)
    if block is None:
        pytest.skip(f"{disk} is on no block device")
    devices = {f"of-another-{number}": f"{block.name}{number}" for number in range(8)}
    if ours:
        devices["of-ours"] = block.name
    only_uuids(monkeypatch, tmp_path / "by-uuid", devices)
    found = drives.identity(disk)
    assert found.get("uuid") == ("of-ours" if ours else None)
    assert ("device" in found) is not ours
