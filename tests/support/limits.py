"""Limits of this process, lowered for a while."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def open_files(limit: int) -> Iterator[None]:
    """Descriptors of this process stay below `limit` (RLIMIT_NOFILE)."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def no_descriptor_left(spare: int = 0) -> Iterator[None]:
    """The rest of the program has all descriptors but `spare`; those it holds may be used."""
    taken: list[int] = []
    with open_files(max(map(int, os.listdir("/proc/self/fd"))) + 1 + spare + 8):
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for _ in range(spare):
            os.close(taken.pop())
        try:
            yield
        finally:
            for descriptor in taken:
                os.close(descriptor)
