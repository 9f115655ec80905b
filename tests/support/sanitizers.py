"""What tests do otherwise on the extension built under sanitizers (make test-asan)."""

from __future__ import annotations

import zlib
from collections import defaultdict

import pytest

from support.faulty_build import SANITIZED


def examples(usual: int) -> int:
    """How many a property is tried with: fewer where each takes several times as long."""
    return max(1, usual // 5) if SANITIZED else usual


def one_of_each(items: list[pytest.Item]) -> set[pytest.Item]:
    """One set of arguments for each test and engine; which, differs from test to test."""
    sets: dict[tuple[str, object], list[pytest.Item]] = defaultdict(list)
    for item in items:
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        sets[item.nodeid.partition("[")[0], arguments.get("backend")].append(item)
    return {same[zlib.crc32(repr(key).encode()) % len(same)] for key, same in sets.items()}
