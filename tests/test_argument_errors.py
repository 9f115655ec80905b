"""A wrong argument: the message has value, limit and remedy, and nothing has happened (A-15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aio
from support.buffers import pattern, raw
from support.child import run_child

OPTIONS = [
    ("block_size", 0),
    ("block_size", -1),
    ("block_size", 2**62),
    ("queue_depth", 0),
    ("queue_depth", -5),
    ("queue_depth", 100_000),
    ("queue_depth", 2**40),
    ("intra_op_parallelism", 0),
    ("intra_op_parallelism", -1),
    ("intra_op_parallelism", 100_000),
]


@pytest.mark.parametrize(("name", "value"), OPTIONS)
def test_options_out_of_range(name: str, value: int) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name) as caught:
        aio.aio_handle(**options)
    said = str(caught.value)
    assert str(value) in said
    others = said.replace(str(value), "")
    assert any(character.isdigit() for character in others), "no limit"
    assert ";" in said, "no remedy"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("block_size", value) for value in (1.5, "4096", [4096])),
        *(("queue_depth", value) for value in (1.5, "8")),
        *(("intra_op_parallelism", value) for value in (1.5, "2")),
        ("thread_count", 4),
    ],
)
def test_options_of_a_wrong_type(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(TypeError):
        aio.aio_handle(**options)


def test_an_engine_that_is_none() -> None:
    with pytest.raises(ValueError, match="no_such_engine") as caught:
        aio.aio_handle(backend="no_such_engine")
    for name in ("auto", "io_uring", "libaio", "posix"):
        assert name in str(caught.value)


def test_an_engine_that_is_none_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPNVME_BACKEND", "no_such_engine")
    with pytest.raises(ValueError, match="no_such_engine"):
        aio.aio_handle()
    with aio.aio_handle(backend="posix") as handle:
        assert handle.backend == "posix"


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setenv("DEEPNVME_BACKEND", backend)
    with aio.aio_handle() as handle:
        assert handle.backend == backend
    with aio.aio_handle(backend="posix") as handle:
        assert handle.backend == "posix"


def calls(handle: Any, buffer: Any, path: Any, offset: Any = 0) -> dict[str, Any]:
    """Every way to make one request."""
    return {
        "read": lambda: handle.read(buffer, path, False, offset),
        "write": lambda: handle.write(buffer, path, False, offset),
        "pread": lambda: handle.pread(buffer, path, False, False, offset),
        "pwrite": lambda: handle.pwrite(buffer, path, False, True, offset),
        "sync_pread": lambda: handle.sync_pread(buffer, path, offset),
        "sync_pwrite": lambda: handle.sync_pwrite(buffer, path, offset),
        "async_pread": lambda: handle.async_pread(buffer, path, offset),
        "async_pwrite": lambda: handle.async_pwrite(buffer, path, offset),
        "submit_pread": lambda: handle.submit_pread(buffer, path, offset),
        "submit_pwrite": lambda: handle.submit_pwrite(buffer, path, offset),
        "pread_many": lambda: handle.pread_many([(buffer, path, offset)]),
        "pwrite_many": lambda: handle.pwrite_many([(buffer, path, offset)]),
        "submit_pread_many": lambda: handle.submit_pread_many([(buffer, path, offset)]),
        "submit_pwrite_many": lambda: handle.submit_pwrite_many([(buffer, path, offset)]),
    }


def expect(handle: Any, directory: Path, ways: dict[str, Any], error: Any, *said: str) -> None:
    """Each way raises `error` saying all of `said`; no file appears and nothing is pending."""
    before = sorted(directory.iterdir())
    requests = handle.stats()["requests"]
    for name, call in ways.items():
        with pytest.raises(error) as caught:
            call()
        assert not isinstance(caught.value, OSError), name
        for word in said:
            assert word in str(caught.value), (name, str(caught.value))
        assert sorted(directory.iterdir()) == before, name
        assert handle.stats()["requests"] == requests, name
        assert handle.wait() == 0, name


def reading(ways: dict[str, Any]) -> dict[str, Any]:
    return {name: call for name, call in ways.items() if "read" in name}


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1, 2**63 - 4, 2**63, 2**64])
def test_offsets(tmpfs: Path, make_handle: Any, offset: int) -> None:
    buffer = torch.ones(5, dtype=torch.uint8)
    handle = make_handle()
    ways = calls(handle, buffer, tmpfs / "file", offset)
    expect(handle, tmpfs, ways, ValueError, "file_offset", str(offset))
    assert raw(buffer) == b"\x01" * 5


@pytest.mark.parametrize("offset", [1.5, "0", None, b"1"])
def test_offsets_of_a_wrong_type(tmpfs: Path, make_handle: Any, offset: Any) -> None:
    handle = make_handle()
    expect(handle, tmpfs, calls(handle, bytearray(5), tmpfs / "file", offset), TypeError)


class Weird(torch.Tensor):
    """A tensor that is not its memory."""

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


NO_BUFFERS = {
    "None": None,
    "number": 3,
    "list": [1, 2, 3],
    "string": "text",
    "object": object(),
    "meta": torch.empty(10, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "own dispatch": torch.Tensor._make_subclass(Weird, torch.empty(3)),
    "objects": np.array([None, "a"], dtype=object),
}


@pytest.mark.parametrize("what", NO_BUFFERS)
def test_no_buffer(tmpfs: Path, make_handle: Any, what: str) -> None:
    handle = make_handle()
    expect(handle, tmpfs, calls(handle, NO_BUFFERS[what], tmpfs / "file"), TypeError)


@pytest.mark.parametrize("what", ["bytes", "numpy", "memoryview"])
def test_a_read_only_destination(tmpfs: Path, make_handle: Any, what: str) -> None:
    handle = make_handle()
    path = tmpfs / "file"
    path.write_bytes(pattern(1000))
    array = np.zeros(10, np.uint8)
    array.flags.writeable = False
    buffer = {"bytes": bytes(10), "numpy": array, "memoryview": memoryview(bytes(10))}[what]
    expect(handle, tmpfs, reading(calls(handle, buffer, path)), ValueError, "read-only")
    assert bytes(buffer) == bytes(10)


@pytest.mark.parametrize("file", [None, 1.5, ["a"], True, "", b"", "nul\0inside", -1, 2**70])
def test_names_that_are_none(tmpfs: Path, make_handle: Any, file: Any) -> None:
    handle = make_handle()
    expect(handle, tmpfs, calls(handle, bytearray(5), file), (TypeError, ValueError))


@pytest.mark.parametrize(
    ("rest", "named", "words"),
    [
        ((True, 0, 7), {}, "at most 5 arguments, got 6"),
        ((True,), {"async": False}, "repeated argument 'async'"),
        ((True, 0), {"file_offset": 0}, "repeated argument 'file_offset'"),
        ((True,), {"offset": 0}, "unexpected or repeated argument 'offset'"),
        ((), {"file_offset": 0}, "missing argument 'async'"),
    ],
)
def test_arguments_of_pread_and_pwrite_that_do_not_fit(
    tmpfs: Path, make_handle: Any, rest: tuple[Any, ...], named: dict[str, Any], words: str
) -> None:
    """They take what follows `validate` apart themselves, since `async` names no parameter."""
    handle, path = make_handle(), tmpfs / "file"
    for call in (handle.pread, handle.pwrite):
        with pytest.raises(TypeError, match=words):
            call(bytearray(5), path, False, *rest, **named)
    assert handle.wait() == 0
    assert not path.exists()
    assert handle.pwrite(b"12345", path, False, **{"file_offset": 3, "async": False}) == 1
    assert path.read_bytes() == bytes(3) + b"12345"


def test_the_same_with_checks_off(tmpfs: Path) -> None:
    """`python -O` takes asserts away: no check may be one."""
    script = """
