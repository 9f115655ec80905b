"""torch.save and torch.load as contestants: a dict of tensors, through the page cache."""

from __future__ import annotations

from pathlib import Path

import torch

from aio.measure.harness import Contestant, Sample, stopwatch

from .layout import StateDict, refuse_other


def save(path: Path, state: StateDict) -> Contestant:
    """torch.save into one file."""

    def run() -> Sample:
        with stopwatch() as watch:
            torch.save(state.tensors, path)
        return state.sample(watch, "page cache")

    return Contestant("torch.save, torch.load", run)


def load(path: Path, state: StateDict) -> Contestant:
    """torch.load of that file into new tensors."""

    def run() -> Sample:
        with stopwatch() as watch:
            loaded = torch.load(path, weights_only=True, mmap=False)
        refuse_other(loaded, state, path)
        return state.sample(watch, "page cache")

    return Contestant("torch.save, torch.load", run)
