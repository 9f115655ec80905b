"""Wrong arguments raise before any I/O, and change nothing (group G)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from aio.swap import SwapStore


class Derived(torch.Tensor):
    """What it holds is not known to be in its memory."""


@pytest.fixture
def store(tmp_path: Path, make_handle: Any) -> Any:
    with SwapStore(tmp_path, make_handle()) as made:
        made.put("list", [torch.ones(3), torch.ones(2, 2, dtype=torch.int32)]).result()
        made.put("dict", {"a": torch.ones(3), "b": torch.ones(1)}).result()
        yield made


WRONG_OUT: list[tuple[str, Any, type[Exception], str]] = [
    ("list", [torch.ones(3)], ValueError, "1 tensors"),
    ("list", [torch.ones(3), torch.ones(4, dtype=torch.int32)], ValueError, r"out\[1\].*\(2, 2\)"),
    ("list", [torch.ones(3), torch.ones(2, 2)], ValueError, "int32"),
    ("list", {"a": torch.ones(3)}, TypeError, "sequence"),
    ("list", [torch.ones(3), 5], TypeError, r"out\[1\] is a int"),
    ("list", [torch.ones(1).expand(3), torch.ones(2, 2).int()], ValueError, "share memory"),
    ("dict", [torch.ones(3), torch.ones(1)], TypeError, "mapping"),
    ("dict", {"a": torch.ones(3)}, ValueError, "'b'"),
    ("dict", {"a": torch.ones(3), "b": torch.ones(2)}, ValueError, r"out\['b'\]"),
]


def kept_by(store: SwapStore) -> dict[str, Any]:
    """Its statistics, but for the room on the file system, which others take and give back."""
    stats: dict[str, Any] = {**store.stats()}
    rooms = [{**directory, "available": None} for directory in stats["directories"]]
    return {**stats, "directories": rooms}


@pytest.mark.parametrize(("name", "out", "error", "words"), WRONG_OUT)
def test_out_that_does_not_match(
    store: SwapStore, name: str, out: Any, error: type[Exception], words: str
) -> None:
    before = kept_by(store)
    with pytest.raises(error, match=words):
        store.get(name, out)
    assert kept_by(store) == before


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (torch.ones(3), r"\[tensor\]"),
        ([1.0], "float"),
        ([torch.ones(3, device="meta")], "meta"),
        ([torch.ones(3).to_sparse()], "sparse"),
        ({"x": None}, r"tensors\['x'\]"),
        ([torch.ones(3).as_subclass(Derived)], r"tensors\[0\] is a Derived.*to_local"),
    ],
)
def test_what_cannot_be_put(store: SwapStore, tensors: Any, words: str) -> None:
    before = kept_by(store)
    with pytest.raises(TypeError, match=words):
        store.put("list", tensors)
    assert kept_by(store) == before
    assert torch.equal(store.get("list").result()[0], torch.ones(3))


def test_names(store: SwapStore) -> None:
    with pytest.raises(TypeError, match="str"):
        store.put(5, [torch.ones(1)])  # type: ignore[arg-type]
    for call in (store.get, store.prefetch, store.delete, store.nbytes):
        with pytest.raises(KeyError, match="nothing is stored under 'no'"):
            call("no")
    assert store.names() == ["list", "dict"]
    assert "list" in store
    assert "no" not in store
    assert len(store) == 2


def test_constructor(tmp_path: Path) -> None:
    for name in ("", "a/b", ".x", "ü", "x" * 129):
        with pytest.raises(ValueError, match="name"):
            SwapStore(tmp_path, name=name)
    with pytest.raises(ValueError, match="segment_bytes"):
        SwapStore(tmp_path, segment_bytes=0)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_no_handle_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is no profile to blame, it is the caller's error."""
    monkeypatch.setenv("DEEPNVME_BACKEND", "floppy")
    with pytest.raises(ValueError, match="floppy"):
        SwapStore(tmp_path)
    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []


def test_a_closed_handle(tmp_path: Path) -> None:
    """The failure is the future's, and the room is given back."""
    handle = aio.aio_handle()
    with SwapStore(tmp_path, handle) as store:
        handle.close()
        assert isinstance(store.put("x", [torch.ones(3)]).exception(), RuntimeError)
        assert store.stats()["allocated"] == 0
        assert store.names() == []
