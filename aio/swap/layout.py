"""How the tensors of a group lie in one row of bytes, which extents then hold.

Whole blocks of large tensors come first, each at a multiple of the alignment: they go directly from
where they are. What is left of them, and small tensors, are packed one after another into chunks,
which are gathered in memory, so that a thousand small tensors are a few aligned transfers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

SMALL_BYTES = 16 << 10  # up to here a copy is cheaper than a transfer of its own
CHUNK_BYTES = 4 << 20

Tensors = Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor was, without its bytes."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]  # of its elements in the files: its own if dense, else row-major
    nbytes: int


@dataclass(frozen=True)
class Body:
    """The whole blocks of a tensor, from its first byte on."""

    tensor: int  # which
    nbytes: int
    offset: int  # in the row


@dataclass(frozen=True)
class Packed:
    """The rest of a tensor, or all of a small one."""

    tensor: int
    start: int  # byte of the tensor
    nbytes: int
    offset: int  # in the chunk


@dataclass(frozen=True)
class Chunk:
    """Packed pieces that are written and read together."""

    offset: int  # in the row
    nbytes: int  # a multiple of the alignment
    pieces: tuple[Packed, ...]


@dataclass(frozen=True)
class GroupLayout:
    """The container of a group, its tensors, and where their bytes are."""

    kind: type  # dict, list or tuple
    keys: tuple[str, ...] | None  # of a mapping
    specs: tuple[TensorSpec, ...]
    bodies: tuple[Body, ...]
    chunks: tuple[Chunk, ...]
    row_bytes: int  # a multiple of the alignment

    @property
    def nbytes(self) -> int:
        """Of the tensors, without padding."""
        return sum(spec.nbytes for spec in self.specs)

    def container(self, tensors: list[torch.Tensor]) -> Any:
        """As it was put."""
        if self.keys is not None:
            return dict(zip(self.keys, tensors, strict=True))
        return tuple(tensors) if self.kind is tuple else tensors


def layout_of(tensors: Tensors, alignment: int) -> GroupLayout:
    """TypeError for what is no container of plain tensors."""
    keys: tuple[str, ...] | None = None
    kind: type = dict
    if isinstance(tensors, Mapping):
        keys = tuple(tensors)
    elif isinstance(tensors, Sequence):
        kind = tuple if isinstance(tensors, tuple) else list
    else:
        raise TypeError(
            f"tensors is a {type(tensors).__name__}, but must be a sequence or a mapping of "
            "tensors; put one tensor as [tensor]"
        )
    specs = tuple(_spec_of(tensor, where) for where, tensor in _items(tensors))
    bodies: list[Body] = []
    rests: list[tuple[int, int, int]] = []  # tensor, first byte, bytes
    row = 0
    for index, spec in enumerate(specs):
        whole = spec.nbytes // alignment * alignment if spec.nbytes > SMALL_BYTES else 0
        if whole:
            bodies.append(Body(index, whole, row))
            row += whole
        if spec.nbytes > whole:
            rests.append((index, whole, spec.nbytes - whole))
    chunks: list[Chunk] = []
    pieces: list[Packed] = []
    used = 0

    def end_chunk() -> None:
        nonlocal pieces, used, row
        size = -(-used // alignment) * alignment
        chunks.append(Chunk(row, size, tuple(pieces)))
        row += size
        pieces, used = [], 0

    for index, start, nbytes in rests:
        if used and used + nbytes > CHUNK_BYTES:
            end_chunk()
        pieces.append(Packed(index, start, nbytes, used))
        used += nbytes
    if pieces:
        end_chunk()
    return GroupLayout(kind, keys, specs, tuple(bodies), tuple(chunks), row)


def check_out(out: Tensors, layout: GroupLayout, name: str) -> list[torch.Tensor]:
    """The tensors to read into, in the order that they were put. TypeError, or ValueError that says
    what differs.
    """
    keys = layout.keys
    if keys is not None:
        if not isinstance(out, Mapping):
            raise TypeError(f"{name!r} is a mapping, but out is a {type(out).__name__}")
        if set(out) != set(keys):
            odd = sorted(map(repr, set(out) ^ set(keys)))
            raise ValueError(f"out and {name!r} differ in the names {', '.join(odd)}")
        tensors = [out[key] for key in keys]
    else:
        if isinstance(out, Mapping) or not isinstance(out, Sequence):
            raise TypeError(f"{name!r} is a sequence, but out is a {type(out).__name__}")
        if len(out) != len(layout.specs):
            raise ValueError(f"out has {len(out)} tensors, but {name!r} has {len(layout.specs)}")
        tensors = list(out)
    for index, (tensor, spec) in enumerate(zip(tensors, layout.specs, strict=True)):
        where = f"out[{keys[index] if keys is not None else index!r}]"
        _check_plain(tensor, where)
        if tensor.dtype != spec.dtype or tensor.shape != spec.shape:
            raise ValueError(
                f"{where} is {tensor.dtype} of shape {tuple(tensor.shape)}, but {name!r} holds "
                f"{spec.dtype} of shape {tuple(spec.shape)}"
            )
        repeats = any(stride == 0 and size > 1 for stride, size in _dimensions(tensor))
        if repeats and tensor.numel():
            raise ValueError(f"elements of {where} share memory; give a tensor of its own")
    return tensors


def values_of(tensors: Tensors) -> list[torch.Tensor]:
    """In the order in which they are stored."""
    return list(tensors.values()) if isinstance(tensors, Mapping) else list(tensors)


def octets_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor as they lie in memory: (nbytes,) uint8, the same memory."""
    flat = tensor.detach()
    if flat.numel() > 1 and flat.is_contiguous():  # the stride of one element can be anything
        return flat.view(-1).view(torch.uint8)
    flat = flat.as_strided((flat.numel(),), (1,), flat.storage_offset())
    return flat.view(torch.uint8)


