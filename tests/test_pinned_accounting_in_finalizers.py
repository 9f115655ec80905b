"""A finalizer may run in the middle of any account: what it reports is counted, and breaks nothing.

A tag runs it here, as its hash is asked for: wherever the accounts look up an owner.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pinned_manager import pinned_memory_stats, pinned_memory_tag, track_pinned_memory


class Tag(str):
    """Calls `finalizer` once, when its hash is asked for the `left`-th time; 0 for never."""

    left = 0
    finalizer: Callable[[], None]

    def __hash__(self) -> int:
        self.left -= 1
        if self.left == 0:
            self.finalizer()
        return super().__hash__()


def track(tag: str, nbytes: int) -> None:
    with pinned_memory_tag(tag):
        track_pinned_memory(nbytes)


def of(tag: str) -> int:
    return pinned_memory_stats()["by_tag"].get(tag, 0)


def test_anywhere() -> None:
    """It takes back what its object had tracked, which may be queued, and tracks something else."""
    places = 0
    while True:
        tag, other = Tag(f"owner {places}"), f"other {places}"
        live = pinned_memory_stats()["live"]
        track("unconcerned", 1)
        track(tag, 100)

        def finalizer(tag: str = str(tag), other: str = other) -> None:
            seen = pinned_memory_stats()["live"]
            track(tag, -100)
            track(other, 7)
            assert pinned_memory_stats()["live"] in (seen, seen - 93)

        tag.finalizer, tag.left = finalizer, places + 1
        track(tag, 20)
        pinned_memory_stats()
        ran, tag.left = tag.left <= 0, 0
        if not ran:
            finalizer()
        assert (of(str(tag)), of(other)) == (20, 7)
        assert pinned_memory_stats()["live"] == live + 28
        track(str(tag), -20)
        track(other, -7)
        track("unconcerned", -1)
        if not ran:
            break
        places += 1
    assert places > 3  # else nothing was in the middle of anything


def test_what_a_tag_does_not_have_is_refused_afterwards_as_before() -> None:
    tag = Tag("owner")
    tag.finalizer, tag.left = lambda: track("owner", 5), 1
    track(tag, 10)
    with pytest.raises(ValueError, match="16 bytes cannot be taken back"):
        track("owner", -16)
    track("owner", -15)
    assert of("owner") == 0
