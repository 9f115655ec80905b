"""Names of groups never become names of files, whatever is in them (G-05)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapStore

NAMES = [
    *("", ".", "..", "/", "../../etc/passwd", "a/b", "nul\0", "zeile\n", "é", "e\u0301", "模型"),
    *("\ud800", "x" * 250, "x" * 100_000, "lock", "segment-000000"),
]


def test_any_string(tmp_path: Path, make_handle: Any) -> None:
    with SwapStore(tmp_path, make_handle()) as store:
        for index, name in enumerate(NAMES):
            store.put(name, {name: torch.full((3,), index)}).result()
        for index, name in enumerate(NAMES):
            assert bool((store.get(name).result()[name] == index).all())
        (namespace,) = tmp_path.iterdir()
        assert sorted(os.listdir(namespace)) == ["lock", "segment-000000"]


def test_four_hundred_long_names_in_one_group(tmp_path: Path, make_handle: Any) -> None:
    group = {f"{'layer.' * 41}{index}": torch.tensor(index) for index in range(400)}
    with SwapStore(tmp_path, make_handle()) as store:
        store.put(",".join(group), group).result()
        got = store.get(",".join(group)).result()
        assert all(int(got[name]) == int(group[name]) for name in group)


def deep(base: Path, nbytes: int) -> Path:
    """A path of that many bytes."""
    path = str(base)
    while nbytes - len(path) > 201:
        path += "/" + "d" * 199
    return Path(path + "/" + "d" * (nbytes - len(path) - 1))


def test_a_path_near_the_limit(tmp_path: Path, make_handle: Any) -> None:
    longest = 4095 - len("/swap-0123456789abcdef/segment-000000")
    with SwapStore(deep(tmp_path, longest), make_handle()) as store:
        store.put("x", [torch.ones(3)]).result()
        assert torch.equal(store.get("x").result()[0], torch.ones(3))
    with pytest.raises(OSError, match="shorter path") as caught:
        SwapStore(deep(tmp_path, longest + 1))
    assert caught.value.errno == errno.ENAMETOOLONG
