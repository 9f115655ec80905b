"""While an event is asked, whatever runs may record and let go too: nothing is lost or kept by it.

An event does here what a finalizer, or another thread, may do in the middle of the look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from pinned_manager import (
    collect_streams,
    new_locked_tensor,
    pinned_stats,
    record_stream,
)

MIB = 1 << 20


class Stream:
    """One queue, whose last event is asked."""

    def __init__(self) -> None:
        self.over = False
        self.meanwhile: Callable[[], object] | None = None

    def record_event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def query(self) -> bool:
        """What held when it was asked, whatever has changed since."""
        over = self.stream.over
        meanwhile, self.stream.meanwhile = self.stream.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return over


@pytest.fixture
def stream() -> Iterator[Stream]:
    assert collect_streams() == 0
    stream = Stream()
    yield stream
    stream.over = True
    assert collect_streams() == 0


def pinned() -> torch.Tensor:
    return new_locked_tensor(MIB, torch.uint8, "test")


@pytest.mark.parametrize("others", [0, 1])
def test_all_is_let_go_meanwhile(stream: Stream, others: int) -> None:
    in_use = pinned_stats()["in_use"]
    tensors = [pinned() for _ in range(1 + others)]
    for tensor in tensors:
        record_stream(tensor, stream)
    del tensor
    tensors.clear()

    def end() -> None:
        stream.over = True
        assert collect_streams() == 0

    stream.meanwhile = end
    assert collect_streams() == 0
    assert pinned_stats()["in_use"] == in_use


def test_it_is_let_go_and_used_again_meanwhile(stream: Stream) -> None:
    """The later event counts, though the earlier one was over."""
    tensors = [pinned()]
    record_stream(tensors[0], stream)
    in_use = pinned_stats()["in_use"]

    def use_again() -> None:
        stream.over = False
        record_stream(tensors[0], stream)

    stream.over, stream.meanwhile = True, use_again
    assert collect_streams() == 1
    tensors.clear()
    assert pinned_stats()["in_use"] == in_use
    stream.over = True
    assert collect_streams() == 0
    assert pinned_stats()["in_use"] == in_use - MIB
