"""The smallest run of a benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.context import Context


def context(folder: Path) -> Context:
    """Files in `folder`, once, without DeepSpeed."""
    return Context(
        folder=folder,
        file_system="ext4",
        size=4 << 20,
        rounds=1,
        attempts=1,
        quick=True,
        deepspeed=None,
        deepspeed_missing="not asked for",
        progress=lambda _: None,
    )
