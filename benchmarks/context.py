"""What every benchmark of a run shares: where the files go, how much work to do, whom to ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .deepspeed_peer import DeepSpeedPeer

BLOCK_SIZE = 1 << 20
QUEUE_DEPTH = 32


@dataclass(frozen=True)
class Context:
    """Settings of one run on one directory; block size and depth hold for every contestant."""

    folder: Path  # empty and ours alone; removed afterwards
    file_system: str
    size: int  # bytes of the large tensor
    rounds: int
    attempts: int  # runs of which the better counts, in each round
    quick: bool
    deepspeed: DeepSpeedPeer | None
    deepspeed_missing: str  # the reason where `deepspeed` is None
    progress: Callable[[str], None]
    block_size: int = BLOCK_SIZE
    queue_depth: int = QUEUE_DEPTH

    @property
    def on_tmpfs(self) -> bool:
        return self.file_system == "tmpfs"

    @property
    def medium(self) -> str:
        return "tmpfs" if self.on_tmpfs else "disk"

    @property
    def fio_mode(self) -> str:
        """What --direct=1 means here: tmpfs accepts O_DIRECT but has no device behind it."""
        return "O_DIRECT on memory" if self.on_tmpfs else "direct"
