"""Conditions that every contestant of a comparison gets alike, put around its run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from aio.measure.files import drop_cache, sync_file
from aio.measure.harness import BenchError, Contestant, Sample, stopwatch


class PeerError(BenchError):
    """A peer did not do the work; the others can go on without it. `peer` is its contestant."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(reason)
        self.peer = peer


def fresh(contestant: Contestant, path: Path) -> Contestant:
    """With the file gone before its clock starts."""

    def run() -> Sample:
        path.unlink(missing_ok=True)
        return contestant.run()

    return dataclasses.replace(contestant, run=run, warm_up=None)


def cold(contestant: Contestant, path: Path) -> Contestant:
    """With the file's page cache dropped before its clock starts."""

    def run() -> Sample:
        drop_cache(path)
        return contestant.run()

    return dataclasses.replace(contestant, run=run, warm_up=None)


def durable(contestant: Contestant, path: Path) -> Contestant:
    """With an fsync of the file after it, whose time counts."""

    def run() -> Sample:
        sample = contestant.run()
        with stopwatch() as watch:
            sync_file(path)
        return dataclasses.replace(
            sample,
            seconds=sample.seconds + watch.seconds,
            cpu_seconds=sample.cpu_seconds + watch.cpu_seconds,
            mode=f"{sample.mode}; fsync",
        )

    return dataclasses.replace(contestant, run=run, warm_up=None)
