"""Fake, meta, sparse and device tensors: not pinned, and pinning them is a clean refusal (E-12)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pinned_manager import (
    is_pinned,
    pin_empty,
    pin_empty_like,
    pin_memory,
    pinned_memory_stats,
    unpin_memory,
)
from support.pinning import VARIABLE


class Wrapper(torch.Tensor):
    """A subclass that computes in Python: its own memory is not its elements."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(1000)


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that strided ones are a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they will go
        return torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)


def csr() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are in beta
        return torch.eye(10).to_sparse_csr()


KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "fake": fake,
    "meta": lambda: torch.empty(1000, device="meta"),
    "functional": lambda: torch._to_functional_tensor(torch.ones(10)),
    "sparse": lambda: torch.eye(10).to_sparse(),
    "csr": csr,
    "nested, jagged": lambda: nested(torch.jagged),
    "nested, strided": lambda: nested(torch.strided),
    "quantized": quantized,
    "subclass": lambda: Wrapper(torch.ones(10)),
}


@pytest.fixture(params=["native", "torch"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(VARIABLE, request.param)
    before = pinned_memory_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield request.param
    assert pinned_memory_stats()["calls"] == before["calls"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_memory_to_pin(kind: str) -> None:
    tensor = KINDS[kind]()
    assert is_pinned(tensor) is False
    for match_shape in (True, False):
        for make_copy in (True, False):
            with pytest.raises(NotImplementedError, match="pin"):
                pin_memory(tensor, make_copy, match_shape)
    assert not unpin_memory(tensor)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in ("fake", "meta", "subclass")]
)
def test_no_layout_to_pin_memory_for(kind: str) -> None:
    with pytest.raises(NotImplementedError, match="pin"):
        pin_empty_like(KINDS[kind]())


def test_an_uninitialized_parameter() -> None:
    parameter = torch.nn.UninitializedParameter()
    assert is_pinned(parameter) is False
    with pytest.raises(ValueError, match="uninitialized"):
        pin_memory(parameter)


class OnADevice(torch.Tensor):
    """Host memory that says it is a device's, since there is no device to have any."""

    device = torch.device("cuda", 3)  # type: ignore[assignment]


def test_a_device_tensor() -> None:
    tensor = torch.ones(10).as_subclass(OnADevice)
    with pytest.raises(ValueError, match=r"cuda:3 cannot be pinned.*tensor\.cpu\(\)"):
        pin_memory(tensor)
    with pytest.raises(ValueError, match="cuda:3"):
        pin_memory(tensor, make_copy=False)


@pytest.mark.parametrize("value", [None, 3, [1.0], torch.ones(3).numpy(), b"abc"], ids=type)
def test_what_is_no_tensor(value: Any) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        pin_memory(value)
    with pytest.raises(TypeError, match=type(value).__name__):
        pin_empty_like(value)


def test_inside_a_fake_mode(backend: str) -> None:
    real = torch.ones(10)
    with FakeTensorMode() as mode:
        assert is_pinned(real) is False
        assert is_pinned(mode.from_tensor(real)) is False
        if backend == "native":
            for call in (
                lambda: pin_empty(3),
                lambda: pin_empty_like(real),
                lambda: pin_memory(real),
            ):
                with pytest.raises(NotImplementedError, match="FakeTensor"):
                    call()


def test_inside_transforms() -> None:
    with pytest.raises(NotImplementedError, match="transforms"):
        torch.vmap(pin_memory)(torch.ones(3, 2))
    with pytest.raises(NotImplementedError, match="transforms"):
        torch.func.grad(lambda x: pin_memory(x).sum())(torch.ones(3))
    asked = torch.vmap(lambda x: x + int(is_pinned(x)))(torch.ones(3, 2))
    assert torch.equal(asked, torch.ones(3, 2))


def test_a_storage_that_was_made_smaller() -> None:
    """ZeRO frees a parameter so; copying it would read what is not there."""
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    assert is_pinned(tensor) is False
    with pytest.raises(ValueError, match="resized"):
        pin_memory(tensor)


@pytest.mark.parametrize("size", [(-1,), (2, -3), ((4, -1),)])
def test_negative_sizes(size: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="negative"):
        pin_empty(*size)


def test_sizes_that_are_no_numbers() -> None:
    with pytest.raises(TypeError):
        pin_empty(2.5)
    with pytest.raises(TypeError):
        pin_empty("ab")
