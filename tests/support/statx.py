"""A statx that answers something else than the kernel, to be preloaded (FX8)."""

from __future__ import annotations

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
typedef int (*function)(int, const char*, int, unsigned, struct statx*);
int statx(int fd, const char* path, int flags, unsigned asked, struct statx* out) {
    int result = ((function)dlsym(RTLD_NEXT, "statx"))(fd, path, flags, asked, out);
    unsigned char* bytes = (unsigned char*)out;
    unsigned* mask = (unsigned*)bytes;
    unsigned* memory = (unsigned*)(bytes + 0x98);
    unsigned* offset = (unsigned*)(bytes + 0x9C);
    if (result == 0 && *offset != 0) { CHANGE }
    return result;
}
"""

# The headers of the machine may be older than the fields.
_ALIGNMENT_IS_TOLD = "0x2000u"


def alignment_of_memory(nbytes: int) -> str:
    """C: a file system says that direct I/O takes memory aligned to `nbytes`, whatever is true."""
    return _SOURCE.replace("CHANGE", f"*memory = {nbytes};")


def silent() -> str:
    """C: a kernel before 6.1, or a file system that does not know the question."""
    change = f"*mask &= ~{_ALIGNMENT_IS_TOLD}; *memory = *offset = 0;"
    return _SOURCE.replace("CHANGE", change)
