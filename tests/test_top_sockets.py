"""The sockets of deepnvme top: whose they are, and what becomes of callers that get no answer."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from aio import endpoints, stats_server, top
from support.child import HANG_S
from support.threads import in_threads

pytest_plugins = ["support.top_fixture"]


def test_somebody_elses_directory(place: Path) -> None:
    place.mkdir(mode=0o700)
    for spoil, restore in (
        (lambda: place.chmod(0o750), lambda: place.chmod(0o700)),
        (lambda: os.chown(place, 12345, -1), lambda: os.chown(place, os.geteuid(), -1)),
    ):
        try:
            spoil()
        except PermissionError:
            continue
        for use in (endpoints.listen, endpoints.living_endpoints):
            with pytest.raises(PermissionError, match="0700"):
                use()
        restore()
    place.rmdir()
    place.symlink_to("/tmp")
    with pytest.raises(PermissionError, match="0700"):
        endpoints.listen()


def test_a_name_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "directories", lambda: [tmp_path / ("n" * 120)])
    with pytest.raises(OSError, match="XDG_RUNTIME_DIR"):
        endpoints.listen()


@pytest.mark.parametrize("runtime", [None, "relative", "gone", "there"])
def test_the_directory_of_the_session_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative").mkdir()
    (tmp_path / "there").mkdir()
    values = {None: "", "relative": "relative", "gone": f"{tmp_path}/gone"}
    monkeypatch.setenv("XDG_RUNTIME_DIR", values.get(runtime, f"{tmp_path}/there"))
    preferred = [tmp_path / "there" / "deepnvme"] if runtime == "there" else []
    assert endpoints.directories() == [*preferred, Path(f"/tmp/deepnvme-{os.geteuid()}")]


def test_an_endpoint_that_is_served_is_not_taken(place: Path) -> None:
    server, path = endpoints.listen()
    with server, pytest.raises(OSError, match="another process has this number"):
        endpoints.listen()
    assert os.listdir(place) == [path.name]


def test_a_socket_that_cannot_be_made(place: Path) -> None:
    place.mkdir(mode=0o700)
    (place / f".{os.getpid()}").mkdir()  # where the socket would begin
    with pytest.raises(OSError, match="directory"):
        endpoints.listen()
    assert os.listdir(place) == [f".{os.getpid()}"]


def test_a_process_that_has_more_callers_than_the_kernel_keeps_is_alive(place: Path) -> None:
    place.mkdir(mode=0o700)
    path = place / "1.sock"
    (place / "no number.sock").touch()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(path))
        server.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                caller = stack.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                caller.connect(str(path))
        assert endpoints.living_endpoints() == {1: path}
    assert endpoints.living_endpoints() == {}
    assert os.listdir(place) == ["no number.sock"]


def answer_with(server: socket.socket, answer: bytes, callers: int) -> threading.Thread:
    """Whoever calls gets `answer`, which is not the whole of one."""

    def serve() -> None:
        for _ in range(callers):
            # One who only asked whether anybody listens has left, perhaps before the answer.
            with server.accept()[0] as caller, contextlib.suppress(BrokenPipeError):
                caller.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_process_that_ends_while_it_answers(place: Path) -> None:
    server, path = endpoints.listen()
    with server:
        thread = answer_with(server, b'{"pid": 1', 3)
        with pytest.raises(ConnectionError, match="ended while it answered"):
            endpoints.ask(path)
        assert top._samples(os.getpid()) == {}  # which asks whether it lives, and then what it does
        thread.join()


class Conversation:
    """A socket whose callers come from a list; then it fails."""

    def __init__(self, *callers: Any) -> None:
        self.callers = list(callers)
        self.closed = False

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def accept(self) -> tuple[Any, str]:
        if not self.callers:
            raise OSError(24, "Too many open files")
        return self.callers.pop(0), ""


def test_what_goes_wrong_with_one_caller_is_not_the_end_of_answering(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    for ours, _ in pairs:
        ours.settimeout(HANG_S)
    (_, gone), (_, unlucky), (last, third) = pairs
    pairs[0][0].close()  # before it is answered
    answers = iter(["for nobody", OSError(5, "of the sample"), "for the third"])

    def sample_or_fail() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(stats_server, "sample", sample_or_fail)
    serving = Conversation(gone, unlucky, third)
    thread = threading.Thread(target=stats_server._serve, args=(serving,))  # blocks its signals
    thread.start()
    thread.join()
    assert serving.closed
    with last, pairs[1][0]:
        assert last.recv(100) == b'"for the third"\n'
        assert pairs[1][0].recv(100) == b""
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "deepnvme top was not answered",
        "deepnvme top is not answered any more",
    ]


def test_a_process_that_does_not_answer(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "ANSWER_S", 0.05)
    server, path = endpoints.listen()
    with server:
        assert path in endpoints.living_endpoints().values()
        assert top.print_top(None, True, True, 0.01) == 1
    assert "does not answer" in capsys.readouterr().err
    assert endpoints.living_endpoints() == {}


def test_a_process_that_ends_meanwhile_is_not_there(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for sockets and the question it has removed its own."""
    monkeypatch.setattr(endpoints, "living_endpoints", lambda: {7: place / "7.sock"})
    assert top.print_top(None, True, True, 0.01) == 1
    assert capsys.readouterr().out == ""
    assert top._samples(None) == {}


def test_one_that_too_many_ask_does_not_end_the_others(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(endpoints, "living_endpoints", lambda: {7: place / "7.sock"})
    monkeypatch.setattr(endpoints, "ask", busy)
    assert top._samples(None) == {}
    assert "process 7 does not answer" in capsys.readouterr().err


def test_a_thread_that_can_answer_no_more_refuses(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else whoever asks would wait for an answer that never comes."""
    server, path = endpoints.listen()

    def no_descriptors(server: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", no_descriptors)
    in_threads(lambda: stats_server._serve(server))
    assert "not answered any more" in caplog.text
    with pytest.raises(ConnectionRefusedError):
        endpoints.ask(path)
    assert endpoints.living_endpoints() == {}
