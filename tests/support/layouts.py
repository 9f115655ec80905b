"""Buffers to draw: any dtype, shape, strides and address, between guard bytes; numpy reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st

from support.buffers import locked, pattern

# One of each width, and those that numpy lacks.
DTYPES = (
    torch.uint8,
    torch.bool,
    torch.int16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float32,
    torch.int64,
    torch.complex128,
)

# Around every boundary that an implementation may have: sectors, pages, blocks, staging blocks.
SIZES = st.one_of(
    st.sampled_from(
        [0, 1, 2, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 12288, 65535, 65536, 65537, 262144]
    ),
    st.integers(0, 20_000),
)
OFFSETS = st.one_of(
    st.sampled_from([0, 0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, 131072]),
    st.integers(0, 150_000),
)


@dataclass(frozen=True)
class Layout:
    """A strided view in `total` bytes of memory: strides in elements, lead and total in bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    lead: int
    total: int

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def span(self) -> int:
        """Bytes from the first to the last that the view touches."""
        if self.nbytes == 0:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return (sum((size - 1) * stride for size, stride in steps) + 1) * self.itemsize


@st.composite
def dense_layouts(draw: st.DrawFn, sizes: st.SearchStrategy[int] = SIZES) -> Layout:
    """Contiguous, 1-D, at any byte address."""
    dtype = draw(st.sampled_from(DTYPES))
    count = draw(sizes) // dtype.itemsize
    lead = draw(st.one_of(st.sampled_from([0, 1, 16, 64, 512, 4096]), st.integers(0, 600)))
    tail = draw(st.sampled_from([0, 1, 100, 513]))
    return Layout(dtype, (count,), (1,), lead, lead + count * dtype.itemsize + tail)


@st.composite
def strided_layouts(draw: st.DrawFn, widest: int = 40) -> Layout:
    """0 to 3 dimensions in any memory order, each with a step; no two elements share a byte."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, widest), max_size=3)))
    order = draw(st.permutations(range(len(shape))))
    strides = [0] * len(shape)
    reach = 1
    for axis in order:
        strides[axis] = reach * draw(st.integers(1, 3))
        reach = strides[axis] * max(shape[axis], 1)
    lead = draw(st.one_of(st.sampled_from([0, 16, 64]), st.integers(0, 600)))
    tail = draw(st.sampled_from([0, 1, 100, 513]))
    bare = Layout(dtype, shape, tuple(strides), lead, 0)
    return Layout(dtype, shape, tuple(strides), lead, lead + bare.span + tail)


LAYOUTS = st.one_of(dense_layouts(), dense_layouts(), strided_layouts())


class Memory:
    """`layout.total` bytes of memory, filled from a seed, and the view that the library gets."""

    def __init__(self, layout: Layout, kind: str, form: str, seed: int, handle: Any) -> None:
        self.layout = layout
        total = max(layout.total, 1)
        if kind == "pinned":
            self.base = locked(handle, total)
        else:
            self.base = torch.empty(total, dtype=torch.uint8)
        self.bytes: npt.NDArray[np.uint8] = self.base.numpy()
        self.bytes[:] = np.frombuffer(pattern(total, seed), np.uint8)
        self.view = self._present(form)

    def _present(self, form: str) -> Any:
        layout = self.layout
        if form == "memoryview" and layout.strides == (1,):
            return self.bytes.data[layout.lead : layout.lead + layout.nbytes]
        if form == "numpy" and layout.dtype in (torch.uint8, torch.int16, torch.float32):
            typed = {torch.uint8: np.uint8, torch.int16: np.int16, torch.float32: np.float32}
            return _numpy_view(self.bytes, layout, typed[layout.dtype])
        if layout.nbytes == 0:
            return torch.empty(layout.shape, dtype=layout.dtype)
        inside = self.base[layout.lead : layout.lead + layout.span]
        if layout.lead % layout.itemsize == 0:
            flat = inside.view(layout.dtype)
        else:  # torch views storage at whole elements only, but takes a buffer at any address
            flat = torch.frombuffer(inside.numpy().data, dtype=layout.dtype)
        return torch.as_strided(flat, layout.shape, layout.strides, flat.storage_offset())

    def gathered(self) -> bytes:
        """The view's elements in order, as numpy reads them."""
        return _numpy_view(self.bytes, self.layout, self._raw()).tobytes()

    def scattered(self, data: bytes) -> bytes:
        """What all of the memory must hold once `data` has been read into the view."""
        expected = self.bytes.copy()
        values = np.frombuffer(data, self._raw()).reshape(self.layout.shape)
        _numpy_view(expected, self.layout, self._raw())[...] = values
        return expected.tobytes()

    def all_bytes(self) -> bytes:
        return self.bytes.tobytes()

    def _raw(self) -> str:
        return f"V{self.layout.itemsize}"


def _numpy_view(memory: npt.NDArray[np.uint8], layout: Layout, dtype: Any) -> npt.NDArray[Any]:
    steps = tuple(stride * layout.itemsize for stride in layout.strides)
    lead = layout.lead if layout.nbytes else 0
    return np.ndarray(layout.shape, dtype, buffer=memory.data, offset=lead, strides=steps)


@dataclass(frozen=True)
class MemoryDraw:
    """Memory as drawn; called with a handle, which pinned memory comes from, it is made."""

    layout: Layout
    kind: str
    form: str
    seed: int

    def __call__(self, handle: Any) -> Memory:
        return Memory(self.layout, self.kind, self.form, self.seed, handle)


def memories(layouts: st.SearchStrategy[Layout] = LAYOUTS) -> st.SearchStrategy[MemoryDraw]:
    """Memory of any layout, kind and form."""
    return st.builds(
        MemoryDraw,
        layout=layouts,
        kind=st.sampled_from(["plain", "pinned"]),
        form=st.sampled_from(["torch", "torch", "numpy", "memoryview"]),
        seed=st.integers(0, 2**32 - 1),
    )