def is_stored_as(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    """Whether the memory of a tensor can hold the stored bytes as they are."""
    if tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.stride() == spec.stride or all(
        size <= 1 or mine == wanted
        for size, mine, wanted in zip(spec.shape, tensor.stride(), spec.stride, strict=True)
    )


def empty_as(spec: TensorSpec, flat: torch.Tensor) -> torch.Tensor:
    """A tensor of that dtype, shape and stride in the memory of a flat one of that dtype."""
    return flat.as_strided(spec.shape, spec.stride)


def _items(tensors: Tensors) -> list[tuple[str, torch.Tensor]]:
    if isinstance(tensors, Mapping):
        return [(f"tensors[{key!r}]", tensor) for key, tensor in tensors.items()]
    return [(f"tensors[{index}]", tensor) for index, tensor in enumerate(tensors)]


def _spec_of(tensor: torch.Tensor, where: str) -> TensorSpec:
    _check_plain(tensor, where)
    stride = tensor.stride()
    if not is_dense(tensor) or tensor.is_conj() or tensor.is_neg():
        stride = _row_major(tensor.shape)
    return TensorSpec(tensor.dtype, tensor.shape, stride, tensor.numel() * tensor.element_size())


def _check_plain(tensor: Any, where: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{where} is a {type(tensor).__name__}, not a torch.Tensor")
    if type(tensor.detach()) is not torch.Tensor:
        raise TypeError(
            f"{where} is a {type(tensor).__name__}, which has no memory of its own; of a DTensor, "
            "store to_local()"
        )
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        raise TypeError(f"{where} is meta, sparse, nested or quantized, not plain memory")


def _dimensions(tensor: torch.Tensor) -> list[tuple[int, int]]:
    return list(zip(tensor.stride(), tensor.shape, strict=True))


def is_dense(tensor: torch.Tensor) -> bool:
    """Elements fill one run of memory, in whatever order of the dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(_dimensions(tensor)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _row_major(shape: torch.Size) -> tuple[int, ...]:
    stride, strides = 1, []
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))
