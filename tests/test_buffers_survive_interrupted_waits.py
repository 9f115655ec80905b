"""No buffer is let go before its completion, however often the wait is interrupted (D-01)."""

from __future__ import annotations

from pathlib import Path

from support.buffers import pattern
from support.child import child_answer, injections, with_strace

CHUNKS = 16
NBYTES = 256 * 1024

SCRIPT = """
import gc, json, os, sys
import torch, aio
backend, path, chunks, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.posix_fadvise(os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
handle = aio.aio_handle(backend=backend, block_size=65536, queue_depth=8)
kept = torch.zeros(nbytes, dtype=torch.uint8)
for index in range(chunks):
    handle.async_pread(torch.empty(nbytes, dtype=torch.uint8), path, index * nbytes)
handle.async_pread(kept, path)
gc.collect()
# Of the same size: an allocator gives out first what was just let go.
churn = [torch.full((nbytes,), index, dtype=torch.uint8) for index in range(2 * chunks)]
counted = handle.wait()
untouched = all(bool((tensor == index).all()) for index, tensor in enumerate(churn))
expected = torch.frombuffer(bytearray(open(path, "rb").read(nbytes)), dtype=torch.uint8)
print(json.dumps([counted, untouched, torch.equal(kept, expected)]))
"""


def test_interrupted_reaping(disk: Path, backend: str, tmp_path: Path) -> None:
    path = disk / "file"
    path.write_bytes(pattern(CHUNKS * NBYTES))
    reaping = {
        "io_uring": "io_uring_enter",
        "libaio": "io_getevents,io_pgetevents",
        "posix": "pread64,preadv,preadv2",
    }[backend]
    # Before the script has begun, the dynamic loader reads too.
    only = [path] if backend == "posix" else []
    log = tmp_path / "trace"
    answer = child_answer(
        SCRIPT,
        backend,
        path,
        CHUNKS,
        NBYTES,
        wrapper=with_strace(
            log, f"trace={reaping}", f"inject={reaping}:error=EINTR:when=1+3", path=only
        ),
    )
    assert injections(log) > 0
    assert answer == [CHUNKS + 1, True, True]
