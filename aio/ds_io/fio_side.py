"""The same work through fio: as many jobs as processes, the same files, blocks and depth."""

from __future__ import annotations

from pathlib import Path

from aio.backends import available_backends
from aio.drives import mount_of
from aio.ds_io.options import TORCH, Options
from aio.measure import fio
from aio.measure.files import drop_cache, prepare_file
from aio.measure.harness import Sample
from aio.measure.transfers import MEMORY_FILE_SYSTEMS


class FioSide:
    """fio as a contestant. Its files are removed after it where each loop makes new ones."""

    def __init__(self, options: Options, folders: list[Path]) -> None:
        self._options = options
        self._paths = [folder / f"fio.{rank}" for rank, folder in enumerate(folders)]
        uring = options.backend in ("io_uring", "none", "posix")
        usable = uring and "io_uring" in available_backends()
        self.engine = "io_uring fixed" if usable else "libaio"
        self.version = fio.version()
        kinds = {mount_of(folder)[0] for folder in folders}
        self.mode = "memory" if kinds & MEMORY_FILE_SYSTEMS else "direct"
        self._run = fio.Runner([self._job(path) for path in self._paths], self.engine)

    def _job(self, path: Path) -> fio.Job:
        options = self._options
        arguments = fio.one_file(path, options.io_size)
        if options.fresh_files:
            # fio would else allocate the file before it starts its clock.
            arguments = (*arguments, "--allow_file_create=1", "--fallocate=none")
        if not options.reading and (options.fsync or options.engine == TORCH):
            arguments = (*arguments, "--end_fsync=1")
        return fio.Job(
            options.direction,
            arguments,
            options.io_size,
            block_size=str(options.block_size),
            depth=options.queue_depth * options.io_parallel,
            mode=self.mode,
            kernel_workers=self.mode == "memory",
        )

    def warm_up(self) -> None:
        """Make the files that fio reads or writes over, and learn what starting it costs."""
        if not self._options.fresh_files:
            for path in self._paths:
                prepare_file(path, self._options.io_size)
        self._run.warm_up()

    def run(self) -> Sample:
        """One loop. Raises BenchError for any error, short transfer or missing byte."""
        for path in self._paths:
            if self._options.fresh_files:
                path.unlink(missing_ok=True)
            else:
                drop_cache(path)
        try:
            return self._run()
        finally:
            if self._options.fresh_files:
                for path in self._paths:
                    path.unlink(missing_ok=True)
