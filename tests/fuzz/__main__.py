"""`python -m tests.fuzz --seconds 60`: exit status 1 if an input breaks a promise.

What is found is kept in build/fuzz/finds; inputs that reach new code in build/fuzz/corpus, from
where --keep takes the few that matter to tests/fuzz/corpus.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import BUILT, CORPUS, CXX_TARGETS, PURE, ROOT, CannotRun, Target, target

FINDS = BUILT / "finds"
GROWN = BUILT / "corpus"
ALL = (*CXX_TARGETS, "python")
HANG_S = 25  # of one input
TAIL = 40  # lines of the output that says what a find is


@dataclass
class Outcome:
    name: str
    executions: int
    coverage: int
    corpus: int
    finds: list[Path]
    output: str


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--target", action="append", choices=ALL, help="not all of them")
    parser.add_argument("--keep", action="store_true", help="afterwards, renew tests/fuzz/corpus")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="run one find again")
    return parser.parse_args()


def folders(name: str) -> list[str]:
    """Where inputs come from; new ones go to the first."""
    (GROWN / name).mkdir(parents=True, exist_ok=True)
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    found = [GROWN / name, CORPUS / name]
    if name == "python":
        from tests.fuzz.parsers import seeds

        started = BUILT / "seeds"
        started.mkdir(exist_ok=True)
        for number, seed in enumerate(seeds()):
            (started / f"{number:02}").write_bytes(seed)
        found.append(started)
    return [str(folder) for folder in found]


def fuzz(run: Target, seconds: int) -> Outcome:
    FINDS.mkdir(parents=True, exist_ok=True)
    before = set(FINDS.iterdir())
    done = run.run(
        *folders(run.name),
        f"-max_total_time={seconds}",
        f"-artifact_prefix={FINDS}/{run.name}-",
        f"-timeout={HANG_S}",
        f"-use_value_profile={int(run.name in PURE)}",
        "-max_len=512",
        "-len_control=20",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        "-print_funcs=0",
        timeout=seconds + 300,
    )
    (BUILT / f"{run.name}.log").write_text(done.stdout)
    progress = re.findall(r"^#(\d+)\s.*?cov: (\d+) .*?corp: (\d+)/", done.stdout, re.MULTILINE)
    executed = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    last = progress[-1] if progress else ("0", "0", "0")
    finds = sorted(set(FINDS.iterdir()) - before)
    if done.returncode != 0 and not finds:
        raise CannotRun(f"{run.name} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    executions = int(executed[1] if executed else last[0])
    return Outcome(run.name, executions, int(last[1]), int(last[2]), finds, done.stdout)


def keep(run: Target) -> None:
    """The fewest inputs that reach all the code that any reaches, and as often if it is little."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("-merge=1", f"-use_counters={int(run.name in PURE)}", "-max_len=512")
        done = run.run(*options, folder, *reversed(folders(run.name)), timeout=600)
        merged = list(Path(folder).iterdir())
        if done.returncode != 0 or not merged:
            raise CannotRun(f"{run.name} could not be merged:\n{done.stdout[-3000:]}")
        shutil.rmtree(CORPUS / run.name)
        (CORPUS / run.name).mkdir()
        for file in merged:
            shutil.copyfile(file, CORPUS / run.name / file.name[:12])


def reproduce(file: Path) -> int:
    """Runs the target that the name of the find begins with."""
    done = target(file.name.partition("-")[0]).run(str(file.resolve()), timeout=10 * HANG_S)
    print(done.stdout)
    return done.returncode


def report(outcome: Outcome) -> None:
    for find in outcome.finds:
        print("\n".join(outcome.output.splitlines()[-TAIL:]))
        print(f"{outcome.name}: found {find.relative_to(ROOT)}")
        print(f'  make fuzz ARGS="--reproduce {find.relative_to(ROOT)}"')


def line(outcome: Outcome) -> str:
    return (
        f"{outcome.name:12}{outcome.executions:9} executions, coverage {outcome.coverage:5}, "
        f"corpus {outcome.corpus:4}, finds {len(outcome.finds)}"
    )


def main() -> int:
    options = arguments()
    if options.reproduce is not None:
        return reproduce(options.reproduce)
    names = options.target or ALL
    lines: list[str] = []
    status = 0
    ran = 0
    for name in names:
        print(f"fuzz: {name}", flush=True)
        try:
            run = target(name)
            outcome = fuzz(run, max(1, options.seconds // len(names)))
            if options.keep and not outcome.finds:
                keep(run)
        except CannotRun as reason:
            lines.append(f"{name:12}not run: {reason}")
            continue
        ran += 1
        report(outcome)
        lines.append(line(outcome))
        status |= bool(outcome.finds)
    print("\n".join(lines))
    return int(status) if ran else 1


if __name__ == "__main__":
    sys.exit(main())
