"""Everything that reads what a user typed, set or passed: one entry of PARSERS each.

To add a parser, append to PARSERS: a function that draws its input, calls the parser, and asserts
what must hold when it returns; the exceptions that the parser may raise for bad input; and inputs
to start from. The first byte of an input is the place in PARSERS, so entries are only appended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import _deepnvme
from aio.backends import BACKENDS, backend_name
from aio.options import check_options
from aio.profiles import load_profile
from aio.tune.space import sweep_options
from benchmarks.__main__ import BENCHMARKS, names, size
from pinned_manager.backends import selected_backend
from pinned_manager.switches import parse_switch

from .buffers import buffer, dlpack
from .draws import Draws

MOST_PARSERS = 32


@dataclass(frozen=True)
class Parser:
    name: str
    check: Callable[[Draws], None]
    refuses: tuple[type[Exception], ...]  # for bad input, and with a message
    seeds: tuple[bytes, ...]


@cache
def handle() -> Any:
    """Of the engine that works everywhere, which runs small requests on the calling thread."""
    return _deepnvme.io.Handle(1 << 20, 4, False, True, 1, "posix")


@cache
def empty_file() -> int:
    return os.memfd_create("fuzz")


def command_line_size(draws: Draws) -> None:
    text = draws.text()
    nbytes = size(text)
    found = re.match(r"\s*(\d+)([kKmMgGtT]?)", text)
    assert found is not None
    assert nbytes == int(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " ")
    assert nbytes > 0
    assert nbytes % (4 << 20) == 0


def command_line_names(draws: Draws) -> None:
    assert set(names(draws.text())) <= set(BENCHMARKS)


def backend(draws: Draws) -> None:
    by_environment = draws.below(2)
    text = draws.text().replace("\0", "")
    os.environ["DEEPNVME_BACKEND"] = text if by_environment else ""
    found = backend_name(None if by_environment else text)
    assert found in BACKENDS
    assert found == (text or "auto")


def pin_backend(draws: Draws) -> None:
    text = draws.text().replace("\0", "")
    os.environ["DS_PIN_MEMORY_BACKEND"] = text
    assert selected_backend() == (text.strip().lower() or "torch")


def number_of_bytes(variable: str, reader: str, draws: Draws) -> None:
    """What the extension reads only once in a process: a child for each value."""
    text = draws.text().replace("\0", "")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.environ[variable] = text
            answer = str(getattr(_deepnvme.pin, reader)())
        except ValueError as error:
            answer = f"refused: {error}"
        os.write(writing, answer.encode("utf-8", "surrogateescape")[:1000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode("utf-8", "surrogateescape")
    _, status = os.waitpid(child, 0)
    assert status == 0
    number = re.fullmatch(r"([0-9]+)([kmgt]?)", text, re.IGNORECASE | re.ASCII)
    nbytes = int(number[1]) * 1024 ** " kmgt".index(number[2].lower() or " ") if number else 1 << 64
    if text == "":
        assert not answer.startswith("refused"), answer
    elif nbytes < 1 << 64:
        assert answer == str(nbytes)
    else:
        assert answer.startswith(f"refused: {variable} is "), answer


class Index:
    """An integer that is none of Python's."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def offset(draws: Draws) -> None:
    kind = draws.below(5)
    value = draws.signed()
    given = (value, Index(value), str(value), float(value), None)[kind]
    done = handle().synchronous(bytearray(), empty_file(), given, False, False)
    assert done == 1
    assert kind < 2
    assert 0 <= value < 1 << 63


def file(draws: Draws) -> None:
    kind = draws.below(4)
    value = draws.signed()
    text = draws.text()
    given: Any = (text, os.fsencode(text), value, Index(value))[kind]
    done = handle().synchronous(bytearray(), given, 0, False, False)
    assert done == 1
    assert kind < 3
    os.stat(given)  # there is such a file


def options(draws: Draws) -> None:
    block_size, queue_depth, workers = draws.signed(), draws.signed(), draws.signed()
    good = 1 <= block_size <= 1 << 40 and 1 <= queue_depth <= 1 << 14 and 1 <= workers <= 256
    if good and (queue_depth > 64 or workers > 2):
        return  # it works, as other tests show, and takes long
    single, overlap = draws.below(2), draws.below(2)
    name = draws.of(("posix", "auto", "", "io_urin", "\0"))
    made = _deepnvme.io.Handle(block_size, queue_depth, bool(single), bool(overlap), workers, name)
    made.close()
    assert good
    assert name in ("posix", "auto")


