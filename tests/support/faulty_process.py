"""pytest plugin: the tests of a module run in a process of their own, on the faulty extension.

A module that names this file in `pytest_plugins` is collected as any other.  When the first of its
tests is due, one child runs all those that were selected, with build/faulty in front of the path;
each test here then ends as it did there.  A child that hangs or dies shows where.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from support.faulty_build import BUILT, ROOT, build
from support.faulty_watch import IN_CHILD, REPORTS, rest, watch

MODULE_HANG_S = 900
MUCH = 6000  # characters of a dead child's output

# The root, which `python -m pytest` would put first, has the extension as it is shipped.
START = "import sys; del sys.path[0]; import pytest; sys.exit(pytest.main(sys.argv[1:]))"

Reports = dict[str, dict[str, Any]]
_ran: dict[Path, tuple[Reports, str]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the parent: the outcome that the child reported, instead of a call."""
    if IN_CHILD or __name__ not in getattr(pyfuncitem.module, "pytest_plugins", ()):
        return None
    if pyfuncitem.path not in _ran:
        selected = [item.nodeid for item in pyfuncitem.session.items]
        of_module = pyfuncitem.nodeid.partition("::")[0] + "::"
        _ran[pyfuncitem.path] = _run([name for name in selected if name.startswith(of_module)])
    reports, output = _ran[pyfuncitem.path]
    report = reports.get(pyfuncitem.nodeid)
    if report is None:
        pytest.fail(f"the process ended before or during this test\n{output}", pytrace=False)
    if report["outcome"] == "skipped":
        pytest.skip(report["text"])
    if report["outcome"] != "passed":
        pytest.fail(report["text"], pytrace=False)
    return True


def _run(names: list[str]) -> tuple[Reports, str]:
    build()
    search = [BUILT, ROOT / "tests", ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.NamedTemporaryFile("r", prefix="deepnvme-faulty-") as file:
        environment = {
            **os.environ,
            REPORTS: file.name,
            "PYTHONPATH": os.pathsep.join(map(str, search)),
        }
        options = ["-p", __name__, "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
        done = subprocess.run(
            [sys.executable, "-c", START, *options, *names],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=MODULE_HANG_S,
            check=False,
        )
        reports: Reports = {}
        for line in file:
            report = json.loads(line)
            reports.setdefault(report["name"], report)
    return reports, done.stdout[-MUCH:]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the child: one line for the call of each test, or for what kept it from being called."""
    if not IN_CHILD or (report.when != "call" and report.passed):
        return
    text = report.longreprtext
    if report.skipped and isinstance(report.longrepr, tuple):
        text = report.longrepr[2].removeprefix("Skipped: ")
    line = {"name": report.nodeid, "outcome": report.outcome, "text": text}
    with open(os.environ[REPORTS], "a") as file:
        print(json.dumps(line), file=file)


def pytest_collection_finish() -> None:
    """In the child: the objects of torch and pytest need not be looked at in every collection."""
    if IN_CHILD:
        import _deepnvme

        assert Path(_deepnvme.__file__).parent == BUILT
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """In the child: a test that never says watch() again must be over in a minute."""
    if not IN_CHILD:
        return (yield)
    watch()
    try:
        return (yield)
    finally:
        rest()
