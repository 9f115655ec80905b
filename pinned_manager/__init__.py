"""Page-locked host memory: one registry for the whole process, and what is built on it."""

from pinned_manager.locked_tensor import (
    PinError,
    empty_cache,
    free_locked_tensor,
    get_cache_limit,
    is_pinned,
    new_locked_tensor,
    pinned_stats,
    set_cache_limit,
)

__all__ = [
    "PinError",
    "empty_cache",
    "free_locked_tensor",
    "get_cache_limit",
    "is_pinned",
    "new_locked_tensor",
    "pinned_stats",
    "set_cache_limit",
]
