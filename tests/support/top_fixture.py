"""Where processes have the sockets that deepnvme top asks at."""

from __future__ import annotations

from pathlib import Path

import pytest

from aio import endpoints


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of endpoints, of this test alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(endpoints, "directories", lambda: [tmp_path / "deepnvme"])
    return tmp_path / "deepnvme"
