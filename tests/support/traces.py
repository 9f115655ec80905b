"""Traces as a test reads them: spans of calls and of transfers, which track each is on."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class Trace:
    """The events of a file, by kind."""

    events: list[Event]
    calls: list[Event] = field(default_factory=list)
    transfers: list[Event] = field(default_factory=list)
    flows: dict[int, dict[str, Event]] = field(default_factory=lambda: defaultdict(dict))
    names: dict[int, str] = field(default_factory=dict)  # of tracks

    @property
    def dropped(self) -> int:
        """As the last event says, which counts the spans too."""
        last = self.events[-1]
        assert last["name"] == "end of trace"
        assert last["args"]["events"] == len(self.calls) + len(self.transfers)
        return int(last["args"]["dropped"])

    def calls_of(self, name: str) -> list[Event]:
        return [call for call in self.calls if call["name"] == name]


def read_trace(path: Path) -> Trace:
    """A whole file."""
    return _sorted(json.loads(path.read_bytes()))


def read_unfinished_trace(path: Path) -> Trace:
    """A file without its end, read as chrome://tracing does: it adds the bracket."""
    text = path.read_bytes().rstrip()
    assert not text.endswith(b"]")
    return _sorted(json.loads(text + b"]"))


def _sorted(events: list[Event]) -> Trace:
    trace = Trace(events)
    for event in events:
        if event["ph"] == "X":
            spans = {"call": trace.calls, "transfer": trace.transfers}[event["cat"]]
            spans.append(event)
        elif event["ph"] in ("s", "f"):
            assert event["ph"] not in trace.flows[event["id"]]
            trace.flows[event["id"]][event["ph"]] = event
        elif event["name"] == "thread_name":
            trace.names[event["tid"]] = event["args"]["name"]
    return trace


def check_tracks(trace: Trace) -> None:
    """Every track has a name; spans of a transfers' track do not overlap, those of callers nest."""
    by_track: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for span in [*trace.calls, *trace.transfers]:
        assert span["dur"] >= 0
        assert span["tid"] in trace.names
        by_track[span["tid"]].append((span["ts"], round(span["ts"] + span["dur"], 3)))
    for spans in by_track.values():
        spans.sort()
        for (_, end), (begin, _) in itertools.pairwise(spans):
            assert begin >= end


def check_flows(trace: Trace) -> None:
    """One arrow leads to each transfer, from inside a span of the thread that asked for it."""
    ends = {(flow["f"]["tid"], flow["f"]["ts"]) for flow in trace.flows.values()}
    assert ends == {(one["tid"], one["ts"]) for one in trace.transfers}
    assert len(trace.flows) == len(trace.transfers)
    for flow in trace.flows.values():
        start = flow["s"]
        assert flow["f"]["bp"] == "e"
        assert start["ts"] <= flow["f"]["ts"]
        assert any(
            call["tid"] == start["tid"] and call["ts"] <= start["ts"] <= call["ts"] + call["dur"]
            for call in trace.calls
        )


def check_covered(trace: Trace, requests: list[tuple[str, str, int, int]]) -> None:
    """Every byte of each request (operation, path, offset, bytes) is in one transfer that
    succeeded, and no other byte is in any.
    """
    pieces: dict[int, list[Event]] = defaultdict(list)
    for transfer in trace.transfers:
        if transfer["args"]["errno"] == 0:
            pieces[transfer["args"]["request"]].append(transfer)
    found = []
    for transfers in pieces.values():
        spans = sorted((one["args"]["offset"], one["args"]["bytes"]) for one in transfers)
        for (offset, nbytes), (after, _) in itertools.pairwise(spans):
            assert offset + nbytes == after
        assert all(one["args"]["done"] == one["args"]["bytes"] for one in transfers)
        names = {(one["name"], one["args"]["path"]) for one in transfers}
        assert len(names) == 1
        begin, end = spans[0][0], sum(spans[-1])
        found.append((*names.pop(), begin, end - begin))
    assert sorted(found) == sorted(request for request in requests if request[3] > 0)


def check_stats(trace: Trace, stats: Any) -> None:
    """The transfers that succeeded are those that one handle's stats() counts."""
    for kind in ("read", "write"):
        for way in ("direct", "fixed", "staged", "buffered"):
            mine = [
                one["args"]["bytes"]
                for one in trace.transfers
                if (one["name"], one["args"]["way"], one["args"]["errno"]) == (kind, way, 0)
            ]
            assert len(mine) == stats["transfers"][kind][way]
            assert sum(mine) == stats["bytes"][kind][way]
    every = [one["args"] for one in trace.transfers]
    assert sum(one["short"] for one in every) == stats["short_transfers"]
