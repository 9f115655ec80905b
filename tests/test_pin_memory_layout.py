"""What pin_memory gives back: elements, shape, strides, gradients, and one buffer only (E-14)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pinned_manager import (
    NativePinnedMemory,
    is_pinned,
    pin_empty,
    pin_empty_like,
    pin_memory,
)
from support.buffers import raw
from support.layouts import DTYPES, LAYOUTS, Layout, Memory
from support.pinning import VARIABLE


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "native")


def memory_of(layout: Layout, seed: int) -> Memory:
    memory = Memory(layout, "plain", "torch", seed, None)
    if layout.dtype == torch.bool:
        memory.bytes &= 1  # torch makes other bytes 1 when it copies them
    return memory


def is_dense(tensor: torch.Tensor) -> bool:
    """True when its elements fill one range of memory, each once."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != reach:
                return False
            reach *= size
    return True


@given(layout=LAYOUTS, seed=st.integers(0, 5))
def test_any_tensor(layout: Layout, seed: int) -> None:
    """Any dtype, strides and address: the elements, in their shape, in dense memory."""
    memory = memory_of(layout, seed)
    tensor, before = memory.view, memory.all_bytes()
    pinned = pin_memory(tensor)
    assert raw(pinned) == memory.gathered()
    assert memory.all_bytes() == before
    assert (pinned.shape, pinned.dtype) == (tensor.shape, tensor.dtype)
    assert is_pinned(pinned) is (tensor.numel() > 0)
    assert is_dense(pinned)
    if tensor.numel():
        assert pinned.stride() == torch.empty_like(tensor).stride()
        assert pinned.data_ptr() % 4096 == 0
        assert pinned.untyped_storage().nbytes() == tensor.nbytes
    if is_dense(tensor) and tensor.numel():
        assert pinned.stride() == tensor.stride()


@given(layout=LAYOUTS, seed=st.integers(0, 5))
def test_flat(layout: Layout, seed: int) -> None:
    memory = memory_of(layout, seed)
    tensor = memory.view
    pinned = pin_memory(tensor, match_shape=False)
    assert pinned.shape == (tensor.numel(),)
    assert pinned.is_contiguous()
    assert pinned.dtype == tensor.dtype
    assert raw(pinned) == memory.gathered()
    assert is_pinned(pinned) is (tensor.numel() > 0)


@given(layout=LAYOUTS, match_shape=st.booleans())
def test_without_a_copy(layout: Layout, match_shape: bool) -> None:
    memory = memory_of(layout, 3)
    tensor, before = memory.view, memory.all_bytes()
    pinned = pin_memory(tensor, make_copy=False, match_shape=match_shape)
    assert pinned.shape == (tensor.shape if match_shape else (tensor.numel(),))
    assert is_pinned(pinned) is (tensor.numel() > 0)
    pinned.zero_()
    assert memory.all_bytes() == before


@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    dtype=st.sampled_from(DTYPES),
    as_one=st.booleans(),
)
def test_pin_empty(shape: list[int], dtype: torch.dtype, as_one: bool) -> None:
    pinned = pin_empty(shape, dtype=dtype) if as_one else pin_empty(*shape, dtype=dtype)
    model = torch.empty(shape, dtype=dtype)
    assert (pinned.shape, pinned.stride(), pinned.dtype) == (
        model.shape,
        model.stride(),
        model.dtype,
    )
    assert is_pinned(pinned) is (model.numel() > 0)
    example = NativePinnedMemory().pin_empty(model.new_empty(0), shape)  # DeepSpeed's form
    assert (example.shape, example.dtype) == (model.shape, model.dtype)


TEMPLATES: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.empty(3, 5),
    "transposed": lambda: torch.empty(3, 5).t(),
    "channels last": lambda: torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.empty(6, 10)[::2, ::3],
    "expanded": lambda: torch.empty(1, 5).expand(3, 5),
    "meta": lambda: torch.empty(3, 5, device="meta").t(),
    "0-dim": lambda: torch.tensor(3.0),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("dtype", [None, torch.int8])
def test_pin_empty_like(name: str, dtype: torch.dtype | None) -> None:
    template = TEMPLATES[name]()
    pinned = pin_empty_like(template, dtype=dtype)
    model = torch.empty_like(template, dtype=dtype, device="cpu")
    assert (pinned.shape, pinned.stride(), pinned.dtype) == (
        model.shape,
        model.stride(),
        model.dtype,
    )
    assert is_pinned(pinned)


def test_default_dtype_and_device() -> None:
    assert pin_empty(3).dtype == torch.get_default_dtype()
    torch.set_default_device("meta")
    try:
        assert pin_empty(3).device.type == "cpu"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "meta", "nonsense"])
def test_pinned_memory_is_host_memory(device: str) -> None:
    for call in (
        lambda: pin_empty(3, device=device),
        lambda: pin_empty_like(torch.ones(3), device=device),
    ):
        with pytest.raises(ValueError, match=f"{device!r}, but must be 'cpu'"):
            call()


@pytest.mark.parametrize("match_shape", [True, False])
def test_gradients_flow_as_through_torchs_own(match_shape: bool) -> None:
    """torch's pin_memory is differentiable: a leaf gives a tensor that is none, and gets its
    gradient.
    """
    leaf = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    pinned = pin_memory(leaf, match_shape=match_shape)
    assert is_pinned(pinned)
    assert pinned.requires_grad
    assert not pinned.is_leaf
    weights = torch.arange(6.0).reshape(3, 2)
    (pinned * (weights if match_shape else weights.reshape(-1))).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, weights)
    with torch.no_grad():
        assert not pin_memory(leaf).requires_grad
    assert not pin_memory(leaf, make_copy=False).requires_grad
    assert leaf.is_leaf


def test_a_parameter_gives_a_plain_tensor() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    assert type(pin_memory(parameter)) is torch.Tensor
    replaced = torch.nn.Parameter(pin_memory(parameter.detach()))
    assert is_pinned(replaced)
    assert replaced.is_leaf


def test_no_elements() -> None:
    """There is nothing to pin: no memory, not pinned, nothing to unpin."""
    manager = NativePinnedMemory()
    for pinned in (manager.pin(torch.empty(0, 3)), manager.pin_empty(0), pin_empty(2, 0)):
        assert pinned.numel() == 0
        assert pinned.ds_pinned is False
        assert manager.is_pinned(pinned) is False
        assert manager.unpin(pinned) is False
    assert manager.pin(torch.empty(0, 3)).shape == (0, 3)


def test_lazy_views_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(pin_memory(tensor.conj()), tensor.conj())
    assert torch.equal(pin_memory(tensor.conj().imag), tensor.conj().imag)