def switch(draws: Draws) -> None:
    text = draws.text()
    on = parse_switch("DEEPNVME_PROFILES", text)
    word = text.strip().lower()
    assert word in (("1", "true", "yes", "on", "") if on else ("0", "false", "no", "off"))


@contextmanager
def file_of(content: bytes) -> Iterator[str]:
    with os.fdopen(os.memfd_create("fuzz"), "wb", buffering=0) as memory:
        memory.write(content)
        yield f"/proc/self/fd/{memory.fileno()}"


def profile_file(draws: Draws) -> None:
    with file_of(draws.rest()) as path:
        profile = load_profile(path)
    for optimum in (profile, profile.read, profile.write):
        if optimum is not None:
            check_options(optimum.options.as_dict(), "the profile")


def sweep_file(draws: Draws) -> None:
    with file_of(draws.rest()) as path:
        found = sweep_options(path, "posix")
    assert found
    assert len(set(found)) == len(found)
    for options in found:
        check_options(options.as_dict(), "the sweep file")


PROFILE = {
    "format": "deepnvme profile", "version": 1, "options": {"queue_depth": 7}, "read": None,
    "write": {"options": {}, "bytes_per_second": 1}, "directories": ["a"],
    "drives": [{"uuid": "1"}], "created": "", "machine": {},
}  # fmt: skip

PARSERS = (
    Parser(
        "size", command_line_size, (argparse.ArgumentTypeError, ValueError), (b"256M", b"1 GiB")
    ),
    Parser("names", command_line_names, (argparse.ArgumentTypeError,), (b"large_tensor, pinning",)),
    Parser("backend", backend, (ValueError,), (b"\0posix", b"\1io_uring", b"\1")),
    Parser(
        "cache_bytes",
        partial(number_of_bytes, "DEEPNVME_PIN_CACHE_BYTES", "get_cache_limit"),
        (),
        (b"2147483648", b"18446744073709551616", b"16G", b"0x1", b"1\xff"),
    ),
    Parser("offset", offset, (ValueError, TypeError), (b"\0\1\x3f\0\2", b"\1\0\1\5", b"\2")),
    Parser("file", file, (OSError, ValueError, TypeError), (b"\0\0\0/dev/null", b"\2\1\0\0\3")),
    Parser(
        "options", options, (ValueError, TypeError, RuntimeError), (b"\1\x14\0\2\1\3\0\2\1\0\0\2",)
    ),
    Parser(
        "buffer", lambda draws: buffer(draws, handle()), (ValueError, TypeError), (b"\1\2\4\3\2",)
    ),
    Parser(
        "dlpack", lambda draws: dlpack(draws, handle()), (ValueError, TypeError), (b"\1\2\4\3\2",)
    ),
    Parser("pin_backend", pin_backend, (ValueError,), (b"native", b" Torch ")),
    Parser(
        "pin_budget",
        partial(number_of_bytes, "DEEPNVME_PIN_BUDGET", "get_budget"),
        (),
        (b"4096", b"99999999T", b"1K "),
    ),
    Parser("switch", switch, (ValueError,), (b"off", b" TRUE", b"2")),
    Parser("profile_file", profile_file, (ValueError,), (json.dumps(PROFILE).encode(), b"{}")),
    Parser(
        "sweep_file",
        sweep_file,
        (ValueError,),
        (b'{"block_size": ["1M", 7], "queue_depth": [8], "sequential_requests": [true]}', b"[]"),
    ),
)


def check(data: bytes) -> bool:
    """Whether an input is one for a parser; anything but what that refuses with is a find."""
    place = data[0] % MOST_PARSERS if data else MOST_PARSERS
    if place >= len(PARSERS):
        return False
    parser = PARSERS[place]
    try:
        parser.check(Draws(data[1:]))
    except parser.refuses as error:
        if not str(error):
            raise AssertionError(f"{parser.name} refuses without a word") from error
    return True


def seeds() -> list[bytes]:
    return [bytes([place]) + seed for place, parser in enumerate(PARSERS) for seed in parser.seeds]
