"""Everybody who moves tensors, on the same work: a buffer, and a dict of tensors.

Writes are into files that do not exist, and end with an fsync in the timed part, whatever path the
bytes took. Reads are of files that the page cache has nothing of, and end with the bytes in memory.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

import aio
from aio.measure import fio
from aio.measure.files import prepare_file
from aio.measure.harness import BenchError, Contestant, Sample, run_rounds, stopwatch
from aio.measure.transfers import bytes_by_path, moved_since, pinned

from . import kvikio_peer, ours, python_peer, safetensors_peer, tensornvme_peer, torch_peer
from .conditions import PeerError, cold, durable, fresh
from .context import Context
from .layout import Piece, StateDict, refuse_other, state_dict
from .results import Result
from .tensornvme_peer import TensorNvme

TITLE = "Peers on the same work"
TENSORS = 64
_FILE = {True: "existing file, page cache dropped", False: "fresh file, fsync in the time"}


def run(context: Context) -> Result:
    """--size bytes of one page-locked buffer, then as many in 64 tensors of plain memory."""
    result = Result("peers", TITLE)
    needed = 5 * context.size
    if shutil.disk_usage(context.folder).free < needed:
        raise BenchError(f"{context.folder}: needs {needed / 1e9:.1f} GB free")
    if context.deepspeed is None:
        result.missing["DeepSpeed"] = context.deepspeed_missing
    _note_missing(result, "KvikIO", lambda: kvikio_peer.missing(context.folder))
    _note_missing(result, "TensorNVMe", tensornvme_peer.missing)
    _note_missing(result, "safetensors", safetensors_peer.missing)
    for reading in (False, True):
        with ExitStack() as stack:
            _measure(context, result, _buffer(context, result, stack, reading), reading, "buffer")
    state = state_dict(TENSORS, context.size)
    with ExitStack() as stack:
        writers, readers = _dictionary(context, result, stack, state)
        work = f"dict of {TENSORS} tensors"
        _measure(context, result, writers, False, work)
        _measure(context, result, readers, True, work)
    return result


def _note_missing(result: Result, name: str, why: Callable[[], str]) -> None:
    reason = why()
    if reason:
        result.missing[name] = reason


def _measure(
    context: Context, result: Result, contestants: list[Contestant], reading: bool, what: str
) -> None:
    work = f"{'read' if reading else 'write'} {context.size / 2**20:.0f} MiB, {what}"
    while True:
        try:
            series = run_rounds(contestants, context.rounds, context.progress)
            break
        except PeerError as error:
            result.missing[f"{error.peer}, {work}"] = str(error)
            contestants = [other for other in contestants if other.name != error.peer]
    result.add(work, _FILE[reading], series, series["aio"])


def _buffer(context: Context, result: Result, stack: ExitStack, reading: bool) -> list[Contestant]:
    """One buffer that is there already, page-locked where that helps."""
    path = context.folder / "buffer.bin"
    if reading:
        prepare_file(path, context.size)
    owner = stack.enter_context(ours.handle(context))
    tensor = stack.enter_context(pinned(owner, context.size))
    direction = "read" if reading else "write"
    arguments = fio.one_file(path, context.size)
    if not reading:  # later arguments win; fio would else allocate before its clock starts
        arguments = (*arguments, "--allow_file_create=1", "--fallocate=none")
    job = fio.Job(
        direction, arguments, context.size, depth=context.queue_depth, mode=context.fio_mode,
        kernel_workers=context.on_tmpfs,
    )  # fmt: skip
    contestants = [
        ours.whole("aio", owner, Piece(tensor, path), reading, context, 1),
        *fio.contestants(job, 1, quick=True),
        _named("Python, O_DIRECT", python_peer.large(path, tensor, reading, context)),
        _named("Python", python_peer.buffered(path, tensor, reading)),
    ]
    if context.deepspeed is not None:
        contestants.append(
            context.deepspeed.contestant(
                "DeepSpeed", 1, "large", context.fio_mode,
                path=str(path), nbytes=context.size, reading=reading, memory="pinned",
            )
        )  # fmt: skip
    if "KvikIO" not in result.missing:
        contestants.append(kvikio_peer.large(path, tensor, reading))
    fair = [_same_work(contestant, path, reading) for contestant in contestants]
    return [*fair, *_tensornvme(context, result, stack, [tensor.clone()])[reading]]


def _named(name: str, contestant: Contestant) -> Contestant:
    """Under one name for reading and for writing."""
    return dataclasses.replace(contestant, name=name)


def _same_work(contestant: Contestant, path: Path, reading: bool) -> Contestant:
    if reading:
        return cold(contestant, path)
    return durable(fresh(contestant, path), path)


def _tensornvme(
    context: Context, result: Result, stack: ExitStack, tensors: list[torch.Tensor]
) -> dict[bool, list[Contestant]]:
    """Its writer and its reader, where it is there; it makes and drops its file by itself."""
    if "TensorNVMe" in result.missing:
        return {False: [], True: []}
    path = context.folder / "tensornvme.bin"
    peer = TensorNvme(path, tensors, context.queue_depth)
    stack.callback(peer.close)
    return {False: [durable(peer.contestant(False), path)], True: [peer.contestant(True)]}


def _dictionary(
    context: Context, result: Result, stack: ExitStack, state: StateDict
) -> tuple[list[Contestant], list[Contestant]]:
    """Who writes a dict, and who reads what they wrote into new tensors."""
    owner = stack.enter_context(ours.handle(context))
    path = context.folder / "aio.bin"
    pieces, offset = [], 0
    for tensor in state.tensors.values():
        pieces.append(Piece(tensor, path, offset))
        offset += tensor.nbytes
    pairs = [
        (path, ours.many("aio", owner, pieces, False, context, 1), _aio_load(
            owner, pieces, state, context)),
    ]  # fmt: skip
    saved = context.folder / "torch.pt"
    pairs.append((saved, torch_peer.save(saved, state), torch_peer.load(saved, state)))
    if "safetensors" not in result.missing:
        file = context.folder / "state.safetensors"
        pairs.append((file, safetensors_peer.save(file, state), safetensors_peer.load(file, state)))
    writers = [_same_work(writer, file, False) for file, writer, _ in pairs]
    readers = [_same_work(reader, file, True) for file, _, reader in pairs]
    copies = [tensor.clone() for tensor in state.tensors.values()]
    peers = _tensornvme(context, result, stack, copies)
    return [*writers, *peers[False]], [*readers, *peers[True]]


def _aio_load(
    owner: aio.aio_handle, pieces: list[Piece], state: StateDict, context: Context
) -> Contestant:
    """pread_many into new tensors, as the others load."""

    def run() -> Sample:
        before = bytes_by_path(owner)
        with stopwatch() as watch:
            loaded = {name: torch.empty_like(tensor) for name, tensor in state.tensors.items()}
            items = [
                (tensor, str(piece.path), piece.offset)
                for tensor, piece in zip(loaded.values(), pieces, strict=True)
            ]
            done = owner.pread_many(items)
        moved = moved_since(owner, before)
        if done != len(pieces) or sum(moved.values()) != state.nbytes:
            raise BenchError(f"aio read {sum(moved.values())} of {state.nbytes} bytes")
        refuse_other(loaded, state, pieces[0].path)
        return state.sample(watch, ours.mode_of(moved, context))

    return Contestant("aio", run)
