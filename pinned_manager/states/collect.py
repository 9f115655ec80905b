"""Everything that belongs to a target, storage by storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from pinned_manager.dispatch import is_pinned
from pinned_manager.states.device_copies import is_host
from pinned_manager.states.kinds import OffloadStateTypeEnum as Kind
from pinned_manager.states.kinds import kind_of_parameter
from pinned_manager.states.layout import octets
from pinned_manager.states.moved_storage import Home, MovedStorage

Optimizer = torch.optim.Optimizer
Part = torch.nn.Module | torch.Tensor

# A storage that holds tensors of several kinds moves with the first of them.
_PRECEDENCE = (
    Kind.hp_params,
    Kind.lp_params,
    Kind.contiguous_grad_buffer,
    Kind.lp_grads,
    Kind.optim_states,
)


def parts_of(target: Any) -> tuple[Optimizer, list[Part]]:
    """The optimizer, and the modules and flat tensors that were given with it.

    Raises TypeError for anything else.
    """
    optimizer, *others = target if isinstance(target, tuple | list) and target else (target,)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "the target must be a torch.optim.Optimizer, or a tuple that starts with one, "
            f"not {type(optimizer).__name__}"
        )
    for other in others:
        if not isinstance(other, torch.nn.Module | torch.Tensor):
            raise TypeError(
                "beside its optimizer a target has torch.nn.Module and flat torch.Tensor, "
                f"not {type(other).__name__}"
            )
    return optimizer, others


def collect(optimizer: Optimizer, others: Iterable[Part]) -> list[MovedStorage]:
    """All storages of a target, at home, each with all of its tensors that the target knows."""
    found: dict[int, tuple[Kind, torch.Tensor]] = {}  # by id
    for kind, tensor in _named(optimizer, others):
        for plain in _plain(tensor):
            found.setdefault(id(plain), (kind, plain))
    by_storage: dict[int, list[tuple[Kind, torch.Tensor]]] = {}
    for kind, tensor in found.values():
        by_storage.setdefault(_address(tensor), []).append((kind, tensor))
    return [_storage(entries) for entries in by_storage.values()]


def _named(optimizer: Optimizer, others: Iterable[Part]) -> Iterator[tuple[Kind, torch.Tensor]]:
    modules = [other for other in others if isinstance(other, torch.nn.Module)]
    parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    parameters += [tensor for module in modules for tensor in module.parameters()]
    for parameter in parameters:
        yield kind_of_parameter(parameter.dtype), parameter
    for other in others:
        if isinstance(other, torch.Tensor):
            yield Kind.contiguous_grad_buffer, other
    for parameter in parameters:
        if parameter.grad is not None:
            yield Kind.lp_grads, parameter.grad
    for tensor in _tensors_in(list(optimizer.state.values()), set()):
        if tensor.dim() > 0:  # step counters are read by the host, and are next to nothing
            yield Kind.optim_states, tensor


def _tensors_in(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple | set | frozenset | deque):
        if id(value) in seen:
            return
        seen.add(id(value))
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item, seen)


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, or those that it wraps (a DTensor's local one), as far as they can be moved."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten()
        for name in names:
            yield from _plain(getattr(tensor, name))
    elif _can_move(tensor):
        yield tensor


def _can_move(tensor: torch.Tensor) -> bool:
    return (
        type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and tensor.untyped_storage().nbytes() > 0
        # Other processes would not follow.
        and not (is_host(tensor.device) and tensor.untyped_storage().is_shared())
    )


def _address(tensor: torch.Tensor) -> int:
    """What tells storages that are alive apart."""
    address: int = tensor.untyped_storage()._cdata
    return address


def _storage(entries: list[tuple[Kind, torch.Tensor]]) -> MovedStorage:
    kinds = [kind for kind, _ in entries]
    kind = min(kinds, key=_PRECEDENCE.index)
    if kind is Kind.lp_grads and kinds.count(kind) > 1:
        kind = Kind.contiguous_grad_buffer
    tensors = {id(tensor): tensor for _, tensor in entries}
    for _, tensor in entries:
        # A view keeps its base alive, and with it the memory that both are on.
        base = tensor._base
        if base is not None and _address(base) == _address(tensor):
            tensors[id(base)] = base
    storage = next(iter(tensors.values())).untyped_storage()
    on_host = is_host(storage.device)
    home = Home(storage.device, on_host, on_host and is_pinned(octets(storage)))
    return MovedStorage(kind, home, list(tensors.values()))
