"""Tensors and where they lie in the files, and the proof that a transfer moved their bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aio.measure.files import PAGE
from aio.measure.harness import BenchError, Sample, Stopwatch


@dataclass(frozen=True)
class Piece:
    """One tensor and where it lives in the files."""

    tensor: torch.Tensor
    path: Path
    offset: int = 0

    def bytes_view(self) -> torch.Tensor:
        return self.tensor.view(torch.uint8).reshape(-1)


class Check:
    """Sampled proof that a transfer really moved the bytes, outside the timed part."""

    def __init__(self, pieces: Sequence[Piece], spots: int = 16, seed: int = 7) -> None:
        choose = random.Random(seed)
        self._spots: list[tuple[Piece, int, int]] = []
        for piece in choose.sample(list(pieces), min(spots, len(pieces))):
            for _ in range(max(1, spots // len(pieces))):
                length = min(PAGE, piece.tensor.nbytes)
                start = choose.randrange(piece.tensor.nbytes - length + 1)
                self._spots.append((piece, start, length))

    def poison(self) -> None:
        """Change the sampled bytes in memory, so that those of an earlier transfer cannot pass."""
        for piece, start, length in self._spots:
            piece.bytes_view()[start : start + length] ^= 0xA5

    def __call__(self) -> None:
        """After a read or a write: the sampled bytes in memory are those in the file."""
        for piece, start, length in self._spots:
            with open(piece.path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, piece.offset + start)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            held = bytes(piece.bytes_view()[start : start + length].tolist())
            if data != held:
                raise BenchError(f"{piece.path} at {piece.offset + start}: memory and file differ")


def touched(nbytes: int) -> torch.Tensor:
    """Plain torch memory with every page present, so that no run pays its first-touch faults."""
    return torch.full((nbytes,), 1, dtype=torch.uint8)


@dataclass(frozen=True)
class StateDict:
    """Tensors under names, as a checkpoint has them."""

    tensors: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def sample(self, watch: Stopwatch, mode: str) -> Sample:
        """All of it, moved while the watch ran."""
        return Sample(watch.seconds, self.nbytes, watch.cpu_seconds, len(self.tensors), mode)


def state_dict(count: int, nbytes: int) -> StateDict:
    """`count` float32 tensors of plain torch memory, `nbytes` in all, each with other values."""
    elements = nbytes // count // 4
    return StateDict({f"layer.{i}.weight": torch.randn(elements) for i in range(count)})


def spots_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the first, the middle and the last bytes of a tensor."""
    octets = tensor.view(torch.uint8).reshape(-1)
    middle = len(octets) // 2
    return torch.cat([octets[:PAGE], octets[middle : middle + PAGE], octets[-PAGE:]])


def refuse_other(loaded: Mapping[str, torch.Tensor], state: StateDict, path: Path) -> None:
    """Raise BenchError unless every tensor came back, with the same bytes at its spots."""
    for name, tensor in state.tensors.items():
        found = loaded.get(name)
        if found is None or found.shape != tensor.shape:
            raise BenchError(f"{path}: {name} is missing or has another shape")
        if not torch.equal(spots_of(found), spots_of(tensor)):
            raise BenchError(f"{path}: {name} has other bytes than were written")
