"""A store whose file cannot be opened for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from aio.swap import SwapStore


@contextmanager
def broken_file(store: SwapStore) -> Iterator[str]:
    """Every request on the store's file fails with EISDIR, until it is back."""
    path = store.stats()["directories"][0]["path"] + "/segment-000000"
    os.rename(path, path + ".aside")
    os.mkdir(path)
    try:
        yield path
    finally:
        os.rmdir(path)
        os.rename(path + ".aside", path)
