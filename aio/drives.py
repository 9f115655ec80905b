"""Which file system and which drive a directory is on."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BY_UUID = Path("/dev/disk/by-uuid")


def mount_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """File system type and source of the mount that holds `path` (proc_pid_mountinfo(5)).

    By the number of the mount: on btrfs and overlayfs that of the device is in no table. Both are
    "unknown" where /proc does not say.
    """
    descriptor = os.open(path, os.O_PATH)
    try:
        number = _field(Path(f"/proc/self/fdinfo/{descriptor}"), "mnt_id")
    finally:
        os.close(descriptor)
    found = (mount for mount in _mounts() if mount.number == number)
    return next(((mount.kind, mount.source) for mount in found), ("unknown", "unknown"))


def source_of_device(number: str) -> str:
    """The source of a mount whose files have this device number, "major:minor", or "unknown"."""
    return next((mount.source for mount in _mounts() if mount.device == number), "unknown")


class _Mount(NamedTuple):
    number: str
    device: str  # "major:minor"
    kind: str
    source: str


def _mounts() -> Iterator[_Mount]:
    """As proc_pid_mountinfo(5) has them."""
    for line in read_text(Path("/proc/self/mountinfo")).splitlines():
        fields, _, rest = line.partition(" - ")
        number, _, device = fields.split()[:3]
        kind, source = rest.split(" ")[:2]  # the source may be empty
        yield _Mount(number, device, kind, source)


def block_device_of(path: str | os.PathLike[str]) -> Path | None:
    """The directory in /sys of the block device (or partition) below `path`; None without one."""
    numbers = [os.stat(path).st_dev]
    try:
        source = os.stat(mount_of(path)[1])  # btrfs: st_dev is not the number of a device
    except OSError:
        pass  # a source that is not a file: "tmpfs", "server:/export"
    else:
        numbers += [source.st_rdev] if stat.S_ISBLK(source.st_mode) else []
    for number in numbers:
        block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
        if block.exists():
            return block.resolve()
    return None


def whole_drive(block: Path) -> Path:
    """The drive that a partition is on; it has the queue. Anything else is a whole one."""
    return block if (block / "queue").is_dir() else block.parent


def identity(path: str | os.PathLike[str]) -> dict[str, str]:
    """What tells the file system that holds `path` from every other one.

    The UUID of the file system and the serial number of the drive, since copies of a file system
    share the first. Where udev names no UUID: source, device number and fsid of the mount. Raises
    OSError for a path that there is not.
    """
    kind, source = mount_of(path)
    block = block_device_of(path)
    found = {"file_system": kind}
    if block is not None:
        drive = whole_drive(block)
        names = ("wwid", "serial", "device/wwid", "device/serial", "dm/uuid", "md/uuid")
        serials = (read_text(drive / name) for name in names)
        found["drive"] = next(filter(None, serials), "")
        found["model"] = read_text(drive / "device" / "model")
        uuid = _uuid_of(block)
        if uuid:
            return {**found, "uuid": uuid}
    device = os.stat(path).st_dev
    return {
        **found,
        "source": source,
        "device": f"{os.major(device)}:{os.minor(device)}",
        "fsid": f"{os.statvfs(path).f_fsid:x}",
    }


def read_text(path: Path) -> str:
    """The text of a file of /proc or /sys; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # not every device has every attribute


def _field(path: Path, name: str) -> str:
    for line in read_text(path).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""


def _uuid_of(block: Path) -> str:
    """The UUID of the file system on a block device, as udev has found it."""
    if not BY_UUID.is_dir():
        return ""
    for link in BY_UUID.iterdir():
        if link.resolve().name == block.name:
            return link.name
    return ""
