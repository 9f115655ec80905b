"""The report: one HTML file with diagrams and tables; it loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from aio.measure.sizes import GIB, format_size
from aio.options import HandleOptions
from aio.tune.charts import bar_chart, line_chart
from aio.tune.summary import in_words
from aio.tune.workload import PERCENTILES

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --faint: #d8dde4; --soft: #5d6877;
  --c0: #2266bb; --c1: #d2691e; --c2: #2e8b57; --c3: #8a4fbe; --c4: #b8326b; --c5: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14181e; --faint: #343c47;
  --soft: #9aa5b4; --c0: #6ea8ff; --c1: #ff9d5c; --c2: #5fd39a; --c3: #c39bff; --c4: #ff7fb0;
  --c5: #a8b0bd; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p, li { color: var(--soft); margin: .2rem 0; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; flex: 1 1 480px; }
figcaption { font-weight: 600; margin-bottom: .3rem; } svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; } .grid { stroke: var(--faint); }
.line { fill: none; stroke-width: 2; } .keys { font-size: .85rem; color: var(--soft); }
.key { margin-right: 1rem; } .key i { display: inline-block; width: .7em; height: .7em;
  margin-right: .35em; border-radius: 2px; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); } .line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); }
.dot.c0, .bar.c0 { fill: var(--c0); } .dot.c1, .bar.c1 { fill: var(--c1); }
.dot.c2, .bar.c2 { fill: var(--c2); } .dot.c3, .bar.c3 { fill: var(--c3); }
.dot.c4, .bar.c4 { fill: var(--c4); } .dot.c5, .bar.c5 { fill: var(--c5); }
i.c0 { background: var(--c0); } i.c1 { background: var(--c1); } i.c2 { background: var(--c2); }
i.c3 { background: var(--c3); } i.c4 { background: var(--c4); } i.c5 { background: var(--c5); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; }
pre { background: color-mix(in srgb, var(--faint) 40%, transparent); padding: .8rem;
  overflow-x: auto; }
"""


def page(found: Mapping[str, Any]) -> str:
    """The report of what summary.document() gives; it has all of that inside, as JSON."""
    machine = found["machine"]
    places = [_place(folder) for folder in found["folders"]]
    parts = [
        "<h1>ds_nvme_tune</h1>",
        *(f"<p>{escape(place)}</p>" for place in places),
        f"<p>{escape(found['described'])}</p>",
        f"<p>{escape(_machine(machine))}</p>",
        "<p>GB is 1024<sup>3</sup> bytes. Figures are medians.</p>",
        _notes(found["notes"]),
        *(_direction(found, direction) for direction in found["directions"]),
        "<h2>For DeepSpeed's configuration</h2>",
        f"<pre>{escape(json.dumps({'aio': found['aio']}, indent=2))}</pre>",
    ]
    # "</" would end the element; "\\u003c" is the same to JSON.
    data = json.dumps(found).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>ds_nvme_tune</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + f'\n<script type="application/json" id="found">{data}</script>\n</body></html>\n'
    )


def _direction(found: Mapping[str, Any], direction: str) -> str:
    here = found["directions"][direction]
    chosen = _chosen(found, direction)
    against = found["fio"].get(direction)
    speed = {name: entry["bytes_per_second"] / GIB for name, entry in chosen.items()}
    cpu = {name: entry["cpu_seconds_per_gib"] for name, entry in chosen.items()}
    if against is not None:
        speed["best beside fio"] = against["ours"] / GIB
        speed["fio"] = against["fio"] / GIB
        cpu["fio"] = against["fio_cpu"] * GIB
    latency = {
        name: [entry["latency_seconds"][which] * 1e3 for which in PERCENTILES]
        for name, entry in chosen.items()
    }
    title = direction.title()
    charts = [
        _over_block_size(f"{title}: throughput over block size", here["searches"][0]),
        bar_chart(f"{title}: throughput", "GB/s", speed),
        line_chart(f"{title}: latency of a transfer", "ms", PERCENTILES, latency, logarithmic=True),
        bar_chart(f"{title}: processor time", "s/GB", cpu),
    ]
    words = in_words(HandleOptions(**here["best"]))
    return (
        f"<h2>{title}</h2><p>Best: {escape(words)}</p>"
        f'<div class="row">{"".join(charts)}</div>'
        f"{_fio_line(against, found['fio_missing'])}{_table(here['final'])}"
    )


def _chosen(found: Mapping[str, Any], direction: str) -> dict[str, Any]:
    """The entries of the final that have a name, each once, by name."""
    here = found["directions"][direction]
    roles = {"best": here["best"], "for both": found["both"], "default": found["default"]}
    names: dict[HandleOptions, str] = {}
    for name, values in roles.items():
        options = HandleOptions(**values)
        names[options] = f"{names[options]}, {name}" if options in names else name
    entries = {HandleOptions(**entry["options"]): entry for entry in here["final"]}
    return {name: entries[options] for options, name in names.items()}


def _over_block_size(title: str, search: Mapping[str, Any]) -> str:
    """A line for each queue depth: the best number of workers, at each block size."""
    best: dict[tuple[int, int], float] = {}
    for entry in search["candidates"]:
        options = entry["options"]
        key = options["queue_depth"], options["block_size"]
        best[key] = max(best.get(key, 0.0), entry["bytes_per_second"] / GIB)
    sizes = sorted({size for _, size in best})
    lines = {
        f"queue depth {depth}": [best.get((depth, size)) for size in sizes]
        for depth in sorted({depth for depth, _ in best})
    }
    return line_chart(title, "GB/s", [format_size(size) for size in sizes], lines)


def _table(entries: Sequence[Mapping[str, Any]]) -> str:
    heads = ("options", "GB/s", "CPU s/GB", "p50 ms", "p99 ms", "runs", "how the bytes went")
    rows = ["".join(f"<th>{head}</th>" for head in heads)]
    for entry in entries:
        cells = (
            in_words(HandleOptions(**entry["options"])),
            f"{entry['bytes_per_second'] / GIB:.3f}",
            f"{entry['cpu_seconds_per_gib']:.4f}",
            *(f"{entry['latency_seconds'][name] * 1e3:.3f}" for name in ("p50", "p99")),
            str(len(entry["runs"])),
            entry["mode"],
        )
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _fio_line(against: Mapping[str, Any] | None, missing: str) -> str:
    if against is None:
        return f"<p>Not compared with fio: {escape(missing)}</p>" if missing else ""
    ratio = against["ours"] / against["fio"]
    return (
        f"<p>In turn with fio ({escape(against['engine'])}, the same block size, depth and files), "
        f"{against['rounds']} rounds: {against['ours'] / GIB:.3f} against "
        f"{against['fio'] / GIB:.3f} GB/s, {ratio:.2f} of fio.</p>"
    )


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<ul>{items}</ul>" if notes else ""


def _place(folder: Mapping[str, Any]) -> str:
    drive = " ".join(filter(None, (folder.get("device"), folder.get("model"))))
    return f"{folder['directory']}: {folder['file_system']}{f' on {drive}' if drive else ''}"


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['date']}; {machine['cpu']}, {machine['cores']} processors; Linux "
        f"{machine['kernel']}; deepnvme {machine['aio']}; {machine['command']}"
    )
