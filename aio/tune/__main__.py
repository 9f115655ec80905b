"""The command ``ds_nvme_tune``; exit status 0: done, 1: failed, 2: cannot be done, 130: Ctrl-C."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from aio.backends import available_backends, backend_name
from aio.measure import fio
from aio.measure.command import UsageError, check_backend, ended_by_signals, exit_status
from aio.measure.machine import describe, describe_folder
from aio.options import HandleOptions
from aio.profiles import save_profile
from aio.tune.against_fio import compare
from aio.tune.arguments import Settings, parse
from aio.tune.logs import write_logs
from aio.tune.progress import shown
from aio.tune.report import page
from aio.tune.session import Deadline, Findings, Session
from aio.tune.space import sweep_options, usual_options
from aio.tune.summary import aio_section, best_line, document, profile_of, tables
from aio.tune.workload import check_room, prepared

FAILURES = (OSError, MemoryError, ValueError, RuntimeError)
PREPARING = 0.15  # of the time, at most, for making the files
FIO = 0.1  # of the time, where fio is compared with


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""

    def run() -> None:
        with ended_by_signals():
            _tune(parse(given))

    end = "nothing was saved, and its files are gone"
    return exit_status("ds_nvme_tune", run, FAILURES, end)


def _tune(settings: Settings) -> None:
    deadline = Deadline(settings.seconds)
    candidates, backends = _candidates(settings)
    check_room(settings.directories, settings.io_size)
    about = describe("ds_nvme_tune")
    folders = [describe_folder(Path(directory)) for directory in settings.directories]
    with (
        prepared(
            settings.directories,
            settings.io_size,
            settings.devices,
            settings.loops,
            settings.seconds * PREPARING,
        ) as work,
        shown(deadline, settings.verbose) as bar,
    ):
        with_fio = bool(settings.report or settings.json) and settings.devices is None
        share = deadline.part(1 - FIO) if with_fio and fio.version() else deadline
        session = Session(work, settings.directions, candidates, backends, share, bar)
        findings = session.run()
        compared = compare(work, findings, deadline) if with_fio else ({}, "")
        found = document(
            findings,
            machine=about,
            folders=folders,
            work={
                "bytes_per_run": work.moved,
                "loops": work.loops,
                "memory": work.memory,
                "modes": work.modes,
            },
            described=work.describe(),
            fio={way: dataclasses.asdict(result) for way, result in compared[0].items()},
            fio_missing=compared[1],
        )
    _keep(settings, findings, found)
    _tell(settings, findings, found)


def _candidates(settings: Settings) -> tuple[list[HandleOptions], list[str]]:
    """What is tried, and the engines for the second look, which a sweep file does without."""
    usable = available_backends()
    try:
        named = backend_name(None)  # DEEPNVME_BACKEND
    except ValueError as error:
        raise UsageError(str(error)) from error
    backends = usable if named == "auto" else [named]
    if settings.sweep_config is None:
        candidates = usual_options(backends[0])
    else:
        candidates = sweep_options(settings.sweep_config, backends[0])
    for options in candidates:
        check_backend(options.backend, usable)
    return candidates, backends if settings.sweep_config is None else []


def _keep(settings: Settings, findings: Findings, found: dict[str, Any]) -> None:
    if settings.log_dir is not None:
        write_logs(settings.log_dir, findings, len(settings.directories))
    if settings.report is not None:
        Path(settings.report).write_text(page(found))
    if settings.json not in (None, "-"):
        Path(str(settings.json)).write_text(json.dumps(found, indent=1) + "\n")
    if settings.profile is not None:
        profile = profile_of(findings, settings.directories, found["machine"])
        save_profile(profile, settings.profile)


def _tell(settings: Settings, findings: Findings, found: dict[str, Any]) -> None:
    # With --json - standard output is the JSON's alone.
    out = Console(stderr=settings.json == "-", highlight=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = 160  # of a file or a pipe nothing is known
    out.print(f"ds_nvme_tune on {', '.join(settings.directories)}", markup=False)
    out.print(found["described"], markup=False)
    for table in tables(findings):
        out.print(table)
    for note in findings.notes:
        out.print(f"note: {note}", markup=False)
    for way, result in found["fio"].items():
        out.print(f"{way}: {result['ours'] / result['fio']:.2f} of fio ({result['engine']})")
    if settings.profile is not None:
        out.print(f"profile: {settings.profile}", markup=False)
    out.print(best_line(findings), markup=False)
    out.print(json.dumps(aio_section(findings.both), indent=3), markup=False)
    if settings.json == "-":
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
