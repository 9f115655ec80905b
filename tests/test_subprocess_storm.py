"""Programs started all the time during direct reads into heap memory corrupt nothing (D-04)."""

from __future__ import annotations

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import aio
from support.buffers import pattern, raw
from support.files import drop_cache

NBYTES = 1 << 20
PROGRAMS = 100


def start_programs(number: int) -> None:
    for index in range(PROGRAMS):
        if index % 3 == 0:  # fork, for the sake of preexec_fn
            subprocess.run(["true"], check=True, timeout=60, preexec_fn=os.getpid, close_fds=True)
        elif index % 3 == 1:  # vfork
            subprocess.run(["true"], check=True, timeout=60, close_fds=False)
        else:
            pid = os.posix_spawn("/bin/true", ["true"], os.environ)
            assert os.waitpid(pid, 0)[1] == 0


def test_reads_into_heap_memory(disk: Path, backend: str) -> None:
    """Small tensors of one heap page beside large ones; a fork makes their pages copy-on-write."""
    data = pattern(NBYTES)
    path = disk / "file"
    path.write_bytes(data)
    drop_cache(path)
    stop = threading.Event()
    rounds = [0, 0]

    def read(number: int) -> None:
        with aio.aio_handle(backend=backend, block_size=65536) as handle:
            while not stop.is_set():
                large = torch.full((NBYTES,), 0x5A, dtype=torch.uint8)
                small = [torch.full((4096,), 0x5A, dtype=torch.uint8) for _ in range(16)]
                handle.async_pread(large, path)
                for index, tensor in enumerate(small):
                    handle.async_pread(tensor, path, index * 4096)
                large_again = bytearray(NBYTES)  # the heap is written beside the transfers
                assert handle.wait() == 17
                handle.sync_pread(large_again, path)
                assert raw(large) == data
                assert large_again == data
                for index, tensor in enumerate(small):
                    assert raw(tensor) == data[index * 4096 :][:4096]
                rounds[number] += 1

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, number) for number in range(2)]
        starters = [pool.submit(start_programs, number) for number in range(2)]
        try:
            for starter in starters:
                starter.result(60)
        finally:
            stop.set()
        for reader in readers:
            reader.result(60)
    assert min(rounds) > 0
