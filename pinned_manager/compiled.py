"""What torch.compile makes of pinning: two operators in the graph, and functions that break it.

A graph keeps pin_memory and is_pinned as calls, which look at the memory and at
DS_PIN_MEMORY_BACKEND when they run: neither is decided while tracing. An operator may not give back
its argument, so pin_memory gives memory of its own here, also where outside it would return the
tensor. is_pinned gives an integer, which torch traces as a value that it does not know.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling

from _deepnvme import pin as _pin
from pinned_manager import native, torch_backend
from pinned_manager.pinnable import require_pinnable

P = ParamSpec("P")
R = TypeVar("R")


def breaks_the_graph(function: Callable[P, R]) -> Callable[P, R]:
    """A function that compiled code calls outside of its graph; with fullgraph=True, an error.

    torch.compiler.disable would do the same, but import the compiler, which takes seconds. Once it
    is there, it looks also at frames that it does not compile.
    """
    outside = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_dynamo_compiling() or "torch._dynamo" in sys.modules:
            return outside(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@torch.library.custom_op(
    "pinned_manager::pin_memory",
    mutates_args=(),
    schema="(Tensor tensor, bool make_copy, bool match_shape) -> Tensor",
)
def pin_memory(tensor: torch.Tensor, make_copy: bool, match_shape: bool) -> torch.Tensor:
    """dispatch.pin_memory, in memory of its own."""
    require_pinnable(tensor, make_copy)
    manager = native.get_active_native_pinned_memory()
    if manager is not None:
        return manager.pin_fresh(tensor, make_copy, match_shape)
    return torch_backend.pin_fresh(tensor, make_copy, match_shape)


@pin_memory.register_fake
def _(tensor: torch.Tensor, make_copy: bool, match_shape: bool) -> torch.Tensor:
    return torch.empty_like(tensor) if match_shape else tensor.new_empty((tensor.numel(),))


def _remember(ctx: Any, inputs: tuple[torch.Tensor, bool, bool], output: torch.Tensor) -> None:
    tensor, ctx.copied, _ = inputs
    ctx.shape = tensor.shape


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
    return gradient.reshape(ctx.shape) if ctx.copied else None, None, None


pin_memory.register_autograd(_backward, setup_context=_remember)


@torch.library.custom_op(
    "pinned_manager::is_pinned", mutates_args=(), schema="(Tensor tensor) -> SymInt"
)
def is_pinned(tensor: torch.Tensor) -> int:
    """1 for pinned memory, else 0."""
    return int(_pin.is_pinned(tensor) or torch_backend.is_pinned(tensor))


@is_pinned.register_fake
def _(tensor: torch.Tensor) -> torch.SymInt:
    return torch.library.get_ctx().new_dynamic_size(min=0, max=1)
