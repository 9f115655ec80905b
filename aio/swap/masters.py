"""Masters: fp32 copies of bf16 and fp16 parameters, which live with the optimizer's states."""

from __future__ import annotations

import torch

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
        self.stand_in = torch.nn.Parameter(self._nothing)

    def attach(self, values: torch.Tensor | None, gradient: bool = True) -> None:
        """``values``: float32 of the parameter's shape; None casts the parameter."""
        self.stand_in.data = self._parameter.detach().float() if values is None else values
        if gradient and self._parameter.grad is not None:
            self.stand_in.grad = self._parameter.grad.float()

    def publish(self) -> None:
        """Cast the values to the parameter, where there was a gradient."""
        if self.stand_in.grad is not None:
            self._parameter.detach().copy_(self.stand_in.detach())

    def detach(self) -> torch.Tensor:
        """The values. Nothing here refers to them any more."""
        values = self.stand_in.data
        self.stand_in.grad = None
        self.stand_in.data = self._nothing
        return values
