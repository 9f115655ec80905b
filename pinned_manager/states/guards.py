"""While tensors are empty, stepping does nothing and a checkpoint saves nothing, without an error;
so both are refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from pinned_manager.states.kinds import OffloadStateTypeEnum as Kind

if TYPE_CHECKING:
    from pinned_manager.states.collect import Optimizer, Part
    from pinned_manager.states.owners import Owner

_STEP = ("step() would update nothing", frozenset(Kind))
_OPTIMIZER_DICT = ("state_dict() would have empty tensors", frozenset({Kind.optim_states}))
_MODULE_DICT = (
    "state_dict() would have empty tensors",
    frozenset({Kind.hp_params, Kind.lp_params}),
)


class Guards:
    """Hooks on the optimizer and the modules of one target."""

    def __init__(self, owner: weakref.ref[Owner]) -> None:
        self._owner = owner  # not held: a hook must not keep what its optimizer owns alive
        self._hooks: weakref.WeakKeyDictionary[Optimizer | Part, list[RemovableHandle]]
        self._hooks = weakref.WeakKeyDictionary()

    def update(self, optimizer: Optimizer, others: Iterable[Part]) -> None:
        """Set hooks if something is empty now, else remove them."""
        owner = self._owner()
        if owner is not None and any(storage.has_emptied for storage in owner.storages):
            if optimizer not in self._hooks:
                self._hooks[optimizer] = [
                    optimizer.register_step_pre_hook(self._refusal(*_STEP)),
                    optimizer.register_state_dict_pre_hook(self._refusal(*_OPTIMIZER_DICT)),
                ]
            for other in others:
                if isinstance(other, torch.nn.Module) and other not in self._hooks:
                    refuse = self._refusal(*_MODULE_DICT)
                    hook = other.register_state_dict_pre_hook(refuse)  # type: ignore[no-untyped-call]
                    self._hooks[other] = [hook]
            return
        for hooks in list(self._hooks.values()):
            for hook in hooks:
                hook.remove()
        self._hooks.clear()

    def _refusal(self, what: str, kinds: frozenset[Kind]) -> Callable[..., None]:
        reference = self._owner

        def refuse(*_: Any) -> None:
            owner = reference()
            storages = owner.storages if owner is not None else []
            empty = {storage.kind for storage in storages if storage.has_emptied} & kinds
            if empty:
                names = ", ".join(sorted(kind.value for kind in empty))
                raise RuntimeError(
                    f"{what}, since these are offloaded: {names}; call reload_states() first"
                )

        return refuse
