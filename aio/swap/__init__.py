"""Swapping to drives: groups of tensors that memory has no room for."""

from aio.swap.errors import ChecksumError, SwapError, SwapFullError, SwapStepError
from aio.swap.optimizer import SwappedOptimizer
from aio.swap.store import SwapStore
from aio.swap.store_future import StoreFuture

__all__ = [
    "ChecksumError",
    "StoreFuture",
    "SwapError",
    "SwapFullError",
    "SwapStepError",
    "SwapStore",
    "SwappedOptimizer",
]
