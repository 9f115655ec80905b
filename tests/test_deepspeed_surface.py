"""Names, arguments, their order and defaults, and return values are those of DeepSpeed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import pattern, raw, tensor_of

NBYTES = 10_001


def test_what_is_exported() -> None:
    for name in (
        *("aio_handle", "pin_handle", "IOFuture", "AioError", "PinError"),
        *("available_backends", "__version__"),
    ):
        assert hasattr(aio, name), name
        assert name in aio.__all__
    assert issubclass(aio.AioError, OSError)
    assert issubclass(aio.PinError, MemoryError)
    assert "posix" in aio.available_backends()


def getters(handle: Any) -> tuple[Any, ...]:
    return (
        handle.get_block_size(),
        handle.get_queue_depth(),
        handle.get_single_submit(),
        handle.get_overlap_events(),
        handle.get_intra_op_parallelism(),
        handle.get_alignment(),
    )


def test_defaults() -> None:
    with aio.aio_handle() as handle:
        assert getters(handle) == (1048576, 128, False, True, 1, 512)


def test_options_by_position() -> None:
    with aio.aio_handle(4096, 7, True, False, 3) as handle:
        assert getters(handle) == (4096, 7, True, False, 3, 1536)


def test_options_by_name() -> None:
    options: dict[str, Any] = {
        "intra_op_parallelism": 2,
        "overlap_events": False,
        "single_submit": True,
        "queue_depth": 5,
        "block_size": 999,
    }
    with aio.aio_handle(**options) as handle:
        assert getters(handle) == (999, 5, True, False, 2, 1024)


def test_the_engine_is_a_keyword_only() -> None:
    make: Any = aio.aio_handle
    with pytest.raises(TypeError):
        make(4096, 7, True, False, 3, "posix")


@pytest.fixture
def written(directory: Path) -> Path:
    path = directory / "file"
    path.write_bytes(pattern(NBYTES))
    return path


def fresh() -> torch.Tensor:
    return torch.zeros(NBYTES, dtype=torch.uint8)


def test_read(written: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    for validate in (False, True):
        buffer = fresh()
        assert handle.read(buffer, str(written), validate) == 0
        assert raw(buffer) == pattern(NBYTES)
    part = fresh()[:100]
    assert handle.read(part, str(written), False, 17) == 0
    assert raw(part) == pattern(NBYTES)[17:117]
    assert handle.read(buffer=part, filename=str(written), validate=True, file_offset=18) == 0
    assert raw(part) == pattern(NBYTES)[18:118]
    with pytest.raises(TypeError):
        handle.read(part, str(written))


def test_write(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    data = tensor_of(pattern(NBYTES))
    assert handle.write(data, str(path), True) == 0
    assert path.read_bytes() == pattern(NBYTES)
    assert handle.write(data, str(path), False, 7) == 0
    assert path.read_bytes() == pattern(NBYTES)[:7] + pattern(NBYTES)
    assert handle.write(buffer=data, filename=str(path), validate=True, file_offset=3) == 0
    assert path.read_bytes()[3 : NBYTES + 3] == pattern(NBYTES)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        handle.write(data, str(path))


def test_pread(written: Path, backend: str, make_handle: Any) -> None:
    """`async` is a keyword of Python: by position, or by dictionary."""
    handle = make_handle(backend)
    name = str(written)
    buffer = fresh()
    assert handle.pread(buffer, name, False, False) == 1
    assert raw(buffer) == pattern(NBYTES)
    part = fresh()[:100]
    assert handle.pread(part, name, True, False, 17) == 1
    assert raw(part) == pattern(NBYTES)[17:117]
    assert handle.pread(buffer=part, filename=name, validate=True, **{"async": False}) == 1
    assert raw(part) == pattern(NBYTES)[:100]
    targets = [fresh()[:100] for _ in range(3)]
    assert handle.pread(targets[0], name, False, True) == 0
    assert handle.pread(targets[1], name, True, True, 5) == 0
    assert handle.pread(targets[2], name, False, file_offset=9, **{"async": True}) == 0
    assert handle.wait() == 3
    for target, start in zip(targets, (0, 5, 9), strict=True):
        assert raw(target) == pattern(NBYTES)[start : start + 100]
    with pytest.raises(TypeError):
        handle.pread(part, name, False)


def test_pwrite(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    data = tensor_of(pattern(NBYTES))
    assert handle.pwrite(data, str(path), False, False) == 1
    assert handle.pwrite(data, str(path), True, False, NBYTES) == 1
    assert path.read_bytes() == 2 * pattern(NBYTES)
    assert handle.pwrite(data, str(path), False, True) == 0
    assert handle.pwrite(data, str(path), True, True, 2 * NBYTES) == 0
    options = {"buffer": data, "filename": str(path), "validate": True, "async": True}
    assert handle.pwrite(**options, file_offset=3 * NBYTES) == 0
    assert handle.wait() == 3
    assert path.read_bytes() == 4 * pattern(NBYTES)
    with pytest.raises(TypeError):
        handle.pwrite(data, str(path), False)


def test_sync(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = str(directory / "file")
    data, buffer = tensor_of(pattern(NBYTES)), fresh()
    assert handle.sync_pwrite(data, path) == 1
    assert handle.sync_pwrite(data, path, 50) == 1
    assert handle.sync_pwrite(buffer=data, filename=path, file_offset=60) == 1
    assert handle.sync_pread(buffer, path, 60) == 1
    assert raw(buffer) == pattern(NBYTES)
    assert handle.sync_pread(buffer=buffer, filename=path, file_offset=0) == 1
    assert raw(buffer)[:50] == pattern(NBYTES)[:50]


def test_async(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = str(directory / "file")
    data, buffer = tensor_of(pattern(NBYTES)), fresh()
    assert handle.async_pwrite(data, path) == 0
    assert handle.async_pwrite(data, path, NBYTES) == 0
    assert handle.async_pwrite(buffer=data, filename=path, file_offset=2 * NBYTES) == 0
    assert handle.wait() == 3
    assert handle.async_pread(buffer, path, NBYTES) == 0
    assert handle.wait() == 1
    assert raw(buffer) == pattern(NBYTES)
    assert handle.async_pread(buffer=buffer[:9], filename=path, file_offset=1) == 0
    assert handle.async_pread(buffer[10:19], path) == 0
    assert handle.wait() == 2
    assert raw(buffer[:9]) == pattern(NBYTES)[1:10]
    assert raw(buffer[10:19]) == pattern(NBYTES)[:9]


def test_an_open_descriptor_in_place_of_a_name(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    data, buffer = tensor_of(pattern(NBYTES)), fresh()
    with (directory / "file").open("wb+") as file:
        assert handle.async_pwrite(data, file.fileno()) == 0
        assert handle.async_pwrite(data, file.fileno(), NBYTES) == 0
        assert handle.wait() == 2
        assert handle.sync_pread(buffer, file.fileno(), NBYTES) == 1
    assert raw(buffer) == pattern(NBYTES)


@pytest.mark.parametrize("make", [aio.aio_handle, aio.pin_handle])
def test_pinned_tensors(make: Any) -> None:
    handle = make()
    example = torch.empty((2, 3), dtype=torch.bfloat16)
    for tensor in (
        handle.new_cpu_locked_tensor(100, example),
        handle.new_cpu_locked_tensor(num_elem=100, example_tensor=example),
        handle.new_cpu_locked_tensor(num_elem=100, example_tenosr=example),  # DeepSpeed's spelling
        handle.new_cpu_locked_tensor(100, example_tenosr=example),
    ):
        assert (tensor.shape, tensor.dtype) == ((100,), torch.bfloat16)
        assert handle.is_pinned(tensor) is True
        assert handle.is_pinned(buffer=tensor) is True
        assert handle.free_cpu_locked_tensor(tensor) is True
        assert handle.free_cpu_locked_tensor(tensor) is False
        assert handle.is_pinned(tensor) is False
    for wrong in (
        {},
        {"num_elem": 1},
        {"num_elem": 1, "example": example},
    ):
        with pytest.raises(TypeError):
            handle.new_cpu_locked_tensor(**wrong)


def test_freeing_by_keyword(make_handle: Any) -> None:
    """The two kinds of handle name the argument differently."""
    pins, handle = aio.pin_handle(), make_handle()
    other = handle.new_cpu_locked_tensor(10, torch.empty(0))
    assert handle.free_cpu_locked_tensor(tensor=other) is True
    example = torch.empty(0)
    first, second = (pins.new_cpu_locked_tensor(10, example) for _ in range(2))
    assert pins.free_cpu_locked_tensor(locked_tensor=first) is True
    assert pins.free_cpu_locked_tensor_by_ptr(address=second.data_ptr()) is True


def test_writes_never_truncate(directory: Path, backend: str, make_handle: Any) -> None:
    path = directory / "file"
    path.write_bytes(pattern(NBYTES, 1))
    path.chmod(0o644)
    assert make_handle(backend).sync_pwrite(tensor_of(pattern(100)), str(path), 50) == 1
    expected = bytearray(pattern(NBYTES, 1))
    expected[50:150] = pattern(100)
    assert path.read_bytes() == bytes(expected)
    assert path.stat().st_mode & 0o777 == 0o644
