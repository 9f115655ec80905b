"""Strided tensors: writes gather, reads scatter; an overlapping destination is refused (B-14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import locked, pattern, raw, tensor_of
from support.layouts import OFFSETS, MemoryDraw, memories, strided_layouts

BLOCKS = st.sampled_from([1, 7, 512, 513, 4096, 65536, 1 << 20])


@given(make=memories(strided_layouts()), offset=OFFSETS, block_size=BLOCKS)
def test_write_gathers(
    directory: Path, backend: str, make: MemoryDraw, offset: int, block_size: int
) -> None:
    path = directory / "file"
    path.unlink(missing_ok=True)
    with aio.aio_handle(backend=backend, block_size=block_size) as handle:
        memory = make(handle)
        before = memory.all_bytes()
        assert handle.sync_pwrite(memory.view, path, offset) == 1
        assert memory.all_bytes() == before
    expected = memory.gathered()
    assert path.read_bytes() == (bytes(offset) + expected if expected else b"")


@given(make=memories(strided_layouts()), offset=OFFSETS, block_size=BLOCKS)
def test_read_scatters(
    directory: Path, backend: str, make: MemoryDraw, offset: int, block_size: int
) -> None:
    path = directory / "file"
    with aio.aio_handle(backend=backend, block_size=block_size) as handle:
        memory = make(handle)
        data = pattern(memory.layout.nbytes, seed=offset)
        path.write_bytes(bytes(offset) + data + b"beyond")
        expected = memory.scattered(data)
        assert handle.submit_pread(memory.view, path, offset).result() == len(data)
        assert memory.all_bytes() == expected


@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "pinned"])
def test_a_large_transposed_matrix(
    directory: Path, backend: str, make_handle: Any, pinned: bool
) -> None:
    """Many staging blocks, whose borders fall inside of elements and of rows."""
    handle = make_handle(backend, block_size=99_999, intra_op_parallelism=2)
    rows, columns = 1037, 751
    nbytes = rows * columns * 4
    memory = locked(handle, nbytes) if pinned else torch.empty(nbytes, dtype=torch.uint8)
    matrix = memory.view(torch.float32).view(rows, columns)
    matrix.view(torch.int32).copy_(torch.arange(rows * columns).view(rows, columns))
    path = directory / "file"
    assert handle.sync_pwrite(matrix.t(), path, 5) == 1
    expected = matrix.numpy().T.copy()
    assert path.read_bytes() == bytes(5) + expected.tobytes()
    matrix.zero_()
    assert handle.sync_pread(matrix.t(), path, 5) == 1
    assert np.array_equal(matrix.numpy().T.view(np.int32), expected.view(np.int32))


def overlapping() -> dict[str, tuple[torch.Tensor, Any]]:
    """Memory, and a view of it whose elements share bytes."""
    base = torch.zeros(1000)
    window = np.lib.stride_tricks.as_strided
    views: dict[str, Any] = {
        "expand": base[:1].expand(5, 10),
        "expanded matrix": base[:6].view(2, 1, 3).expand(2, 4, 3),
        "as_strided": torch.as_strided(base, (10, 10), (5, 1)),
        "same twice": torch.as_strided(base, (2, 3), (0, 1)),
        "unfold": base.unfold(0, 8, 2),
        "numpy broadcast": window(base.numpy(), shape=(4, 3), strides=(0, 4)),
        "numpy window": window(base.numpy(), shape=(4, 3), strides=(4, 4)),
    }
    return {name: (base, view) for name, view in views.items()}


def test_an_overlapping_destination_is_refused(
    directory: Path, backend: str, make_handle: Any
) -> None:
    """Which element would a byte belong to? Said before any byte moves."""
    path = directory / "file"
    path.write_bytes(b"\xff" * 10_000)
    handle = make_handle(backend)
    for name, (base, target) in overlapping().items():
        items: list[Any] = [(bytearray(10), path), (target, path)]
        for call, arguments in (
            (handle.sync_pread, (target, path)),
            (handle.async_pread, (target, path)),
            (handle.submit_pread, (target, path)),
            (handle.pread_many, (items,)),
            (handle.submit_pread_many, (items,)),
        ):
            with pytest.raises(ValueError, match="overlap"):
                call(*arguments)
            assert handle.wait() == 0
            assert not bool(base.any()), name
            assert not any(items[0][0])
    assert handle.stats()["requests"]["read"] == 0


def test_an_overlapping_source_is_gathered(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    for name, (base, source) in overlapping().items():
        torch.arange(1000, dtype=torch.float32, out=base)
        expected = np.array(np.asarray(source))
        assert handle.sync_pwrite(source, directory / name) == 1
        assert (directory / name).read_bytes() == expected.tobytes(), name


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((1, 5), (0, 1)), ((5, 1, 2), (2, 0, 1)), ((1, 1), (0, 0)), ((0, 3), (0, 0)), ((3,), (1,))],
)
def test_a_stride_that_is_never_taken_overlaps_nothing(
    directory: Path,
    backend: str,
    make_handle: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> None:
    target = torch.as_strided(torch.zeros(100, dtype=torch.uint8), shape, strides)
    path = directory / "file"
    path.write_bytes(pattern(200))
    assert make_handle(backend).sync_pread(target, path) == 1
    assert raw(target) == pattern(200)[: target.numel()]


def test_backwards_arrays(directory: Path, backend: str, make_handle: Any) -> None:
    """Negative strides, which numpy has and torch has not."""
    handle = make_handle(backend)
    path = directory / "file"
    array = np.arange(5000, dtype=np.int32).reshape(50, 100)
    for view in (array[::-1], array[:, ::-1], array[::-2, ::-3], array[::-1].T):
        expected = view.copy()
        path.unlink(missing_ok=True)
        assert handle.sync_pwrite(view, path) == 1
        assert path.read_bytes() == expected.tobytes()
        room = np.zeros_like(array)
        steps = tuple(step for step in view.strides)
        start = view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        target = np.ndarray(view.shape, np.int32, buffer=room.data, offset=start, strides=steps)
        assert handle.sync_pread(target, path) == 1
        assert np.array_equal(target, expected)
        assert np.count_nonzero(room) == np.count_nonzero(expected)


LAZY: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Any], Any]]] = {
    "conj": (lambda t: t.conj(), lambda a: np.conj(a)),
    "neg": (lambda t: t.conj().imag, lambda a: np.conj(a).imag),
    "conj of a slice": (lambda t: t.conj()[1:500:3], lambda a: np.conj(a)[1:500:3]),
    "conj of imaginary": (lambda t: t.conj()[5:].imag, lambda a: -a[5:].imag),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_conjugation_is_not_lost(
    directory: Path, backend: str, make_handle: Any, name: str
) -> None:
    """The memory holds other values than the tensor: it is the tensor's that are written."""
    lazily, at_once = LAZY[name]
    base = torch.arange(20_000, dtype=torch.float32).to(torch.complex64) * (1 + 2j)
    view = lazily(base)
    assert view.is_conj() or view.is_neg()
    expected = at_once(base.numpy()).tobytes()
    handle = make_handle(backend, block_size=4096)
    ways: list[Callable[[Path], Any]] = [
        lambda path: handle.sync_pwrite(view, path),
        lambda path: (handle.async_pwrite(lazily(base), path), handle.wait()),
        lambda path: handle.submit_pwrite(lazily(base), path).result(),
        lambda path: handle.pwrite_many([(lazily(base), path)]),
    ]
    for index, write in enumerate(ways):
        write(directory / f"{index}")
        assert (directory / f"{index}").read_bytes() == expected
    # A read cannot leave in memory what the view would turn into the bytes of the file.
    before = raw(base)
    with pytest.raises(TypeError, match="resolve_"):
        handle.sync_pread(view, directory / "0")
    assert raw(base) == before


def test_resolved_views_are_ordinary(directory: Path, backend: str, make_handle: Any) -> None:
    base = torch.arange(20, dtype=torch.float32).to(torch.complex64) * (1 + 2j)
    handle = make_handle(backend)
    handle.sync_pwrite(base.conj().resolve_conj(), directory / "file")
    assert (directory / "file").read_bytes() == np.conj(base.numpy()).tobytes()
    handle.sync_pwrite(base.imag, directory / "imaginary")
    assert (directory / "imaginary").read_bytes() == base.numpy().imag.tobytes()


def test_channels_last(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    data = tensor_of(pattern(2 * 3 * 40 * 50 * 2)).view(torch.int16).view(2, 3, 40, 50)
    tensor = data.to(memory_format=torch.channels_last)
    assert not tensor.is_contiguous()
    handle.sync_pwrite(tensor, directory / "file")
    assert (directory / "file").read_bytes() == raw(data)
    back = torch.zeros_like(tensor)
    assert not back.is_contiguous()
    handle.sync_pread(back, directory / "file")
    assert torch.equal(back, data)
