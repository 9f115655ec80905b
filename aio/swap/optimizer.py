"""SwappedOptimizer: any optimizer of torch with its states on drives."""

from __future__ import annotations

import operator
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from aio.swap.errors import SwapStepError
from aio.swap.inner import InnerOptimizers
from aio.swap.loading import load_sub_groups, states_of_members
from aio.swap.masters import MASTERED, Master
from aio.swap.pipeline import Pipeline, TransferFailed
from aio.swap.saving import save_states
from aio.swap.sharding import largest_part
from aio.swap.state_view import SwappedStates
from aio.swap.statistics import OptimizerStats, StepMeter, StepStats
from aio.swap.store import Directory, SwapStore
from aio.swap.sub_groups import NOT_OPTIONS, Member, SubGroup, divide
from pinned_manager.states.interrupts import deferred_signals

SUB_GROUP_BYTES = 128 << 20
_SCALING = ("grad_scale", "found_inf")  # what GradScaler sets on an optimizer around step()


class SwappedOptimizer(torch.optim.Optimizer):
    """An optimizer of class ``optimizer_cls`` whose states live on drives between steps.

    Arguments:
        params: as for ``optimizer_cls``: parameters, (name, parameter) pairs, or param groups.
        optimizer_cls: a subclass of torch.optim.Optimizer that updates each parameter by itself.
        swap_dir: one directory or several, or a SwapStore, which stays the caller's.
        sub_group_bytes: states that are moved and updated together. Three buffers of this size
            (or of the largest parameter's states, if that is more) are locked in memory.
        cache_bytes: of states that stay in memory between steps, besides.
        master_weights: keep float32 masters of bfloat16 and float16 parameters with the states.
        optimizer_kwargs: for ``optimizer_cls``.

    It computes what ``optimizer_cls`` computes in memory, bit for bit. With ``master_weights`` that
    is the optimizer on float32 copies, with gradients cast to float32, and the copies cast back.

    Of DTensors (FSDP2, tensor parallelism) each rank swaps its parts, with no communication but the
    optimizer's own. Sizes are of this rank.

    ``state`` reads states from the drive when they are asked for. Raises ValueError and TypeError
    for arguments, and whatever ``optimizer_cls`` and SwapStore raise. Not for several threads at
    once. In a forked child the methods raise RuntimeError.

    ``with``, close(), dropping the last reference and the end of the interpreter delete the files.
    In a store of the caller's, close() deletes the states, and the end of the store does.
    """

    state: Any  # a SwappedStates

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_cls: type[torch.optim.Optimizer],
        *,
        swap_dir: Directory | Sequence[Directory] | SwapStore,
        sub_group_bytes: int = SUB_GROUP_BYTES,
        cache_bytes: int = 0,
        master_weights: bool = False,
        **optimizer_kwargs: Any,
    ) -> None:
        if operator.index(sub_group_bytes) < 1:
            raise ValueError(f"sub_group_bytes is {sub_group_bytes}, but must be at least 1")
        if operator.index(cache_bytes) < 0:
            raise ValueError(f"cache_bytes is {cache_bytes}, but must be at least 0")
        self._inners = InnerOptimizers(optimizer_cls, optimizer_kwargs)
        self._mastered = MASTERED if master_weights else frozenset[torch.dtype]()
        self._sub_group_bytes = sub_group_bytes
        self._sub_groups: list[SubGroup] = []
        self._made = False
        given = params if isinstance(params, torch.Tensor) else list(params)
        groups: Any = given
        if not isinstance(given, torch.Tensor) and given and not isinstance(given[0], dict):
            groups = [{"params": given}]
        template = self._template(groups)
        super().__init__(given, template.defaults)
        self._adopt(self.param_groups, template)
        self._backwards = False
        self._steps = 0
        self._unfinished: list[SubGroup] = []
        self._last_step: StepStats | None = None
        self._bytes_read = self._bytes_written = 0
        self._closed = False
        self._own_store = not isinstance(swap_dir, SwapStore)
        self._store = swap_dir if isinstance(swap_dir, SwapStore) else SwapStore(swap_dir)
        name = f"optimizer {secrets.token_hex(4)}"
        self._pipeline = Pipeline(self._store, sub_group_bytes, cache_bytes, name)
        self._add_sub_groups(0)
        self.state = SwappedStates(self._sub_groups, self._pipeline, self.param_groups)
        self._made = True

    # ---- what torch.optim.Optimizer does ----

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. Returns the closure's result.

        Raises SwapStepError when a transfer fails, and RuntimeError after close().
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        order = [sub_group for sub_group in self._sub_groups if sub_group.has_gradient()]
        if self._backwards:
            order.reverse()
        self._backwards = not self._backwards
        self._run(order)
        return loss

    @torch.no_grad()
    def finish_step(self) -> None:
        """After a SwapStepError of step(): update those that were not updated, once the reason is
        gone. Gradients must be what they were. Does nothing when the last step was whole.
        """
        if self._unfinished:
            self._run(list(self._unfinished))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in ``torch.optim.Optimizer``. The new parameters become sub-groups of their own."""
        if not self._made:  # the constructor of Optimizer
            super().add_param_group(param_group)
            return
        self._require_open()
        template = self._template([param_group])
        super().add_param_group(param_group)
        self._adopt(self.param_groups[-1:], template)
        self._add_sub_groups(len(self.param_groups) - 1)

    def state_dict(self) -> dict[str, Any]:
        """As of ``optimizer_cls``: it can load it, and the other way round. Masters are in it as
        ``"master_weight"``.

        The result is all states in memory. On the way there is one sub-group more; save() never has
        more than that. Raises AioError when states cannot be read.
        """
        self._require_open()
        result: dict[str, Any] = super().state_dict()
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take states and hyper-parameters of state_dict(), this one's or ``optimizer_cls``'s.

        They are written to the drive sub-group by sub-group, beside the present ones, which needs
        that much room. Raises ValueError for what does not match the parameters, SwapFullError and
        AioError; nothing has changed then.
        """
        self._require_open()
        pipeline = self._pipeline
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = pre_hook(self, state_dict)
            if replaced is not None:
                state_dict = replaced
        states = states_of_members(state_dict, self.param_groups, self._sub_groups, self._inners)
        saved_groups = deepcopy(state_dict["param_groups"])
        with torch.no_grad():
            made, options = load_sub_groups(
                states,
                saved_groups,
                self.param_groups,
                self._sub_groups,
                pipeline,
                self._inners,
            )
        with deferred_signals():  # half of it would be neither the old states nor the new ones
            for old in self._sub_groups:
                pipeline.forget(old)
            self._sub_groups[:] = made
            self._unfinished = []
            for number, saved in enumerate(saved_groups):
                mine = self.param_groups[number]
                kept = {key: mine[key] for key in NOT_OPTIONS if key in mine}
                if "param_names" in saved:
                    kept["param_names"] = saved["param_names"]
                self.param_groups[number] = {**saved, **options.get(number, {}), **kept}
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a SwappedOptimizer cannot be copied or pickled: its states are in files of this "
            "process; use save(), or state_dict()"
        )

    # ---- checkpoints ----

    def save(self, path: str | os.PathLike[str], *, progress: bool = False) -> None:
        """Write what ``torch.save(self.state_dict(), path)`` would, with one sub-group in memory.

        Of DTensors it has the parts of this rank: each rank saves to a path of its own. The file
        takes the place of ``path`` when it is whole and durable: a kill at any moment leaves the
        old one or the new one. ``torch.load`` reads it. ``progress`` shows a bar (package tqdm).
        Hooks of state_dict() are not called. Raises OSError, and TypeError for tensors of a kind
        that it cannot write.
        """
        self._require_open()
        groups = []
        first = 0
        for group in self.param_groups:
            packed = {key: value for key, value in group.items() if key != "params"}
            packed["params"] = list(range(first, first + len(group["params"])))
            first += len(group["params"])
            groups.append(packed)
        save_states(Path(os.path.abspath(path)), self._sub_groups, self.state, groups, progress)

    def load(self, path: str | os.PathLike[str]) -> None:
        """load_state_dict() of a file of save(), or of torch.save(), with one sub-group in memory.

        A file with parts of DTensors is for the rank that has saved it, on the same mesh; else
        ValueError. Raises what load_state_dict() and ``torch.load(path, weights_only=True)`` raise;
        then nothing has changed.
        """
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        if not isinstance(loaded, dict) or not {"state", "param_groups"} <= set(loaded):
            raise ValueError(f"{os.fspath(path)!r} holds no state_dict of an optimizer")
        self.load_state_dict(loaded)

    # ---- statistics and the end ----

    def stats(self) -> OptimizerStats:
        """What was moved, how long it took, and what is in memory."""
        pipeline = self._pipeline
        return {
            "steps": self._steps,
            "bytes_read": self._bytes_read,
            "bytes_written": self._bytes_written,
            "sub_groups": len(self._sub_groups),
            "state_bytes": sum(s.nbytes for s in self._sub_groups if s.layout is not None),
            "cached_bytes": pipeline.resident_bytes(),
            "buffer_bytes": pipeline.frames.bytes,
            "peak_buffer_bytes": pipeline.frames.peak_bytes,
            "last_step": self._last_step,
        }

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def close(self) -> None:
        """Give up the states, with their files and buffers. Parameters stay. Repeating it is
        harmless. Raises OSError when files cannot be deleted.
        """
        if self._closed or self._store.closed:
            self._closed = True
            return
        self._closed = True
        pipeline = self._pipeline
        for sub_group in self._sub_groups:
            pipeline.forget(sub_group)
        pipeline.frames.clear()
        if self._own_store:
            self._store.close()

    def __enter__(self) -> SwappedOptimizer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- inside ----

    def _run(self, order: list[SubGroup]) -> None:
        self._require_open()
        self._require_same_parameters()
        pipeline = self._pipeline
        pipeline.size_slots([sub_group.nbytes for sub_group in self._sub_groups])
        attributes = {name: getattr(self, name) for name in _SCALING if hasattr(self, name)}
        before = [dict(group) for group in self.param_groups]
        changes: dict[int, dict[str, Any]] = {}

        def update(sub_group: SubGroup, extent: torch.Tensor | None) -> None:
            changed = sub_group.update(extent, before, attributes, pipeline.frames)
            for group, values in changed.items():
                changes.setdefault(group, {}).update(values)

        meter = StepMeter()
        remaining = self._unfinished = list(order)
        with deferred_signals() as signals:
            try:
                pipeline.run(order, update, meter, remaining, signals)
            except TransferFailed as failed:
                raise self._told(failed, order, remaining) from failed.__cause__
            finally:
                self._steps += 1
                self._last_step = meter.result()
                self._bytes_read += meter.bytes_read
                self._bytes_written += meter.bytes_written
                for number, values in changes.items():
                    self.param_groups[number].update(values)

    def _told(
        self, failed: TransferFailed, order: Sequence[SubGroup], remaining: Sequence[SubGroup]
    ) -> SwapStepError:
        updated = [sub_group for sub_group in order if sub_group not in remaining]
        return SwapStepError(
            failed.operation,
            _labels([failed.sub_group]),
            _labels(updated),
            _labels(remaining),
            failed.__cause__ or failed,
        )

    def _template(self, groups: Any) -> torch.optim.Optimizer:
        """See InnerOptimizers. For groups that no optimizer takes, raises what the class raises."""
        fit = isinstance(groups, list) and groups
        if not fit or not all(_is_param_group(group) for group in groups):
            return self._inners.make_as_given(groups)
        for group in groups:
            if not isinstance(group["params"], (torch.Tensor, list, tuple)):
                group["params"] = list(group["params"])
        _check_unique(groups)
        template = self._inners.template(groups, self._mastered)
        if getattr(template, "_step_supports_amp_scaling", False):
            self._step_supports_amp_scaling = True
        return template

    @staticmethod
    def _adopt(groups: Sequence[dict[str, Any]], template: torch.optim.Optimizer) -> None:
        """Options that the constructor of the class adds to its groups."""
        for group, like in zip(groups, template.param_groups, strict=True):
            for key, value in like.items():
                if key not in NOT_OPTIONS:
                    group.setdefault(key, value)

    def _add_sub_groups(self, first_group: int) -> None:
        index = sum(len(group["params"]) for group in self.param_groups[:first_group])
        members = []
        for number, group in enumerate(self.param_groups[first_group:], first_group):
            options = {key: value for key, value in group.items() if key not in NOT_OPTIONS}
            names = group.get("param_names") or [None] * len(group["params"])
            for name, parameter in zip(names, group["params"], strict=True):
                master = Master(parameter) if parameter.dtype in self._mastered else None
                dtype = parameter.dtype if master is None else torch.float32
                sample = self._inners.sample(options, number, parameter, dtype)
                # Two moments are what most optimizers keep.
                each = 2 * dtype.itemsize if sample is None else sample.bytes_per_element
                each += 0 if master is None else dtype.itemsize
                estimate = round(largest_part(parameter) * each)
                members.append(Member(parameter, number, index, name, master, estimate))
                index += 1
        first = len(self._sub_groups)
        self._sub_groups += divide(members, self._sub_group_bytes, first, self._inners)

    def _require_same_parameters(self) -> None:
        mine = [id(member.parameter) for group in self._sub_groups for member in group.members]
        if mine != [id(p) for group in self.param_groups for p in group["params"]]:
            raise RuntimeError(
                "param_groups has other parameters than those that were given; add new ones with "
                "add_param_group(), and make another optimizer to take some away"
            )

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("the optimizer is closed and its states are gone; make another")
        if self._store.closed:
            raise RuntimeError(
                "the store of the optimizer is closed, or belongs to the process that forked this "
                "one; make another optimizer"
            )


def _is_param_group(group: Any) -> bool:
    return isinstance(group, dict) and "params" in group and not isinstance(group["params"], set)


def _check_unique(groups: Sequence[dict[str, Any]]) -> None:
    for group in groups:
        params = group["params"]
        given = [params] if isinstance(params, torch.Tensor) else params
        entries = [entry[1] if isinstance(entry, tuple) else entry for entry in given]
        if len({id(entry) for entry in entries}) < len(entries):
            raise ValueError("a param group has a parameter twice; give each once")


def _labels(sub_groups: Iterable[SubGroup]) -> list[str]:
    return [member.label for sub_group in sub_groups for member in sub_group.members]
