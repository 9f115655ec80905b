"""A small character-level transformer, and the text that it learns: Python's standard library.

Nothing here knows about disks: it is ordinary PyTorch, for the demo to have something to train.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 128  # characters that the model looks back on
HEAD_SIZE = 32


@dataclass(frozen=True)
class Text:
    """Characters as integers, and the alphabet (in the order of those integers)."""

    codes: Tensor
    alphabet: str


def standard_library_text(max_characters: int = 2_000_000) -> Text:
    """The source of Python's own modules, in the order of their names: every machine has it."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources: list[str] = []
    characters = 0
    for path in sorted(folder.glob("*.py")):
        if characters >= max_characters:
            break
        sources.append(path.read_text(encoding="utf-8", errors="replace"))
        characters += len(sources[-1])
    text = "".join(sources)[:max_characters]
    if len(text) <= CONTEXT + 1:
        raise FileNotFoundError(f"no Python source found in {folder}")
    alphabet = "".join(sorted(set(text)))
    code_of = {character: code for code, character in enumerate(alphabet)}
    return Text(torch.tensor([code_of[c] for c in text], dtype=torch.int16), alphabet)


def batches(text: Text, *, steps: int, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input, target), both (batch, CONTEXT) int64; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(CONTEXT + 1)
    for _ in range(steps):
        starts = torch.randint(len(text.codes) - CONTEXT, (batch, 1), generator=generator)
        piece = text.codes[starts + window].long()
        yield piece[:, :-1], piece[:, 1:]  # the target of a character is the one after it


class Block(nn.Module):
    """Causal self-attention, then a two-layer perceptron, each added to what came in."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.heads = dim // HEAD_SIZE
        self.norm_attention = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp_in = nn.Linear(dim, 4 * dim)
        self.mlp_out = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, length, dim) to the same shape."""
        rows, length, dim = x.shape
        joint = self.query_key_value(self.norm_attention(x))
        # (rows, length, 3 * dim) -> three of (rows, heads, length, HEAD_SIZE)
        query, key, value = joint.view(rows, length, 3, self.heads, HEAD_SIZE).permute(
            2, 0, 3, 1, 4
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, length, dim))
        x = x + self.mlp_out(functional.gelu(self.mlp_in(self.norm_mlp(x))))
        return x


class CharTransformer(nn.Module):
    """Predicts the next character at every position of a (batch, length) tensor of codes."""

    def __init__(self, alphabet_size: int, *, dim: int, layers: int) -> None:
        super().__init__()
        if dim <= 0 or dim % HEAD_SIZE:
            raise ValueError(f"dim must be a positive multiple of {HEAD_SIZE}, got {dim}")
        self.character = nn.Embedding(alphabet_size, dim)
        self.position = nn.Embedding(CONTEXT, dim)
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, alphabet_size)

    def forward(self, codes: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of `targets`, in nats per character."""
        x = self.character(codes) + self.position.weight[: codes.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        loss: Tensor = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        return loss
