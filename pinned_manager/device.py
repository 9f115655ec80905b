"""What the library asks of a device: asynchronous copies and events.

One class serves every torch device. A backend that torch does not know, or a fake one in a test, is
made known with register_device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any, Protocol

import torch

# For whoever makes a device known that torch does not know.
__all__ = ["Device", "Event", "register_device", "unregister_device"]


class Event(Protocol):
    """A point in a device's work."""

    def query(self) -> bool:
        """True once the work before it is done."""

    def synchronize(self) -> None:
        """Wait until the work before it is done."""


class Octets(Sized, Protocol):
    """Device memory as bytes, which can be sliced."""

    def __getitem__(self, index: slice, /) -> Any: ...


class Device(ABC):
    """Copies between host memory and a device's tensors, on the current stream of the calling
    thread.
    """

    @abstractmethod
    def current_stream(self) -> Any:
        """Where this thread's work is queued: hashable, equal to itself."""

    @abstractmethod
    def record_event(self) -> Event:
        """A point after everything that this thread has asked of the device so far."""

    @abstractmethod
    @contextmanager
    def side_stream(self, after: Event) -> Iterator[None]:
        """Within it, copies go to a stream of their own, which starts after ``after``."""

    @abstractmethod
    def copy_to_host(self, host: torch.Tensor, source: Any) -> Event:
        """Start to copy device octets to host memory of the same size (uint8)."""

    @abstractmethod
    def copy_to_device(self, destination: Any, host: torch.Tensor) -> Event:
        """Start to copy host memory (uint8) to device octets of the same size."""

    @abstractmethod
    def empty_like(self, host: torch.Tensor) -> Any:
        """A tensor of the device, of a host tensor's shape and dtype, not initialised."""

    @abstractmethod
    def copy(self, destination: Any, source: Any) -> Event:
        """Start to copy between tensors of the device and of the host, of the same shape."""

    @abstractmethod
    def keep_for_stream(self, tensor: Any) -> None:
        """Keep a device tensor's memory from reuse until the work of the current stream is done,
        as it is when the last reference goes.
        """

    @abstractmethod
    def octets(self, tensor: Any) -> Octets:
        """The bytes of a contiguous tensor of the device, without a copy."""

    @abstractmethod
    def contiguous(self, tensor: Any) -> Any:
        """The tensor, or a contiguous copy of it."""

    @abstractmethod
    def contiguous_target(self, tensor: Any) -> Any:
        """The tensor, or a contiguous one of its shape to be filled in its stead.

        ValueError when elements of the tensor overlap.
        """

    @abstractmethod
    def finish_target(self, target: Any, tensor: Any) -> None:
        """Bring what contiguous_target gave to where it belongs, and wait for it."""


class TorchDevice(Device):
    """A device that torch drives: CUDA, XPU, NPU and whatever has streams and events in its torch
    module.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)

    def current_stream(self) -> Any:
        return self._module.current_stream(self._device)

    def record_event(self) -> Event:
        event: Event = self.current_stream().record_event()
        return event

    @contextmanager
    def side_stream(self, after: Event) -> Iterator[None]:
        stream = self._module.Stream(self._device)
        stream.wait_event(after)
        with self._module.stream(stream):
            yield

    def copy_to_host(self, host: torch.Tensor, source: torch.Tensor) -> Event:
        return self.copy(host, source)

    def copy_to_device(self, destination: torch.Tensor, host: torch.Tensor) -> Event:
        return self.copy(destination, host)

    def empty_like(self, host: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(host, device=self._device, requires_grad=False)

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> Event:
        destination.detach().copy_(source.detach(), non_blocking=True)
        return self.record_event()

    def keep_for_stream(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.current_stream())

    def octets(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().reshape(-1).view(torch.uint8)

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.resolve_conj().resolve_neg().contiguous()

    def contiguous_target(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous():
            return tensor
        if torch._debug_has_internal_overlap(tensor) != 0:
            raise ValueError(
                "the tensor to read into may have elements that overlap in memory; "
                "read into a contiguous tensor"
            )
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    def finish_target(self, target: torch.Tensor, tensor: torch.Tensor) -> None:
        if target is not tensor:
            tensor.detach().copy_(target)
        self.record_event().synchronize()


_devices: dict[str, Device] = {}


def _has_no_memory(device: torch.device) -> bool:
    return device.type in ("cpu", "meta")


def register_device(device_type: str, device: Device) -> None:
    """Use ``device`` for tensors whose ``device.type`` is ``device_type``."""
    _devices[device_type] = device


def unregister_device(device_type: str) -> None:
    """Take back register_device. KeyError when there is none."""
    del _devices[device_type]


def device_of(tensor: Any) -> Device:
    """The device of a tensor whose memory is not the host's.

    TypeError for one that nothing can be copied to or from.
    """
    found = device_named(tensor.device)
    if found is None:
        raise TypeError(
            f"a tensor on {tensor.device} has no memory that can be read or written; "
            "move it to the CPU first"
        )
    return found


def device_named(device: Any) -> Device | None:
    """The device of a torch.device or its name, such as "cuda:1"; None for one without copies."""
    known = _devices.get(str(device).partition(":")[0])
    if known is not None:
        return known
    try:
        device = torch.device(device)
        module = torch.get_device_module(device)
    except (RuntimeError, TypeError):  # torch has no such device, or no module for it
        module = None
    if (
        not hasattr(module, "Stream")
        or not hasattr(module, "current_stream")
        or _has_no_memory(device)
    ):
        return None
    return TorchDevice(device)
