"""What a store gives back is what was put: any dtype, shape, strides and container (group G)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aio import aio_handle
from aio.swap import SwapStore
from support.buffers import pattern, raw, tensor_of

DTYPES = (
    *(torch.uint8, torch.bool, torch.int16, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
)
SHAPES = st.one_of(
    st.lists(st.integers(0, 7), max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from([[4095], [4096], [4097], [16384], [16385], [5000, 3], [40961], [70001]]),
)
WAYS = ("plain", "transposed", "strided", "expanded", "offset", "channels_last")
SEGMENT_BYTES = 64 << 10  # so that rows are in several files


def make(dtype: torch.dtype, shape: list[int], way: str, seed: int) -> torch.Tensor:
    numel = max(torch.Size(shape).numel(), 1)
    size = torch.empty(0, dtype=dtype).element_size()
    values = pattern((2 * numel + 3) * size, seed)
    if dtype is torch.bool:
        values = bytes(byte & 1 for byte in values)
    flat = tensor_of(values, dtype)
    numel = torch.Size(shape).numel()
    plain = flat[:numel].reshape(shape)
    if way == "transposed" and len(shape) > 1:
        return plain.transpose(0, -1)
    if way == "strided":
        return flat[: 2 * numel : 2].reshape(shape) if not shape else flat[::2][:numel].view(shape)
    if way == "expanded" and shape and shape[0]:
        return plain[:1].expand(shape)
    if way == "offset":
        return flat[3 : 3 + numel].view(shape)
    if way == "channels_last" and len(shape) == 4:
        return plain.contiguous(memory_format=torch.channels_last)
    return plain


TENSORS = st.lists(
    st.builds(
        make, st.sampled_from(DTYPES), SHAPES, st.sampled_from(WAYS), st.integers(0, 1 << 30)
    ),
    max_size=6,
)


@pytest.fixture(scope="module", params=[None, "xxh3"])
def store(request: Any, tmp_path_factory: Any) -> Iterator[SwapStore]:
    if request.param:
        pytest.importorskip("xxhash", reason="xxhash is not installed")
    folder: Path = tmp_path_factory.mktemp("store")
    places = [folder / "a", folder / "b"]
    with (
        aio_handle() as handle,
        SwapStore(
            places,
            handle,
            bandwidths=[2, 1],
            checksum=request.param,
            segment_bytes=SEGMENT_BYTES,
        ) as made,
    ):
        yield made


def same(got: torch.Tensor, put: torch.Tensor) -> bool:
    return got.dtype == put.dtype and got.shape == put.shape and raw(got) == raw(put)


@given(TENSORS, st.sampled_from(["list", "tuple", "dict"]), st.booleans())
def test_new_tensors(store: SwapStore, tensors: list[Any], kind: str, prefetch: bool) -> None:
    before = [tensor.clone() for tensor in tensors]
    group: Any = {
        "list": list,
        "tuple": tuple,
        "dict": lambda t: dict(zip("abcdef", t, strict=False)),
    }[kind](tensors)
    nbytes = sum(len(raw(tensor)) for tensor in tensors)
    assert store.put("group", group).result() == nbytes == store.nbytes("group")
    if prefetch:
        assert store.prefetch("group").result() == nbytes
    got = store.get("group").result()
    assert type(got) is type(group)
    if kind == "dict":
        assert list(got) == list(group)
    values = list(got.values()) if kind == "dict" else got
    assert all(same(new, old) for new, old in zip(values, before, strict=True))
    assert all(same(put, old) for put, old in zip(tensors, before, strict=True))
    store.delete("group")
    assert store.stats()["allocated"] == 0


@given(TENSORS, st.lists(st.sampled_from(WAYS), min_size=6, max_size=6), st.booleans())
def test_into_tensors_of_any_strides(
    store: SwapStore, tensors: list[Any], ways: list[str], in_place: bool
) -> None:
    store.put("group", [torch.zeros_like(tensor) for tensor in tensors]).result()
    store.put("group", tensors, in_place=in_place).result()
    out = [
        make(tensor.dtype, list(tensor.shape), "plain" if way == "expanded" else way, 1)
        for tensor, way in zip(tensors, ways, strict=False)
    ]
    out = [
        target if target.shape == tensor.shape else torch.empty_like(tensor)
        for target, tensor in zip(out, tensors, strict=True)
    ]
    out = [t.clone() if any(s == 0 for s in t.stride()) else t for t in out]
    assert store.get("group", out).result() is out
    assert all(same(new, old) for new, old in zip(out, tensors, strict=True))


def test_dense_strides_are_kept(store: SwapStore) -> None:
    """States of a channels_last parameter stay channels_last."""
    image = torch.randn(2, 3, 50, 40).to(memory_format=torch.channels_last)
    store.put("image", [image, image[:, :, 0]]).result()
    same_strides, gaps_closed = store.get("image").result()
    assert same_strides.stride() == image.stride()
    assert gaps_closed.is_contiguous()
    assert torch.equal(same_strides, image)
    assert torch.equal(gaps_closed, image[:, :, 0])


def test_many_small_and_some_large(store: SwapStore) -> None:
    sizes = [index * 37 % 9000 for index in range(1000)] + [200_001, 300_000]
    tensors = {
        f"p{index}": torch.frombuffer(bytearray(pattern(size + 1, index)), dtype=torch.uint8)[1:]
        for index, size in enumerate(sizes)
    }
    before = store.stats()["allocated"]
    store.put("many", tensors).result()
    got = store.get("many").result()
    assert list(got) == list(tensors)
    assert all(torch.equal(got[key], tensors[key]) for key in tensors)
    used = store.stats()["allocated"] - before
    assert sum(sizes) <= used < sum(sizes) + 4 * 4096  # packed, not a block for each
    store.delete("many")


def test_parameters_and_lazy_conjugates(store: SwapStore) -> None:
    parameter = torch.nn.Parameter(torch.randn(100, 3))
    conjugate = torch.randn(50, dtype=torch.complex64).conj()
    store.put("lazy", (parameter, conjugate)).result()
    new, resolved = store.get("lazy").result()
    assert torch.equal(new, parameter)
    assert torch.equal(resolved, conjugate)
    target = torch.nn.Parameter(torch.zeros(100, 3))
    store.get("lazy", (target, torch.empty(50, dtype=torch.complex64).conj())).result()
    assert torch.equal(target, parameter)
    store.delete("lazy")


def test_results_are_pinned_and_apart(store: SwapStore) -> None:
    """A tensor that is kept does not keep its neighbours."""
    tensors = [torch.randn(100), torch.randn(70_000)]
    store.put("pinned", tensors).result()
    got = store.get("pinned").result()
    with aio_handle() as handle:
        assert all(handle.is_pinned(tensor) for tensor in got)
    assert len({tensor.untyped_storage().data_ptr() for tensor in got}) == 2
    store.delete("pinned")


def test_tensors_made_in_inference_mode(store: SwapStore) -> None:
    with torch.inference_mode():
        tensors = [torch.randn(10), torch.randn(50_000), torch.randn(100, 100)[:, ::2]]
        out = [torch.zeros_like(tensors[0]), torch.zeros(50_000), torch.zeros(50, 100).T]
    store.put("inference", tensors).result()
    store.get("inference", out).result()
    assert all(torch.equal(new, old) for new, old in zip(out, tensors, strict=True))
    new = store.get("inference").result()
    assert not any(tensor.is_inference() for tensor in new)
    store.prefetch("inference")
    store.get("inference", out).result()
    store.delete("inference")
