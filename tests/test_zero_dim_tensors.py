"""A tensor without dimensions is one element; one without data is refused (B-16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import locked, tensor_of
from support.files import contents


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8, torch.bool])
def test_scalar(directory: Path, backend: str, make_handle: Any, dtype: torch.dtype) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    scalar = torch.tensor(1.0).to(dtype)
    want = scalar.reshape(1).view(torch.uint8).numpy().tobytes()
    assert scalar.dim() == 0
    assert handle.sync_pwrite(scalar, str(path), 3) == 1
    assert contents(path) == bytes(3) + want
    back = torch.tensor(0.0).to(dtype)
    assert handle.sync_pread(back, str(path), 3) == 1
    assert back.item() == scalar.item()
    assert handle.is_pinned(back) is False


def test_scalar_in_a_pinned_region(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    region = locked(handle, 64).fill_(0)
    element = region.view(torch.float32)[5]
    path.write_bytes(tensor_of(b"\x00\x00\x60\x40").numpy().tobytes())
    assert element.dim() == 0
    assert handle.sync_pread(element, str(path)) == 1
    assert region.view(torch.float32).tolist() == [0.0] * 5 + [3.5] + [0.0] * 10
    assert handle.is_pinned(element) is True


def test_requires_grad(directory: Path, backend: str, make_handle: Any) -> None:
    """Parameters are the point of it all."""
    handle = make_handle(backend)
    path = directory / "file"
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    assert handle.sync_pwrite(parameter, str(path)) == 1
    assert contents(path) == parameter.detach().numpy().tobytes()
    back = torch.nn.Parameter(torch.zeros(3))
    assert handle.sync_pread(back, str(path)) == 1
    assert back.tolist() == [1.0, 2.0, 3.0]
    assert back.requires_grad


@pytest.mark.parametrize("left", [0, 4, 399])
def test_storage_released_under_the_tensor(
    directory: Path, backend: str, make_handle: Any, left: int
) -> None:
    """The placeholder of a swapped-out tensor keeps its shape and has no bytes behind it."""
    handle = make_handle(backend)
    written, there = directory / "written", directory / "there"
    there.write_bytes(bytes(400))
    hollow = torch.ones(100)
    hollow.untyped_storage().resize_(left)
    ways = [
        lambda: handle.sync_pwrite(hollow, str(written)),
        lambda: handle.async_pwrite(hollow, str(written)),
        lambda: handle.submit_pwrite(hollow, str(written)),
        lambda: handle.pwrite_many([(hollow, str(written))]),
        lambda: handle.sync_pread(hollow, str(there)),
        lambda: handle.async_pread(hollow, str(there)),
        lambda: handle.submit_pread(hollow, str(there)),
        lambda: handle.pread_many([(hollow, str(there))]),
    ]
    try:
        for way in ways:
            with pytest.raises((ValueError, TypeError)):
                way()
    finally:
        # Should the test fail, pytest shows the tensor: let there be something to show.
        hollow.untyped_storage().resize_(400)
    assert not written.exists()
