"""`deepnvme top`: what the handles of running processes do, by two samples of each."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from aio import endpoints
from aio.drives import source_of_device
from aio.measure.sizes import format_size

Sample = dict[str, Any]


def print_top(pid: int | None, once: bool, as_json: bool, interval: float) -> int:
    """Print reports until interrupted, until no process is left, or once; the exit status."""
    console = Console(highlight=False)
    try:
        before = _samples(pid)
        if not before:
            _complain(_nobody(pid))
            return 1
        with ExitStack() as stack:
            live = None
            if console.is_terminal and not as_json and not once:
                live = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
            while before:
                time.sleep(interval)
                now = _samples(pid)
                reports = [_report(now[one], before.get(one)) for one in now]
                if as_json:
                    console.file.write(json.dumps({"processes": reports}) + "\n")
                    console.file.flush()
                elif live is not None:
                    live.update(Group(*map(_tables, reports)), refresh=True)
                else:
                    console.print(*map(_tables, reports))
                if once:
                    return 0 if now else 1
                before = now
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        _complain(str(error))
        return 1
    return 0


def _complain(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(escape(f"deepnvme top: {text}"))


def _samples(pid: int | None) -> dict[int, Sample]:
    """One of each process, or of that one. A process that ends meanwhile is not there."""
    found = {}
    for number, path in endpoints.living_endpoints().items():
        if pid is None or pid == number:
            try:
                found[number] = endpoints.ask(path)
            except (ConnectionError, FileNotFoundError):
                continue
            except (TimeoutError, BlockingIOError):  # the second: more ask than the kernel keeps
                _complain(f"process {number} does not answer")
    return found


def _nobody(pid: int | None) -> str:
    who = "no process can" if pid is None else f"process {pid} cannot"
    places = " or ".join(map(str, endpoints.directories()))
    return (
        f"{who} be looked at: nothing in {places}; start it with DEEPNVME_TOP=1 in its "
        "environment, or let it call aio.serve_stats(), as the same user"
    )


def _report(now: Sample, before: Sample | None) -> Sample:
    """A sample with rates in bytes a second since the one before; None where there was none."""
    earlier = {} if before is None else {one["number"]: one for one in before["handles"]}
    elapsed = None if before is None else now["time"] - before["time"]
    for handle in now["handles"]:
        handle["rate"] = _rate(handle, earlier.get(handle["number"]), elapsed)
    now["interval"] = elapsed
    for number, moved in now["devices"].items():
        moved["name"] = device_name(number)
    return now


def _rate(now: Sample, before: Sample | None, elapsed: float | None) -> dict[str, float | None]:
    rates: dict[str, float | None] = {}
    for kind in ("read", "write"):
        if before is None or not elapsed:
            rates[kind] = None
        else:
            moved = [sum(one["stats"]["bytes"][kind].values()) for one in (before, now)]
            rates[kind] = (moved[1] - moved[0]) / elapsed
    return rates


def device_name(number: str) -> str:
    """What /sys calls the block device "major:minor"; of others, what is mounted from it."""
    device = Path("/sys/dev/block", number)
    if device.exists():
        return device.resolve().name
    major, minor = map(int, number.split(":"))
    return "other" if major == minor == 0 else source_of_device(number)


def _tables(report: Sample) -> Group:
    pinned = report["pinned"]
    title = f"process {report['pid']}: {report['command']}"
    handles = Table(
        *("handle", "engine", "read", "written", "in flight", "queued", "requests", "failed"),
        *("direct", "staged", "buffered", "staging", "p99"),
        title=escape(title),
        title_justify="left",
    )
    for one in report["handles"]:
        stats = one["stats"]
        by_way = {
            way: sum(stats["bytes"][kind][way] for kind in ("read", "write"))
            for way in ("direct", "fixed", "staged", "buffered")
        }
        depth = one["queue_depth"] * one["intra_op_parallelism"]
        handles.add_row(
            str(one["number"]),
            stats["backend"],
            *(_rate_text(one["rate"][kind]) for kind in ("read", "write")),
            f"{stats['queue']['in_flight']} of {depth}",
            str(stats["queue"]["waiting"]),
            str(sum(stats["requests"].values())),
            str(stats["failed"]),
            format_size(by_way["direct"] + by_way["fixed"]),
            format_size(by_way["staged"]),
            format_size(by_way["buffered"]),
            format_size(stats["staging"]),
            f"{stats['latency']['p99'] * 1e3:.2f} ms",
        )
    devices = Table("device", "number", "read since start", "written since start")
    for number, moved in report["devices"].items():
        row = (moved["name"], number, format_size(moved["read"]), format_size(moved["write"]))
        devices.add_row(*map(escape, row))
    memory = (
        f"page-locked {format_size(report['page_locked'])}, "
        f"pinned {format_size(pinned['in_use'])}, kept for reuse {format_size(pinned['cached'])}"
    )
    return Group(handles, devices, memory, "")


def _rate_text(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:.3f} GB/s"
