"""Masters: fp32 copies of bf16 and fp16 parameters, which live with the optimizer's states."""

from __future__ import annotations

import torch

from aio.swap.sharding import is_sharded, local_part, replace_local_part

MASTERED = frozenset((torch.bfloat16, torch.float16))
MASTER_KEY = "master_weight"  # in the state of a parameter in a checkpoint


class Master:
    """What the optimizer updates in place of a parameter.

    A step is: attach the master's values, cast the gradient, let the optimizer update, cast the
    values back to the parameter, detach.
    """

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameter = parameter
        self._nothing = torch.empty(0, device=parameter.device)
        self._sharded = is_sharded(parameter)
        if self._sharded:
            like = torch.empty_like(parameter.detach(), dtype=torch.float32)
            replace_local_part(like, self._nothing)
            self.stand_in = torch.nn.Parameter(like)
        else:
            self.stand_in = torch.nn.Parameter(self._nothing)

    def attach(self, values: torch.Tensor | None, gradient: bool = True) -> None:
        """``values``: float32 of the parameter's shape; None casts the parameter."""
        self._hold(self._parameter.detach().float() if values is None else values)
        if gradient and self._parameter.grad is not None:
            self.stand_in.grad = self._parameter.grad.float()

    def publish(self) -> None:
        """Cast the values to the parameter, where there was a gradient."""
        if self.stand_in.grad is not None:
            self._parameter.detach().copy_(self.stand_in.detach())

    def detach(self) -> torch.Tensor:
        """The values. Nothing here refers to them any more."""
        values = self.stand_in.detach()
        self.stand_in.grad = None
        self._hold(self._nothing)
        return values

    def _hold(self, values: torch.Tensor) -> None:
        if self._sharded:
            replace_local_part(self.stand_in, local_part(values))
        else:
            self.stand_in.data = values
