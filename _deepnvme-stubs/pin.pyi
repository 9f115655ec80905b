"""Page-locked memory: the registry of the process and its pool of freed regions.

Sizes are in bytes. Accounts are rounded up to pages, since pages are what is locked. Every function
may be called from any thread; those that map, fault, lock or unlock memory give up the GIL
meanwhile. After fork the child starts with an empty registry: what it inherited is ordinary memory.

Mappings are offered to the registrar when they are locked. Those that a device reaches are unlocked
only after the registrar has taken that back. A region that is dropped on a thread without the GIL
waits for that until the next call that allocates, frees or reports.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypedDict, type_check_only

from typing_extensions import Buffer, CapsuleType, Never

@type_check_only
class _Pybind11Type(type):
    """The metaclass of pybind11's classes."""

@type_check_only
class _DLPackExporter(Protocol):
    """What has host memory and says so through DLPack."""

    def __dlpack__(self) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# A torch tensor, an object with the buffer protocol (NumPy array, bytearray, ...), or a DLPack
# exporter.
_Memory: TypeAlias = Buffer | _DLPackExporter

class PinError(MemoryError):
    """Memory could not be page-locked, or the budget is used up.

    Nothing is left locked or mapped by the failed call.
    """

    nbytes: int
    """Bytes asked for; rounded up to pages where it was the budget."""
    locked: int
    """Bytes that this process had locked (VmLck); of the budget: in use."""
    limit: int | None
    """RLIMIT_MEMLOCK in bytes, or the budget; None when unlimited or not enforced."""

@type_check_only
class PinStats(TypedDict):
    """Page-locked memory of the process, in bytes."""

    in_use: int
    """Of live pinned regions."""
    cached: int
    """Every other locked byte: the pool, the rest of slabs, what is released and still in use."""
    peak: int
    """The highest in_use so far."""
    regions: int
    """Live pinned regions."""
    calls: int
    """Successful allocations so far."""
    by_tag: dict[str, int]
    """in_use by owner; owners that hold nothing are left out."""

def allocate_dlpack(nbytes: int, tag: str) -> CapsuleType:
    """Lock memory; return it as the DLPack capsule of a CPU tensor, shape (nbytes,), dtype uint8.

    It is not initialised. The region belongs to the capsule, then to whatever storage consumes it,
    and goes back to the pool when that goes. It starts at a page, and at a huge page (2 MiB) when
    it has a mapping of its own of that size or more.

    Arguments:
        nbytes: from 1 on. Up to 256 KiB come out of shared mappings, page by page.
        tag: the owner that it is counted under.

    Raises PinError when the memory cannot be locked even after the pool was emptied, and before
    anything is locked when the budget does not allow it; ValueError for nbytes below 1 or beyond
    what an address can reach, and for a variable that is wrong: DEEPNVME_PIN_CACHE_BYTES,
    DEEPNVME_PIN_BUDGET, or one that the registrar reads.
    """

def release(address: int) -> bool:
    """True if `address` was the first byte of a pinned region, which is no longer pinned.

    Nor is it counted. False for any other address, and the second time. Pages of a region above
    256 KiB are unlocked once no request uses them; those of a smaller one stay locked, as cached.
    The memory can be used until its last alias goes.
    """

def is_pinned(buffer: _Memory) -> bool:
    """True when every byte that `buffer` reaches lies in one pinned region of this registry.

    Strides count. False for tensors without host memory and for buffers of no bytes. Raises
    TypeError for what is neither a tensor nor a buffer.
    """

def stats() -> PinStats:
    """What is locked now. Takes the registry's lock, makes no system call."""

def empty_cache() -> None:
    """Unlock and unmap everything that is kept for reuse."""

def set_cache_limit(nbytes: int) -> None:
    """Bytes that may stay locked for reuse; what is over is given up now. ValueError below 0.

    The unused part of a slab in use counts towards it but cannot be given up.
    """

def get_cache_limit() -> int:
    """Bytes that may stay locked for reuse: as set, else DEEPNVME_PIN_CACHE_BYTES, else 2 GiB.

    Raises ValueError for a DEEPNVME_PIN_CACHE_BYTES that is no number.
    """

def set_budget(nbytes: int | None) -> None:
    """Bytes that may be in use at a time, page-rounded; None for any number. ValueError below 0.

    Allocations beyond it raise PinError. What is pinned already stays.
    """

def get_budget() -> int | None:
    """Bytes that may be in use at a time: as set, else DEEPNVME_PIN_BUDGET, else None.

    Raises ValueError for a DEEPNVME_PIN_BUDGET that is no number.
    """

@type_check_only
class _Registrar(Protocol):
    """Who registers locked mappings with a device."""

    def wanted(self) -> bool:
        """Asked once a round, before anything is locked; may raise for a wrong setting."""

    def register(self, address: int, nbytes: int, /) -> bool:
        """True when the device may reach any of it from now on."""

    def unregister(self, address: int, /) -> bool:
        """True when the device reaches none of it any more; else it stays locked for good."""

def set_registrar(registrar: _Registrar) -> None:
    """Offer mappings to this one from now on, those in use too. It is kept for good."""

def offer_again() -> None:
    """Offer mappings that are not registered again, when they are next used."""

def set_collector(collector: Callable[[], None]) -> None:
    """Called first, while there are holds, by what allocates, frees or reports. Must not raise."""

class RegionHold(metaclass=_Pybind11Type):
    """Keeps a region locked, mapped and out of the pool, also after release()."""

    def __init__(self, *args: Never, **kwargs: Never) -> None:
        """Raises TypeError: hold() makes it."""

    @property
    def address(self) -> int:
        """Of the first byte of the region."""

def hold(buffer: _Memory) -> RegionHold | None:
    """A hold of the pinned region that all of ``buffer`` lies in; None when it is not pinned."""

def locked_memory() -> tuple[int, int | None]:
    """(bytes that this process has locked, RLIMIT_MEMLOCK or None when it does not apply).

    Reads /proc: not for a fast path.
    """
