"""What DeepSpeed's builders load: its modules async_io and pin_memory, by this library."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

import torch

import aio
from aio.handle import File


class aio_handle(aio.aio_handle):  # DeepSpeed's name
    """aio.aio_handle with the defaults and the keywords of DeepSpeed's."""

    def __init__(
        self,
        block_size: int = 1048576,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        super().__init__(
            block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism
        )

    def async_pwrite(
        self,
        buffer: Any,
        filename: File | None = None,
        file_offset: int = 0,
        *,
        fd: int | None = None,
    ) -> int:
        """As aio.aio_handle.async_pwrite; an open descriptor may also be named ``fd``."""
        file = fd if filename is None else filename
        if file is None or None not in (fd, filename):
            raise TypeError("async_pwrite takes either a filename or an open descriptor fd")
        return super().async_pwrite(buffer, file, file_offset)


def aio_read(
    buffer: Any,
    filename: File,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
    /,
) -> int:
    """Fill ``buffer`` from the beginning of the file, by a handle of its own. Returns 0."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.read(buffer, filename, validate)


def aio_write(
    buffer: Any,
    filename: File,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
    /,
) -> int:
    """Write ``buffer`` to the beginning of the file, by a handle of its own. Returns 0."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.write(buffer, filename, validate)


def deepspeed_memcpy(dest: torch.Tensor, src: torch.Tensor, /) -> int:
    """Copy the elements of ``src`` to ``dest``, of the same dtype and number. Returns 0.

    Raises ValueError where dtype or number differ, before anything is copied.
    """
    if dest.dtype != src.dtype or dest.numel() != src.numel():
        raise ValueError(
            f"cannot copy {src.numel()} elements of {src.dtype} to {dest.numel()} of {dest.dtype}: "
            "dtype and number of elements must be the same"
        )
    with torch.no_grad():
        dest.copy_(src.reshape(dest.shape))
    return 0


def no_gds() -> NoReturn:
    """Raise RuntimeError: there is no GPUDirect Storage here."""
    raise RuntimeError(
        "aio.deepspeed has no GPUDirect Storage (gds_handle): set use_gds to false, and device "
        "tensors pass through pinned memory; or call aio.deepspeed.disable() to have DeepSpeed's "
        "own operators"
    )


def _module(name: str, **members: Any) -> ModuleType:
    """A module without __file__, which DeepSpeed would open as a shared library."""
    module = ModuleType(f"aio.deepspeed.{name}", f"DeepSpeed's {name}, on this library.")
    vars(module).update(members)
    return module


async_io = _module(
    "async_io",
    aio_handle=aio_handle,
    aio_read=aio_read,
    aio_write=aio_write,
    deepspeed_memcpy=deepspeed_memcpy,
)
pin_memory = _module("pin_memory", pin_handle=aio.pin_handle)

MODULES = {"async_io": async_io, "pin_memory": pin_memory}  # by DeepSpeed's name of the operator
