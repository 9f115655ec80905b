"""A FUSE file system in memory that fails as its files' names say; run as a program, by mount.

`error5-at-100000` answers EIO (5) to every read or write of its byte 100000.  `short-at-100000`
moves only what lies before that byte, and the rest if it is asked again; no page cache finishes the
work for it.  `full-at-100000` has no room for that byte and what follows.  `held-...` answers no
read and no write until a file named `release` is created.  Every other file works.  The kernel's
side is <linux/fuse.h>; nothing but the kernel is needed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
import sys

ROOT = 1
MAX_BYTES = 1 << 17  # of one request
HEADER = struct.Struct("<IIQQIIIHH")
REPLY = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<4QII")
SIZE_IS_SET = 1 << 3  # FATTR_SIZE
DIRECT_IO = 1  # FOPEN_DIRECT_IO

LOOKUP, FORGET, GETATTR, SETATTR, MKNOD, UNLINK = 1, 2, 3, 4, 8, 10
OPEN, READ, WRITE = 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR = 17, 18, 20, 25, 26, 27, 29
CREATE, INTERRUPT, DESTROY, BATCH_FORGET, FALLOCATE = 35, 36, 38, 42, 43
SILENT = (FORGET, INTERRUPT, BATCH_FORGET)
NOTHING_TO_SAY = (RELEASE, FSYNC, FLUSH, RELEASEDIR, DESTROY)

FAULT = re.compile(r"(error\d+|short|full)-at-(\d+)")


class Node:
    """One file: its bytes, and where and how it fails."""

    def __init__(self, name: str) -> None:
        self.data = bytearray()
        self.held = name.startswith("held-")
        self.kind = ""
        self.fault_at = 0
        if found := FAULT.match(name):
            self.kind, self.fault_at = found[1], int(found[2])

    def moves(self, offset: int, nbytes: int, writing: bool) -> int:
        """How many of the bytes move; OSError where none may."""
        if not offset <= self.fault_at < offset + nbytes and self.kind != "full":
            return nbytes
        if self.kind.startswith("error"):
            raise OSError(int(self.kind[5:]), "as the name says")
        if self.kind == "full" and writing and offset + nbytes > self.fault_at:
            if offset >= self.fault_at:
                raise OSError(errno.ENOSPC, "as the name says")
            return self.fault_at - offset
        if self.kind == "short" and self.fault_at > offset:
            return self.fault_at - offset
        return nbytes


class Server:
    """Answers the kernel's requests, one after the other, until the file system is unmounted."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.nodes: dict[int, Node] = {}
        self.names: dict[str, int] = {}
        self.last = ROOT
        self.released = False
        self.waiting: list[bytes] = []

    def run(self) -> None:
        """Until there is no file system any more."""
        while True:
            try:
                request = os.read(self.device, MAX_BYTES + (1 << 16))
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            self.answer(request)
            if self.released and self.waiting:
                waiting, self.waiting = self.waiting, []
                for held in waiting:
                    self.answer(held)

    def answer(self, request: bytes) -> None:
        """Reply to one request, or put it aside."""
        _, code, unique, node, *_ = HEADER.unpack_from(request)
        if code in SILENT:
            return
        held = code in (READ, WRITE) and self.nodes[node].held and not self.released
        if held:
            self.waiting.append(request)
            return
        error, payload = 0, b""
        try:
            payload = self.carry_out(code, node, request[HEADER.size :])
        except OSError as failure:
            error = -(failure.errno or errno.EIO)
        try:
            os.write(self.device, REPLY.pack(REPLY.size + len(payload), error, unique) + payload)
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.ENODEV):  # nobody waits for it any more
                raise

    def carry_out(self, code: int, node: int, body: bytes) -> bytes:
        """The payload of the reply."""
        if code == INIT:
            (major,) = struct.unpack_from("<I", body)
            limits = struct.pack("<HHIIHHI28x", 64, 48, MAX_BYTES, 1, MAX_BYTES >> 12, 0, 0)
            flags = 1 << 0 | 1 << 5 | 1 << 22  # async reads, writes beyond a page, max_pages
            return struct.pack("<4I", major, 31, 0, flags) + limits  # no readahead
        if code == LOOKUP:
            return self.entry(self.find(body))
        if code == MKNOD:
            return self.entry(self.create(body[16:]))
        if code == CREATE:
            made = self.create(body[16:])
            return self.entry(made) + self.opened(made)
        if code in (OPEN, OPENDIR):
            return self.opened(node)
        if code in (GETATTR, SETATTR):
            if code == SETATTR and struct.unpack_from("<I", body)[0] & SIZE_IS_SET:
                self.resize(self.nodes[node], struct.unpack_from("<Q", body, 16)[0])
            return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if code == READ:
            _, offset, nbytes = struct.unpack_from("<QQI", body)
            file = self.nodes[node]
            return bytes(file.data[offset : offset + file.moves(offset, nbytes, False)])
        if code == WRITE:
            _, offset, nbytes = struct.unpack_from("<QQI", body)
            return struct.pack("<II", self.write(node, offset, body[40 : 40 + nbytes]), 0)
        if code == UNLINK:
            del self.names[self.find_name(body)]
            return b""
        if code == STATFS:
            return struct.pack("<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1000, 900, 4096, 255, 4096, 0)
        if code in NOTHING_TO_SAY:
            return b""
        raise OSError(errno.ENOSYS, "not needed")

    def opened(self, node: int) -> bytes:
        # Held reads would keep pages of the cache locked, which the next open waits for.
        file = self.nodes.get(node)
        past_the_cache = file is not None and (file.held or file.kind == "short")
        return struct.pack("<QIi", 0, DIRECT_IO if past_the_cache else 0, 0)

    @staticmethod
    def resize(file: Node, nbytes: int) -> None:
        del file.data[nbytes:]
        file.data.extend(bytes(nbytes - len(file.data)))

    def write(self, node: int, offset: int, data: bytes) -> int:
        file = self.nodes[node]
        count = file.moves(offset, len(data), True)
        if len(file.data) < offset + count:
            self.resize(file, offset + count)
        file.data[offset : offset + count] = data[:count]
        return count

    def find_name(self, body: bytes) -> str:
        name = body[: body.index(0)].decode()
        if name not in self.names:
            raise OSError(errno.ENOENT, "no such file")
        return name

    def find(self, body: bytes) -> int:
        return self.names[self.find_name(body)]

    def create(self, body: bytes) -> int:
        name = body[: body.index(0)].decode()
        self.last += 1
        self.nodes[self.last] = Node(name)
        self.names[name] = self.last
        self.released = self.released or name == "release"
        return self.last

    def attributes(self, node: int) -> bytes:
        size = len(self.nodes[node].data) if node != ROOT else 0
        mode = stat.S_IFREG | 0o600 if node != ROOT else stat.S_IFDIR | 0o755
        times = (0, 0, 0, 0, 0, 0)
        return ATTRIBUTES.pack(node, size, -(-size // 512), *times, mode, 1, 0, 0, 0, 4096, 0)

    def entry(self, node: int) -> bytes:
        return ENTRY.pack(node, 0, 0, 0, 0, 0) + self.attributes(node)


def main(point: str) -> None:
    """Mount at `point`, say so, and serve."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={MAX_BYTES}"
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(b"deepnvme-test", point.encode(), b"fuse", 0, options.encode())
    if done != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    Server(device).run()


if __name__ == "__main__":
    main(sys.argv[1])
