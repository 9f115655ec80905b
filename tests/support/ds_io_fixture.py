"""The fixture `ds_io`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ds_io import DsIo


@pytest.fixture
def ds_io(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> DsIo:
    """The command, on an empty folder of a drive."""
    return DsIo(disk, tmp_path / "result.json", capsys)
