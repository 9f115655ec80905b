"""In which order sub-groups are updated, and which of them stay in memory.

1. The order is that of the last step, reversed: what was updated last is in memory, and comes
   first. In a fixed order with a cache of the last ones, each would be evicted before its turn.
2. The longest end of an order that fits in the cache is kept. All else is written.
3. Before position i, memory holds what was kept of the last step, from i on, and what is kept of
   this one, up to i. Both together are an interval of the order that is no longer than what was
   kept of the last step, or of this one. So the cache never exceeds its size.
"""

from __future__ import annotations

from collections.abc import Sequence


def first_kept(sizes: Sequence[int], budget: int) -> int:
    """The first position of the longest end of ``sizes`` whose sum is within a budget, in bytes."""
    position = len(sizes)
    while position > 0 and sizes[position - 1] <= budget:
        position -= 1
        budget -= sizes[position]
    return position
