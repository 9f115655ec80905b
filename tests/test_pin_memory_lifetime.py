"""A region goes with its last alias or by unpin of who it was pinned for, once (E-05).

Aliases keep the memory (E-04); the second unpin is False (E-06); a view frees at the base (E-07).
"""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import support.torch_threads  # noqa: F401
from pinned_manager import is_pinned, pin_empty, pin_memory, pinned_memory_stats, unpin_memory
from support.pinning import VARIABLE, Baseline
from support.threads import in_threads

NUMEL = 300_000  # a mapping of its own
NBYTES = 4 * NUMEL + -4 * NUMEL % 4096


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Baseline]:
    """Native, and everything is given back."""
    monkeypatch.setenv(VARIABLE, "native")
    held = Baseline.now()
    yield held
    held.check_nothing_is_left()


def pinned(value: float = 1.0, numel: int = NUMEL) -> torch.Tensor:
    return pin_memory(torch.full((numel,), value))


def redirected(tensor: torch.Tensor) -> torch.Tensor:
    holder = torch.zeros(3)
    holder.data = tensor
    return holder


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda t: t[5:],
    "data": lambda t: t.data,
    "redirected": redirected,
    "detach": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "memoryview": lambda t: memoryview(t.numpy()),
    "dlpack": lambda t: torch.utils.dlpack.from_dlpack(t.__dlpack__()),
    "storage": lambda t: t.untyped_storage(),
    "parameter": lambda t: torch.nn.Parameter(t),
    "saved for backward": lambda t: (t * torch.ones(1, requires_grad=True)).grad_fn,
}


@pytest.mark.parametrize("name", ALIASES)
def test_the_last_alias(held: Baseline, name: str) -> None:
    tensor = pinned()
    alias = ALIASES[name](tensor)
    del tensor
    held.check(NBYTES)
    churn = [pinned(9.0) for _ in range(3)]
    churn.clear()
    held.check(NBYTES)
    if isinstance(alias, torch.Tensor):
        assert is_pinned(alias)
        assert bool((alias == 1).all())
    del alias
    held.check(0)


def test_no_reference_cycle(held: Baseline) -> None:
    """Dropping the tensor gives it back at once, without the garbage collector."""
    gc.disable()
    try:
        tensor = pinned()
        held.check(NBYTES)
        del tensor
        held.check(0)
    finally:
        gc.enable()


def test_attributes() -> None:
    tensor = pinned()
    assert tensor.ds_pinned is True
    assert tensor.ds_pin_base == tensor.data_ptr()
    assert unpin_memory(tensor) is True
    assert tensor.ds_pinned is False
    assert tensor.ds_pin_base is None


def test_redirected_then_unpinned(held: Baseline) -> None:
    """The region that was pinned for that object goes, once; wherever its `.data` leads stays."""
    tensor, other = pinned(), pinned(2.0)
    tensor.data = other
    held.check(2 * NBYTES)
    assert unpin_memory(tensor) is True
    held.check(NBYTES)
    assert unpin_memory(tensor) is False
    assert is_pinned(other)
    assert bool((other == 2).all())
    del tensor
    held.check(NBYTES)


def test_redirected_to_ordinary_memory(held: Baseline) -> None:
    tensor = pinned()
    view = tensor[3:]
    tensor.data = torch.zeros(8)
    assert is_pinned(tensor) is False
    assert is_pinned(view) is True
    assert unpin_memory(tensor) is True
    assert is_pinned(view) is False
    assert bool((view == 1).all())
    held.check(0)


def test_redirected_and_dropped(held: Baseline) -> None:
    tensor = pinned()
    tensor.data = torch.zeros(8)
    held.check(NBYTES)  # until the object goes, unpin can find it
    del tensor
    held.check(0)


def test_data_taken_over(held: Baseline) -> None:
    """`q.data = p.data`: what was not pinned itself frees what it starts with; then p is free."""
    tensor, taker = pinned(), torch.zeros(1)
    taker.data = tensor.data
    assert unpin_memory(taker) is True
    assert unpin_memory(tensor) is False
    assert is_pinned(tensor) is False
    assert bool((tensor == 1).all())
    held.check(0)


