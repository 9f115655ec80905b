"""pytest plugin: a device whose tensors go through small blocks: few bytes are many of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import aio.device_transfer as device_transfer
from support.fake_device import BLOCK, FakeDevice, fake_device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """A device that the library knows during the test."""
    monkeypatch.setattr(device_transfer, "BLOCK_BYTES", BLOCK)
    with fake_device() as made:
        yield made
