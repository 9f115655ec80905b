"""pin_memory and is_pinned in compiled regions look when they run, never while tracing (E-13)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pinned_manager import (
    get_accelerator,
    is_pinned,
    pin_empty,
    pin_memory,
    pinned_memory_stats,
    unpin_memory,
)
from support.child import child_answer
from support.pinning import VARIABLE


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that the library does in a compiled region makes torch warn (E-12)."""
    monkeypatch.setenv(VARIABLE, "native")
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch's own, in itself
        yield


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """Traced and partitioned as always, but without a C++ compiler, which takes minutes."""
    result: Callable[..., Any] = torch.compile(function, **{"backend": "aot_eager", **how})
    return result


def test_pin_memory_follows_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """One compiled function, and a second with the same caches: neither has a backend baked in."""
    x = torch.arange(12.0).reshape(3, 4)
    for _ in range(2):
        pin = compiled(lambda x: pin_memory(x), fullgraph=True)
        for backend in ("torch", "native", "torch"):
            monkeypatch.setenv(VARIABLE, backend)
            pinned = pin(x)
            assert torch.equal(pinned, x)
            assert is_pinned(pinned) is (backend == "native")


def test_graphs_from_a_cache_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default compiler keeps what it made in a directory, which the next process reads."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.ones(10)
    for backend in ("torch", "native", "torch"):
        monkeypatch.setenv(VARIABLE, backend)
        torch._dynamo.reset()
        pin = compiled(lambda x: pin_memory(x), backend="inductor", fullgraph=True)
        assert is_pinned(pin(x)) is (backend == "native")
    assert any(tmp_path.iterdir())


def test_methods_of_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = get_accelerator()
    both = compiled(lambda x: (accelerator.pin_memory(x), accelerator.is_pinned(x)), fullgraph=True)
    for backend in ("native", "torch"):
        monkeypatch.setenv(VARIABLE, backend)
        pinned, was_pinned = both(torch.ones(10))
        assert is_pinned(pinned) is (backend == "native")
        assert not was_pinned


def test_layouts() -> None:
    """Shapes and strides are those of the same call outside, also for sizes not seen before."""

    def pin(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            pin_memory(x.t(), match_shape=False),
            pin_memory(x.t()),
            pin_memory(x[:, ::2]),
            pin_memory(x, make_copy=False),
        ]

    in_graph = compiled(pin, fullgraph=True, dynamic=True)
    for shape in ((3, 4), (5, 6), (7, 2)):
        x = torch.rand(shape)
        for inside, outside in zip(in_graph(x), pin(x), strict=True):
            assert is_pinned(inside)
            assert inside.stride() == outside.stride()
            assert inside.shape == outside.shape
        assert torch.equal(in_graph(x)[1], x.t())


def test_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph may reuse an argument's memory, so that nothing returned may share it."""

    def pin(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        pinned = pin_memory(y)
        y.add_(1)
        return pinned, y

    in_graph = compiled(pin, fullgraph=True)
    for backend in ("native", "torch"):
        monkeypatch.setenv(VARIABLE, backend)
        for x in (torch.zeros(10), pin_memory(torch.zeros(10))):
            pinned, y = in_graph(x)
            assert torch.equal(pinned, torch.ones(10))
            assert torch.equal(y, torch.full((10,), 2.0))


def test_what_is_pinned_already_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    x = pin_memory(torch.ones(10))
    in_graph = compiled(lambda x: pin_memory(x), fullgraph=True)
    for backend in ("native", "torch"):
        monkeypatch.setenv(VARIABLE, backend)
        own = in_graph(x)
        assert own.data_ptr() != x.data_ptr()
        assert torch.equal(own, x)
        assert is_pinned(own) is (backend == "native")


def test_gradients() -> None:
    leaf = torch.ones(3, 2, requires_grad=True)
    tripled = compiled(lambda x: (pin_memory(x, match_shape=False) * 3).sum(), fullgraph=True)
    tripled(leaf).backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.full((3, 2), 3.0))


def test_is_pinned_is_asked_each_time() -> None:
    ask = compiled(lambda x: (x + 1, is_pinned(x)), fullgraph=True)
    pinned, plain = pin_memory(torch.ones(100)), torch.ones(100)
    for _ in range(2):
        assert ask(pinned)[1] is True
        assert ask(plain)[1] is False
    assert unpin_memory(pinned)
    assert ask(pinned)[1] is False


def branch(x: torch.Tensor) -> torch.Tensor:
    if is_pinned(x):
        return x * 2
    return x * 3


def test_a_branch_breaks_the_graph() -> None:
    chosen = compiled(branch)
    for _ in range(2):
        assert torch.equal(chosen(pin_memory(torch.ones(10))), torch.full((10,), 2.0))
        assert torch.equal(chosen(torch.ones(10)), torch.full((10,), 3.0))


def test_a_branch_in_a_full_graph_is_torchs_own_error() -> None:
    with pytest.raises(Exception, match="data-dependent"):
        compiled(branch, fullgraph=True)(torch.ones(10))


def use(x: torch.Tensor) -> tuple[torch.Tensor, bool | None]:
    scratch = pin_empty(10)
    scratch.copy_(x)
    y = scratch + 1
    return y, unpin_memory(scratch)


def test_the_others_break_the_graph() -> None:
    before = pinned_memory_stats()
    y, freed = compiled(use)(torch.ones(10))
    assert torch.equal(y, torch.full((10,), 2.0))
    assert freed is True
    assert pinned_memory_stats()["live"] == before["live"]
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="pin_empty"):
        compiled(use, fullgraph=True)(torch.ones(10))


def test_importing_does_not_import_the_compiler() -> None:
    script = "import sys, pinned_manager, json; print(json.dumps('torch._dynamo' in sys.modules))"
    assert child_answer(script) is False
