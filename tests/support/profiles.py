"""Profiles that are saved where only the test looks for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aio import drives
from aio.options import HandleOptions
from aio.profiles import Optimum, Profile, drives_of, profile_path, save_profile

TUNED = HandleOptions(65536, 7, True, False, 2, "posix")


def profile_for(*directories: Path, options: HandleOptions = TUNED) -> Profile:
    return Profile(
        options=options,
        read=Optimum(replace(options, queue_depth=9), 3.5e9),
        write=None,
        directories=tuple(map(str, directories)),
        drives=drives_of(directories),
        created="2026-01-02T03:04:05+00:00",
        machine={"cores": 2},
    )


def saved(*directories: Path, options: HandleOptions = TUNED) -> Path:
    path = profile_path(directories)
    save_profile(profile_for(*directories, options=options), path)
    return path


def options_of(handle: Any) -> HandleOptions:
    return HandleOptions(
        handle.get_block_size(),
        handle.get_queue_depth(),
        handle.get_single_submit(),
        handle.get_overlap_events(),
        handle.get_intra_op_parallelism(),
        handle.backend,
    )


def only_uuids(monkeypatch: pytest.MonkeyPatch, folder: Path, devices: dict[str, str]) -> None:
    """udev knows these UUIDs, of block devices with these names, and no others."""
    folder.mkdir()
    for uuid, device in devices.items():
        (folder / uuid).symlink_to(f"../../{device}")
    monkeypatch.setattr(drives, "BY_UUID", folder)
