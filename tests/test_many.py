"""pread_many, pwrite_many: thousands of tensors in one call; each failure is listed."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import locked, pattern, raw, tensor_of
from support.in_flight import REFUSES_TEXT_ERRNO, TEXT, refuses_text

FILES = 500
COUNT = 2000
NBYTES = 4096


def test_hundreds_of_files(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    data = pattern(FILES * NBYTES)
    source = tensor_of(data).view(FILES, NBYTES)
    written = [(source[k], directory / f"{k}") for k in range(FILES)]
    assert handle.pwrite_many(written) == FILES
    for index in range(0, FILES, 17):
        expected = data[index * NBYTES : (index + 1) * NBYTES]
        assert (directory / f"{index}").read_bytes() == expected
    target = locked(handle, FILES * NBYTES).view(FILES, NBYTES)
    assert handle.pread_many((target[k], str(directory / f"{k}")) for k in range(FILES)) == FILES
    assert raw(target) == data
    assert handle.wait() == 0


def test_thousands_of_pieces_of_one_file(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, queue_depth=8)
    size = 1003
    data = pattern(COUNT * size)
    source = tensor_of(data).view(COUNT, size)
    path = directory / "file"
    order = np.random.default_rng(1).permutation(COUNT).tolist()
    assert handle.pwrite_many((source[k], path, k * size) for k in order) == COUNT
    assert path.read_bytes() == data
    target = torch.zeros(COUNT, size, dtype=torch.uint8)
    future = handle.submit_pread_many([(target[k], path, k * size) for k in order])
    assert isinstance(future, aio.IOFuture)
    assert future.result() == COUNT * size
    assert raw(target) == data


@given(
    sizes=st.lists(st.one_of(st.integers(0, 9000), st.sampled_from([0, 512, 4096])), max_size=40),
    three=st.booleans(),
    block_size=st.sampled_from([511, 4096, 65536]),
)
def test_any_mix_of_sizes(
    directory: Path, backend: str, sizes: list[int], three: bool, block_size: int
) -> None:
    ends = np.cumsum([0, *sizes]).tolist()
    data = pattern(ends[-1])
    path = directory / "file"
    path.write_bytes(b"")
    with aio.aio_handle(backend=backend, block_size=block_size) as handle:
        items: list[Any] = [(data[start:end], path, start) for start, end in pairwise(ends)]
        future = handle.submit_pwrite_many(items)
        assert future.result() == len(data)
        assert path.read_bytes() == data
        targets = [bytearray(size) for size in sizes]
        if three:
            reads: list[Any] = [
                [target, str(path), start] for target, start in zip(targets, ends, strict=False)
            ]
            assert handle.pread_many(reads) == len(sizes)
            assert b"".join(targets) == data
        elif all(sizes):
            reads = [(target, path) for target in targets]
            assert handle.pread_many(reads) == len(sizes)
            assert targets == [bytearray(data[:size]) for size in sizes]


def test_no_items(backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    assert handle.pread_many([]) == 0
    assert handle.pwrite_many(iter(())) == 0
    assert handle.submit_pread_many([]).result() == 0
    assert handle.submit_pwrite_many(()).result() == 0
    assert handle.submit_pwrite_many(()).done() is True


def test_every_failure_is_listed_and_the_others_are_done(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    bad = refuses_text()
    items: list[Any] = [(tensor_of(pattern(NBYTES, k)), directory / f"{k}") for k in range(50)]
    items.insert(7, (tensor_of(TEXT), bad))
    items.insert(23, (tensor_of(pattern(10)), directory / "missing" / "file"))
    items.append((tensor_of(pattern(10)), directory))
    for call in (handle.pwrite_many, lambda items: handle.submit_pwrite_many(items).result()):
        with pytest.raises(aio.AioError) as caught:
            call(items)
        found = {failure.filename: failure.errno for failure in caught.value.failures}
        assert found == {
            str(bad): REFUSES_TEXT_ERRNO,
            str(directory / "missing" / "file"): errno.ENOENT,
            str(directory): errno.EISDIR,
        }
        for index in range(50):
            path = directory / f"{index}"
            assert path.read_bytes() == pattern(NBYTES, index)
            path.unlink()
        assert handle.wait() == 0


def test_reads_beyond_the_end_are_listed(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    path.write_bytes(pattern(NBYTES))
    good = [torch.zeros(100, dtype=torch.uint8) for _ in range(10)]
    short = torch.full((100,), 0x5A, dtype=torch.uint8)
    items = [(tensor, path, 7 * k) for k, tensor in enumerate(good)]
    items.insert(3, (short, path, NBYTES - 99))
    with pytest.raises(aio.AioError) as caught:
        handle.pread_many(items)
    (failure,) = caught.value.failures
    assert (failure.errno, failure.offset, failure.nbytes) == (errno.ENODATA, NBYTES - 99, 100)
    for index, tensor in enumerate(good):
        assert raw(tensor) == pattern(NBYTES)[7 * index : 7 * index + 100]
    assert raw(short) == b"\x5a" * 100


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ((b"x",), ValueError),
        ((b"x", "name", 0, 0), ValueError),
        (3, TypeError),
        ((b"x", 1.5), TypeError),
        ((None, "name"), TypeError),
        ((b"x", "name", -1), ValueError),
        ((b"x", "name", "0"), TypeError),
    ],
    ids=["one", "four", "no tuple", "float name", "no buffer", "negative", "string offset"],
)
def test_a_wrong_item_starts_nothing(
    directory: Path, backend: str, make_handle: Any, item: Any, error: type[Exception]
) -> None:
    """An argument error comes before any file is opened, those of the other items included."""
    handle = make_handle(backend)
    items = [(b"fine", directory / "fine"), item, (b"fine", directory / "also")]
    for call in (handle.pwrite_many, handle.submit_pwrite_many):
        with pytest.raises(error):
            call(items)
    assert list(directory.iterdir()) == []
    assert handle.wait() == 0


def test_an_iterable_that_raises(directory: Path, backend: str, make_handle: Any) -> None:
    def items() -> Any:
        yield b"fine", directory / "fine"
        raise LookupError

    handle = make_handle(backend)
    with pytest.raises(LookupError):
        handle.pwrite_many(items())
    assert list(directory.iterdir()) == []


def test_one_offset_out_of_range_starts_nothing(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    items = [(b"fine", directory / "fine", 0), (b"fine", directory / "also", 2**63 - 2)]
    with pytest.raises(ValueError, match="offset"):
        handle.pwrite_many(items)
    assert list(directory.iterdir()) == []