import sys
import torch, aio
handle = aio.aio_handle()
path = sys.argv[1]
def refused(error, call):
    try:
        call()
    except error:
        return
    sys.exit("accepted")
refused(ValueError, lambda: aio.aio_handle(block_size=0))
refused(ValueError, lambda: handle.sync_pwrite(b"x", path, -1))
refused(TypeError, lambda: handle.sync_pwrite(None, path))
refused(ValueError, lambda: handle.sync_pread(bytes(3), path))
refused(aio.AioError, lambda: handle.sync_pread(bytearray(3), path))
refused(TypeError, lambda: handle.new_cpu_locked_tensor(1.5, torch.empty(1)))
"""
    done = run_child(script, tmpfs / "file", options=["-O"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmpfs.iterdir()) == []


@pytest.mark.parametrize("count", [1.5, "3", None])
def test_counts_of_a_wrong_type(make_handle: Any, count: Any) -> None:
    for maker in (make_handle(), aio.pin_handle()):
        with pytest.raises(TypeError):
            maker.new_cpu_locked_tensor(count, torch.empty(1))


@pytest.mark.parametrize("example", [None, 3, torch.float32, [1.0]])
def test_examples_that_are_no_tensor(make_handle: Any, example: Any) -> None:
    for maker in (make_handle(), aio.pin_handle()):
        with pytest.raises(TypeError):
            maker.new_cpu_locked_tensor(3, example)


@pytest.mark.parametrize("what", [None, 3, "text", [1]])
def test_is_pinned_of_no_buffer(make_handle: Any, what: Any) -> None:
    for maker in (make_handle(), aio.pin_handle()):
        with pytest.raises(TypeError):
            maker.is_pinned(what)
