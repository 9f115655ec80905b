"""safetensors as a contestant: a dict of tensors, through the page cache.

load_file maps the file and reads nothing; a byte of every page is touched in the timed part, so
that the tensors are in memory at its end as everybody else's are.
"""

from __future__ import annotations

from pathlib import Path

import torch

from aio.measure.files import PAGE
from aio.measure.harness import Contestant, Sample, stopwatch

from .layout import StateDict, refuse_other


def missing() -> str:
    """Why safetensors cannot take part; empty where it can."""
    try:
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        return f"not installed ({error})"
    return ""


def save(path: Path, state: StateDict) -> Contestant:
    """save_file into one file."""
    from safetensors.torch import save_file

    def run() -> Sample:
        with stopwatch() as watch:
            save_file(state.tensors, path)
        return state.sample(watch, "page cache")

    return Contestant("safetensors", run)


def load(path: Path, state: StateDict) -> Contestant:
    """load_file of that file, every page touched."""
    from safetensors.torch import load_file

    def run() -> Sample:
        with stopwatch() as watch:
            loaded = load_file(path)
            for tensor in loaded.values():
                tensor.view(torch.uint8).reshape(-1)[::PAGE].max()
        refuse_other(loaded, state, path)
        return state.sample(watch, "page cache, mapped")

    return Contestant("safetensors", run)
