"""Tensors to and from NVMe: handles, futures, and page-locked memory that all of them know."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from _deepnvme.io import AioError
from aio.backends import available_backends
from aio.futures import IOFuture
from aio.handle import aio_handle
from aio.pin_handle import pin_handle
from aio.stats_server import serve_stats
from pinned_manager import PinError, pinned_stats

try:
    __version__ = _version("deepnvme")
except _PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "AioError",
    "IOFuture",
    "PinError",
    "__version__",
    "aio_handle",
    "available_backends",
    "pin_handle",
    "pinned_stats",
    "serve_stats",
]
