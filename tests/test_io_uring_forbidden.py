"""Where a container forbids io_uring another engine works, and the reason is told (F-04)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aio
from support import seccomp
from support.child import child_answer

# Runs under a seccomp filter: argv is the file, the numbers that are forbidden and the errno they
# fail with.
SCRIPT = """
import errno, json, sys
from support import seccomp
numbers, code = json.loads(sys.argv[2]), getattr(errno, sys.argv[3])
seccomp.forbid(numbers, code)
import torch, aio, _deepnvme
from support.buffers import locked, pattern, raw, shifted
name = sys.argv[1]
data = pattern((1 << 20) + 5)
answer = {"probe": _deepnvme.io.probe(), "available": aio.available_backends(), "same": []}
with aio.aio_handle(block_size=65536, intra_op_parallelism=2) as handle:
    answer["chosen"] = handle.backend
    for tensor in (shifted(len(data), 64), locked(handle, len(data))):
        tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        handle.async_pwrite(tensor, name)
        handle.wait()
        answer["same"].append(open(name, "rb").read() == data)
        tensor.zero_()
        handle.async_pread(tensor, name)
        handle.wait()
        answer["same"].append(raw(tensor) == data)
answer["asked"] = {}
for backend in ("io_uring", "libaio", "posix"):
    try:
        with aio.aio_handle(backend=backend) as handle:
            answer["asked"][backend] = handle.backend
    except RuntimeError as error:
        answer["asked"][backend] = "RuntimeError: " + str(error)
print(json.dumps(answer))
"""


def run(path: Path, numbers: tuple[int, ...], code: str) -> Any:
    answer = child_answer(SCRIPT, path, list(numbers), code)
    assert answer["same"] == [True] * 4
    assert answer["chosen"] in answer["available"]
    return answer


def reason(answer: Any, name: str) -> str:
    found = [engine for engine in answer["probe"] if engine["name"] == name]
    assert len(found) == 1
    assert found[0]["usable"] is False
    told: str = found[0]["reason"]
    return told


WORDS = {"EPERM": "Operation not permitted", "ENOSYS": "Function not implemented"}


@pytest.fixture
def needs_io_uring() -> None:
    if "io_uring" not in aio.available_backends():
        pytest.skip("io_uring cannot run here even without a filter")


@pytest.mark.usefixtures("needs_io_uring")
@pytest.mark.parametrize("code", list(WORDS))
def test_another_engine_takes_over(disk: Path, code: str) -> None:
    answer = run(disk / "file", seccomp.IO_URING, code)
    assert "io_uring" not in answer["available"]
    assert answer["chosen"] != "io_uring"
    for told in (reason(answer, "io_uring"), answer["asked"]["io_uring"]):
        assert WORDS[code] in told or code in told, told
    assert answer["asked"]["io_uring"].startswith("RuntimeError: ")
    assert answer["asked"]["posix"] == "posix"


@pytest.mark.usefixtures("needs_io_uring")
def test_registration_alone_is_forbidden(disk: Path) -> None:
    """A ring without registered buffers is a ring; whichever engine is chosen moves the bytes."""
    answer = run(disk / "file", seccomp.IO_URING_REGISTER, "EPERM")
    told = answer["asked"]["io_uring"]
    assert told == "io_uring" or told.startswith("RuntimeError: ")
    assert (told == "io_uring") == ("io_uring" in answer["available"])


def test_kernel_aio_is_forbidden_too(disk: Path) -> None:
    if seccomp.IO_SETUP is None:
        pytest.skip("the number of io_setup on this architecture is not known to the test")
    answer = run(disk / "file", (*seccomp.IO_URING, seccomp.IO_SETUP), "EPERM")
    assert answer["available"] == ["posix"]
    assert answer["chosen"] == "posix"
    assert reason(answer, "libaio")
    assert answer["asked"]["libaio"].startswith("RuntimeError: ")


def test_the_variable_is_an_explicit_wish() -> None:
    """DEEPNVME_BACKEND names an engine as backend= does: no silent substitute."""
    script = """
import json, sys
from support import seccomp
seccomp.forbid(seccomp.IO_URING)
import aio
try:
    aio.aio_handle()
    print(json.dumps("silent"))
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    told = child_answer(script, environment={"DEEPNVME_BACKEND": "io_uring"})
    assert "io_uring" in told
    assert told != "silent"


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="io_uring, libaio"):
        aio.aio_handle(backend="spdk")
