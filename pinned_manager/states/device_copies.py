"""Copies between host memory and a device. Host memory lives until they are done."""

from __future__ import annotations

import torch

from pinned_manager import streams
from pinned_manager.device import Event, device_of


def is_host(device: torch.device) -> bool:
    """Whether memory of this device is the host's."""
    return device.type == "cpu"


def copy_to_host(source: torch.Tensor, host: torch.Tensor, non_blocking: bool) -> Event | None:
    """Fill ``host`` from device memory of its size.

    Returns what to wait for; None when it is done.
    """
    streams.copy_to_host(source, host, non_blocking)
    return device_of(source).record_event() if non_blocking else None


def copy_to_device(host: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
    """``host`` in new memory of ``device``, in order with the current stream there."""
    copy: torch.Tensor = streams.copy_to_device(host, device, non_blocking)
    return copy