def test_an_address_used_again_is_not_freed_by_its_former_owner(held: Baseline) -> None:
    tensor = pinned()
    assert unpin_memory(tensor) is True
    tensor.data = torch.zeros(1)
    others = [pinned(2.0) for _ in range(20)]
    assert unpin_memory(tensor) is False
    assert all(is_pinned(other) for other in others)


@pytest.mark.parametrize("numel", [100, NUMEL], ids=["small", "large"])
def test_views(numel: int) -> None:
    """A view at the base frees the region; one inside does not."""
    tensor = pinned(numel=numel)
    for view in (tensor[1:], tensor[-1:], tensor[numel // 2 :]):
        assert unpin_memory(view) is False
        assert is_pinned(tensor)
    assert unpin_memory(tensor.view(2, -1)) is True
    assert unpin_memory(tensor) is False
    assert bool((tensor == 1).all())


def answers_of_two_threads(tensor: torch.Tensor) -> list[bool | None]:
    start = threading.Barrier(2)
    answers: list[bool | None] = []

    def free() -> None:
        start.wait()
        answers.append(unpin_memory(tensor))

    in_threads(free, free)
    return sorted(answers, key=bool)


def test_two_threads_at_once(held: Baseline) -> None:
    for _ in range(30):
        assert answers_of_two_threads(pinned(numel=100)) == [False, True]
        held.check(0)


def test_a_copy_owns_nothing(held: Baseline) -> None:
    """deepcopy and torch.save copy attributes, which must not make them owners of the region."""
    tensor = pinned()
    saved = io.BytesIO()
    torch.save(tensor, saved)
    saved.seek(0)
    for other in (copy.deepcopy(tensor), torch.load(saved), copy.copy(tensor[2:])):
        assert torch.equal(other, torch.ones(other.numel()))
        assert unpin_memory(other) is False
        held.check(NBYTES)
    assert unpin_memory(tensor) is True


def test_storages_cannot_be_resized() -> None:
    """So that no tensor is left over memory that is gone (E-19)."""
    tensor = pinned()
    with pytest.raises(RuntimeError, match="resiz"):
        tensor.untyped_storage().resize_(0)
    assert is_pinned(tensor)


def test_addresses_that_come_back(held: Baseline) -> None:
    """Let go by any path, an address is ordinary memory to whoever gets it next (E-19)."""
    for number in range(200):
        tensor = pinned(numel=5000)
        address = tensor.data_ptr()
        if number % 4 == 0:
            assert unpin_memory(tensor)
        elif number % 4 == 1:
            tensor.data = torch.zeros(1)
        elif number % 4 == 2:
            array = tensor.numpy()
            del tensor
            del array
        tensor = torch.empty(5000)
        assert is_pinned(tensor) is False
        again = pin_memory(tensor)
        assert is_pinned(again)
        if again.data_ptr() == address:
            assert unpin_memory(again) is True
    del again, tensor


def test_moments_of_an_optimizer_are_zeroed_by_who_uses_them() -> None:
    """Pinned scratch holds what was there before: a step must equal one in fresh memory (E-20)."""
    unused = pin_empty(1 << 18)
    unused.fill_(float("nan"))
    del unused
    moments = [pin_empty(1 << 18).zero_() for _ in range(2)]
    steps = []
    for state in (moments, [torch.zeros(1 << 18) for _ in range(2)]):
        parameter = torch.nn.Parameter(torch.ones(1 << 18))
        parameter.grad = torch.full((1 << 18,), 0.5)
        optimizer = torch.optim.Adam([parameter])
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": state[0],
            "exp_avg_sq": state[1],
        }
        optimizer.step()
        steps.append(parameter.detach())
    assert torch.equal(*steps)


def test_pages_and_no_more(held: Baseline) -> None:
    """129.5 MiB costs 129.5 MiB: a power of two would be 256 (E-09)."""
    nbytes = 129 * (1 << 20) + (1 << 19)
    tensor = pin_empty(nbytes, dtype=torch.uint8)
    held.check(nbytes)
    before = pinned_memory_stats()
    assert before["by_backend"]["native"]["live"] >= nbytes
    del tensor
