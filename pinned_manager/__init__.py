"""Page-locked host memory: one registry for the whole process, and what is built on it."""

from pinned_manager.accelerators import Accelerator, get_accelerator, set_accelerator
from pinned_manager.accounting import (
    PinnedMemoryStats,
    pinned_memory_stats,
    pinned_memory_summary,
    pinned_memory_tag,
    track_pinned_memory,
)
from pinned_manager.dispatch import (
    is_pinned,
    pin_empty,
    pin_empty_like,
    pin_memory,
    unpin_memory,
)
from pinned_manager.host_registration import register_host_memory, unregister_host_memory
from pinned_manager.locked_tensor import (
    PinError,
    empty_cache,
    free_locked_tensor,
    get_budget,
    get_cache_limit,
    new_locked_tensor,
    pinned_stats,
    set_budget,
    set_cache_limit,
)
from pinned_manager.native import (
    NativePinnedMemory,
    get_active_native_pinned_memory,
    get_native_pinned_memory,
)
from pinned_manager.states import (
    OffloadStateTypeEnum,
    offload_states,
    release,
    reload_states,
)
from pinned_manager.streams import (
    collect_streams,
    copy_to_device,
    copy_to_host,
    record_stream,
)

__all__ = [
    "Accelerator",
    "NativePinnedMemory",
    "OffloadStateTypeEnum",
    "PinError",
    "PinnedMemoryStats",
    "collect_streams",
    "copy_to_device",
    "copy_to_host",
    "empty_cache",
    "free_locked_tensor",
    "get_accelerator",
    "get_active_native_pinned_memory",
    "get_budget",
    "get_cache_limit",
    "get_native_pinned_memory",
    "is_pinned",
    "new_locked_tensor",
    "offload_states",
    "pin_empty",
    "pin_empty_like",
    "pin_memory",
    "pinned_memory_stats",
    "pinned_memory_summary",
    "pinned_memory_tag",
    "pinned_stats",
    "record_stream",
    "register_host_memory",
    "release",
    "reload_states",
    "set_accelerator",
    "set_budget",
    "set_cache_limit",
    "track_pinned_memory",
    "unpin_memory",
    "unregister_host_memory",
]
