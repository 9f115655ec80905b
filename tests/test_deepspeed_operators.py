"""The modules that DeepSpeed's builders load have its functions, defaults, keywords and returns."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from aio.deepspeed import operators
from support.buffers import pattern, raw, tensor_of

NBYTES = 10_001
OPTIONS = (4096, 8, False, True)  # block size, queue depth, single submit, overlap events


def test_what_the_modules_have() -> None:
    assert set(operators.MODULES) == {"async_io", "pin_memory"}
    for name in ("aio_handle", "aio_read", "aio_write", "deepspeed_memcpy"):
        assert callable(getattr(operators.async_io, name))
    assert operators.pin_memory.pin_handle is aio.pin_handle
    for module in operators.MODULES.values():  # DeepSpeed opens __file__ as a shared library
        assert not hasattr(module, "__file__")


def test_defaults_of_the_handle() -> None:
    with operators.aio_handle() as handle:
        assert isinstance(handle, aio.aio_handle)
        assert handle.get_block_size() == 1048576
        assert handle.get_queue_depth() == 128
        assert handle.get_single_submit() is False
        assert handle.get_overlap_events() is False
        assert handle.get_intra_op_parallelism() == 1
        assert handle.get_alignment() == 512


@pytest.mark.parametrize("validate", [False, True])
def test_a_whole_file(directory: Path, validate: bool) -> None:
    path = str(directory / "file")
    assert operators.aio_write(tensor_of(pattern(NBYTES)), path, *OPTIONS, validate) == 0
    assert Path(path).read_bytes() == pattern(NBYTES)
    buffer = torch.zeros(NBYTES, dtype=torch.uint8)
    assert operators.aio_read(buffer, path, *OPTIONS, validate) == 0
    assert raw(buffer) == pattern(NBYTES)


def test_failures_are_errors_and_never_minus_one(directory: Path) -> None:
    missing = str(directory / "missing" / "file")
    buffer = torch.zeros(NBYTES, dtype=torch.uint8)
    for call in (operators.aio_read, operators.aio_write):
        with pytest.raises(aio.AioError) as raised:
            call(buffer, missing, *OPTIONS, False)
        assert raised.value.errno == errno.ENOENT
    (directory / "short").write_bytes(pattern(NBYTES - 1))
    with pytest.raises(aio.AioError):
        operators.aio_read(buffer, str(directory / "short"), *OPTIONS, False)


def test_descriptors_by_position_and_by_name(directory: Path) -> None:
    path = directory / "file"
    data = tensor_of(pattern(NBYTES))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with operators.aio_handle() as handle:
            assert handle.async_pwrite(data, descriptor, 0) == 0
            assert handle.async_pwrite(data, fd=descriptor, file_offset=NBYTES) == 0
            assert handle.async_pwrite(buffer=data, filename=str(path), file_offset=2 * NBYTES) == 0
            assert handle.wait() == 3
            call: Any = handle.async_pwrite
            for wrong in ({}, {"filename": str(path), "fd": descriptor}):
                with pytest.raises(TypeError):
                    call(data, **wrong)
            assert handle.wait() == 0
    finally:
        os.close(descriptor)
    assert path.read_bytes() == 3 * pattern(NBYTES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
def test_memcpy(dtype: torch.dtype) -> None:
    """Every dtype and layout; DeepSpeed's copies so many float32 as the first dimension says."""
    source = torch.arange(60).to(dtype).view(6, 10)
    target = torch.zeros(10, 6, dtype=dtype).t()  # not contiguous: DeepSpeed's fills a copy of it
    assert operators.deepspeed_memcpy(target, source) == 0
    assert torch.equal(target, source)
    flat = torch.zeros(60, dtype=dtype)
    assert operators.deepspeed_memcpy(flat, source) == 0
    assert torch.equal(flat, source.view(-1))


def test_memcpy_refuses_what_does_not_fit() -> None:
    target = torch.zeros(4)
    for source in (torch.ones(5), torch.ones(3), torch.ones(4, dtype=torch.float64)):
        with pytest.raises(ValueError, match="same"):
            operators.deepspeed_memcpy(target, source)
    assert torch.equal(target, torch.zeros(4))
