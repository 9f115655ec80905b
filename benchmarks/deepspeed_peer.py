"""DeepSpeed as a contestant: a worker in a process of its own, and talk with it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aio.measure.harness import BenchError, Contestant, Sample

_ROOT = Path(__file__).resolve().parent.parent
_PROBE = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('deepspeed') else 3)"


class DeepSpeedPeer:
    """A worker process with DeepSpeed; `version` is the one it runs, `python` its interpreter.

    `worker` is the script of this package that it runs, `start` what the worker is made with.
    """

    def __init__(self, python: str, worker: str = "deepspeed_worker.py", **start: Any) -> None:
        self.python = python
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close())
        environment = dict(os.environ, DS_ACCELERATOR="cpu")
        # ninja, which builds the operator, is looked for on PATH.
        folder = str(Path(python).absolute().parent)
        environment["PATH"] = f"{folder}{os.pathsep}{environment.get('PATH', os.defpath)}"
        search = [str(_ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(worker))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        try:
            answer = self.ask("start", **start)
        except BenchError:
            self.close()
            raise
        self.version: str = answer["version"]

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its answer. Raises BenchError with the worker's error."""
        if self._process.stdin is None or self._process.stdout is None:
            raise BenchError("DeepSpeed's worker has no pipes")
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:] or ["no message"]
            raise BenchError(f"DeepSpeed's worker ended ({self._process.wait()}): {last[0]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"DeepSpeed: {answer['error']}")
        return answer

    def forget(self) -> None:
        """Release the buffers that the worker keeps between runs."""
        self.ask("forget")

    def sample(self, command: str, mode: str, **arguments: Any) -> Sample:
        """A command that times one run, as a Sample."""
        answer = self.ask(command, **arguments)
        return Sample(
            seconds=answer["seconds"],
            nbytes=answer["nbytes"],
            cpu_seconds=answer["cpu_seconds"],
            operations=answer["operations"],
            mode=mode,
        )

    def contestant(
        self, name: str, attempts: int, command: str, mode: str, **arguments: Any
    ) -> Contestant:
        """A contestant that sends the same command every time."""
        run = functools.partial(self.sample, command, mode, **arguments)
        return Contestant(name, run, attempts, warm_up=run)

    def close(self) -> None:
        """End the worker."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def start(
    python: str | None, block_size: int, queue_depth: int
) -> tuple[DeepSpeedPeer | None, str]:
    """The peer, or None and the reason. `python` is an interpreter with deepspeed; None: this."""
    python = python or sys.executable
    if subprocess.run([python, "-c", _PROBE], capture_output=True).returncode != 0:
        return None, f"deepspeed is not installed for {python} (see --deepspeed-python)"
    try:
        return DeepSpeedPeer(python, block_size=block_size, queue_depth=queue_depth), ""
    except BenchError as error:
        return None, str(error)
