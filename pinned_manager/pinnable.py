"""Which tensors can be pinned, and the layout of what pinning gives back. Touches no memory."""

from __future__ import annotations

from typing import Any

import torch


def require_pinnable(tensor: Any, make_copy: bool) -> None:
    """Refuse what has no bytes of its own in host memory, before anything is allocated.

    TypeError for what is no tensor, ValueError for a tensor on a device or, where its elements are
    to be copied, one that reaches beyond its storage; NotImplementedError for tensors without plain
    strided memory: fake, meta, functional, sparse, nested, quantized, and subclasses with a
    __torch_dispatch__ of their own.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"only a torch.Tensor can be pinned, not {type(tensor).__name__}; "
            "torch.from_numpy and torch.frombuffer make one of other buffers"
        )
    if _has_own_dispatch(tensor):
        raise NotImplementedError(
            f"{type(tensor).__name__} has a __torch_dispatch__ of its own, so there is no plain "
            "memory to pin; pin the tensors that it wraps, outside of fake and functional modes"
        )
    refusal = _refusal(tensor)
    if refusal:
        raise NotImplementedError(refusal)
    if tensor.device.type == "meta":
        raise NotImplementedError(
            "a tensor on the meta device has no memory to pin; pin_empty_like(tensor) makes a "
            "pinned tensor of its shape"
        )
    if tensor.device.type != "cpu":
        raise ValueError(
            f"a tensor on {tensor.device} cannot be pinned, since only host memory can; pin "
            "tensor.cpu(), or copy it to pin_empty_like(tensor)"
        )
    try:
        tensor.data_ptr()
    except RuntimeError as error:  # inside transforms of torch.func
        raise NotImplementedError(
            "the tensor has no memory of its own to pin; pin it outside of torch.func transforms"
        ) from error
    if make_copy:
        _require_storage(tensor)


def _require_storage(tensor: torch.Tensor) -> None:
    """ValueError where the storage was made smaller under the tensor: a copy would read beyond."""
    if tensor.numel() == 0:
        return
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    held = tensor.untyped_storage().nbytes()
    if needed > held:
        raise ValueError(
            f"the tensor reaches to byte {needed} of its storage, which holds {held}: it was "
            "resized; resize it back first, or pass make_copy=False"
        )


def require_layout(tensor: Any) -> None:
    """Refuse a template that has no shape with strides. NotImplementedError, or TypeError."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"the template must be a torch.Tensor, not {type(tensor).__name__}")
    refusal = _refusal(tensor)
    if refusal:
        raise NotImplementedError(refusal)


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """True for a strided tensor in host memory that torch itself may be asked about."""
    return (
        not _has_own_dispatch(tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
    )


def _has_own_dispatch(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    return (
        kind is not torch.Tensor and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )


def _refusal(tensor: torch.Tensor) -> str:
    """Why it is not one block of strided elements; empty when it is."""
    if tensor.is_nested:
        return "a nested tensor is not one block of memory; pin its parts: unbind()"
    if tensor.layout != torch.strided:
        return (
            f"a tensor of layout {tensor.layout} is not one block of memory; pin its parts, "
            "or to_dense()"
        )
    if tensor.is_quantized:
        return "a quantized tensor cannot be pinned; pin int_repr() and keep the scale"
    if torch._is_functional_tensor(tensor):
        return "a functionalized tensor has no memory of its own; pin it outside of that mode"
    return ""


def layout_of(
    tensor: torch.Tensor, match_shape: bool = True
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the strides, in elements, of what is pinned for a tensor.

    They are those of torch.empty_like(tensor): its own where it is dense, else the same order of
    dimensions without gaps. Flat unless match_shape.
    """
    if not match_shape:
        return (tensor.numel(),), (1,)
    shape = tuple(int(size) for size in tensor.shape)
    if tensor.is_contiguous():
        return shape, tuple(tensor.stride())
    like = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format)
    return shape, tuple(like.stride())


def as_it_is(tensor: torch.Tensor, match_shape: bool) -> torch.Tensor | None:
    """The tensor without a copy, flat unless match_shape; None where flat takes a copy."""
    if match_shape:
        return tensor
    if not tensor.is_contiguous():
        return None
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def fill(pinned: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``pinned``, of the tensor's shape or flat, with the tensor's elements.

    Differentiable, as torch's pin_memory is.
    """
    target = pinned if pinned.shape == tensor.shape else pinned.view(tensor.shape)
    odd = tensor.data_ptr() % tensor.element_size() != 0  # of a buffer; torch's copy may crash
    if odd and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
        _octets(target).copy_(_octets(tensor))
    else:
        target.copy_(tensor)
    return pinned


def _octets(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element in a last dimension of their own, without a copy."""
    size = tensor.element_size()
    shape, strides = (*tensor.shape, size), (*(size * one for one in tensor.stride()), 1)
    octets = torch.empty(0, dtype=torch.uint8, device="cpu")
    return octets.set_(tensor.untyped_storage(), size * tensor.storage_offset(), shape, strides)
