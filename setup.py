"""Builds the one extension, ``_deepnvme``, with the I/O engines that this machine allows.

What the package is called, contains and depends on is in pyproject.toml. This file only knows how
the C++ is built:

1. For each optional engine a small program is compiled and linked against its library, statically
   where that works. The engine is compiled in if it links; otherwise the reason is compiled in, and
   the library shows it.
2. Sources compile two at a time (``DEEPNVME_JOBS``), and only those whose source, headers or flags
   changed.

``DEEPNVME_WITHOUT=liburing,libaio`` leaves engines out; ``DEEPNVME_REQUIRE=liburing,libaio`` fails
the build instead of leaving one out. ``DEEPNVME_SANITIZE=address,undefined`` builds under these
sanitizers of the compiler, ``DEEPNVME_COVERAGE=1`` with counters of the lines that run, each with
objects of their own. ``python setup.py engine_flags`` prints what step 1 found, for builds without
Python (tests/cpp/Makefile). Nothing here needs torch.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
JOBS = 2
SANITIZE = os.environ.get("DEEPNVME_SANITIZE", "")
COUNTERS = ("--coverage", "-O0", "-g", "-fprofile-update=atomic", "-fprofile-abs-path")
COVERAGE = os.environ.get("DEEPNVME_COVERAGE") == "1"
# Objects made in different ways are in different directories, so that none replaces the others'.
VARIANT = "".join(f"-{way}" for way in (*SANITIZE.split(","), COVERAGE and "coverage") if way)
OBJECTS = Path("build", f"objects-{sys.implementation.cache_tag}{VARIANT}")

# What the extension exports: only its entry, so that another copy of liburing or libaio in the
# process is never mixed up with ours; with counters also what writes them, for
# tests/support/counted.py. A static libaio has versioned symbols, whose versions must exist
# wherever it is linked into a shared object.
EXPORTED = "PyInit__deepnvme; __gcov_dump;" if COVERAGE else "PyInit__deepnvme;"
EXPORTS = f"""
DEEPNVME {{ global: {EXPORTED} local: *; }};
LIBAIO_0.1 {{ local: *; }};
LIBAIO_0.4 {{ local: *; }};
"""
EXPORTS_FILE = "exports.map"


@dataclass(frozen=True)
class Engine:
    """An optional I/O engine: its library, and a program that uses what the engine uses of it."""

    library: str
    program: str

    @property
    def macro(self) -> str:
        return self.library.upper()


@dataclass(frozen=True)
class Probe:
    """What became of an engine: how to link it, or why it is left out."""

    engine: Engine
    link_args: tuple[str, ...] = ()
    reason: str = ""

    @property
    def define(self) -> tuple[str, str]:
        if self.reason:
            return f"DEEPNVME_{self.engine.macro}_REASON", f'"{self.reason}"'
        return f"DEEPNVME_HAVE_{self.engine.macro}", "1"

    @property
    def remedy(self) -> str:
        named = self.engine.library in named_by_the_user("DEEPNVME_WITHOUT")
        what = "unset DEEPNVME_WITHOUT" if named else f"apt install {self.engine.library}-dev"
        return f"; to have it, {what} and install again" if self.reason else ""

    def __str__(self) -> str:
        if self.reason:
            return f"left out: {self.engine.library} ({self.reason})"
        return f"found: {self.engine.library} ({' '.join(self.link_args)})"


ENGINES = (
    Engine(
        "liburing",
        """
        #include <liburing.h>
        extern "C" int PyInit__deepnvme() {
            io_uring ring;
            io_uring_params params{};
            params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
            io_uring_queue_init_params(4, &ring, &params);
            io_uring_register_buffers_sparse(&ring, 4);
            io_uring_register_buffers_update_tag(&ring, 0, nullptr, nullptr, 0);
            io_uring_submit_and_get_events(&ring);
            io_uring_queue_exit(&ring);
            return 0;
        }
        """,
    ),
    Engine(
        "libaio",
        """
        #include <libaio.h>
        extern "C" int PyInit__deepnvme() {
            io_context_t context{};
            io_event event;
            io_setup(4, &context);
            io_submit(context, 0, nullptr);
            io_getevents(context, 0, 1, &event, nullptr);
            return io_destroy(context);
        }
        """,
    ),
)


def use_a_compiler_that_exists() -> None:
    """Sets CXX and CC where the compilers that Python was built with are not on this machine."""
    for variable, language, names in (
        ("CXX", "C++", ("c++", "g++", "clang++")),
        ("CC", "C", ("cc", "gcc", "clang")),
    ):
        asked_for = os.environ.get(variable)
        command = asked_for or sysconfig.get_config_var(variable)
        if command and shutil.which(shlex.split(command)[0]):
            continue
        found = None if asked_for else next(filter(shutil.which, names), None)
        if found is None:
            missing = f"{variable}={asked_for}" if asked_for else " or ".join(names)
            raise SystemExit(
                f"No {language} compiler: {missing} is not installed (apt install g++)"
            )
        os.environ[variable] = found


def environment_flags(*variables: str) -> list[str]:
    return [flag for name in variables for flag in shlex.split(os.environ.get(name, ""))]


def one_line_reason(output: str) -> str:
    """The telling line of a compiler's output, safe inside a C string and a makefile."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["unknown error"]
    telling = re.compile(r"error:|cannot find|undefined reference|undefined symbol")
    line = next((line for line in lines if telling.search(line)), lines[-1])
    line = re.sub(r"^probe\.cpp:(\d+:)*\s*((fatal )?error: )?", "", line)
    return re.sub(r"[^\w .,:;+*/()<>=-]", "", line)[:200].strip()


def probe(engine: Engine) -> Probe:
    """Compiles and links ``engine``'s program: as a shared object, since the extension is one."""
    if engine.library in named_by_the_user("DEEPNVME_WITHOUT"):
        return Probe(engine, reason="left out by DEEPNVME_WITHOUT")
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    compiler += ["-std=c++20", "-fPIC", *environment_flags("CPPFLAGS", "CXXFLAGS")]
    linking = [*environment_flags("LDFLAGS"), "-shared", "-Wl,--no-undefined", exports_option(".")]
    with tempfile.TemporaryDirectory(prefix="deepnvme-probe-") as directory:

        def run(*arguments: str) -> str:
            """Empty when it worked, or what the compiler said."""
            command = [*compiler, *arguments]
            done = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, check=False
            )
            return "" if done.returncode == 0 else done.stderr + done.stdout + "\nit failed"

        Path(directory, EXPORTS_FILE).write_text(EXPORTS)
        Path(directory, "probe.cpp").write_text(engine.program)
        failure = run("-c", "probe.cpp", "-o", "probe.o")
        if failure:
            return Probe(engine, reason=one_line_reason(failure))
        # Static first: the extension then runs where the shared library is missing, or is another.
        for link in (f"-l:{engine.library}.a", f"-l{engine.library.removeprefix('lib')}"):
            failure = run(*linking, "probe.o", link, "-o", "probe.so")
            if not failure:
                return Probe(engine, link_args=(link,))
        return Probe(engine, reason=one_line_reason(failure))


def exports_option(directory: str) -> str:
    return f"-Wl,--version-script={Path(directory, EXPORTS_FILE)}"


def named_by_the_user(variable: str) -> frozenset[str]:
    """The engines' libraries that an environment variable lists."""
    names = frozenset(filter(None, re.split(r"[,\s]+", os.environ.get(variable, ""))))
    unknown = names - {engine.library for engine in ENGINES}
    if unknown:
        raise SystemExit(
            f"{variable} names {', '.join(sorted(unknown))}: "
            f"it takes a comma-separated list of {', '.join(engine.library for engine in ENGINES)}"
        )
    return names


def fail_for_what_is_required(probes: list[Probe]) -> None:
    required = named_by_the_user("DEEPNVME_REQUIRE")
    missing = [str(found) for found in probes if found.reason and found.engine.library in required]
    if missing:
        raise SystemExit(
            f"DEEPNVME_REQUIRE={','.join(sorted(required))}, but {'; '.join(missing)}: "
            "install the headers, or do not require it"
        )


def must_compile(target: str, source: str) -> bool:
    """True if the source, or a header that it included last time (-MMD), is newer, or is gone."""
    rule = Path(target).with_suffix(".d")
    if not rule.exists():
        return True
    text = rule.read_text().replace("\\\n", " ")
    used = [source, *text.partition(": ")[2].split()]
    built = Path(target).stat().st_mtime
    return any(not Path(name).exists() or Path(name).stat().st_mtime > built for name in used)


class BuildPackages(build_py):
    """``build_py`` whose copies of the packages have no module that is gone from the source."""

    def run(self) -> None:
        if not self.editable_mode:
            for package in {name.partition(".")[0] for name in self.packages or ()}:
                shutil.rmtree(Path(self.build_lib, package), ignore_errors=True)
        super().run()


class BuildExtension(build_ext):
    """``build_ext`` that probes the engines and keeps its objects from one build to the next."""

    def finalize_options(self) -> None:
        asked_for = self.build_temp
        super().finalize_options()
        # An editable install asks for a fresh folder, which would compile everything again.
        if asked_for is None or self.editable_mode:
            self.build_temp = str(OBJECTS)

    def build_extensions(self) -> None:
        from pybind11.setup_helpers import ParallelCompile

        probes = [probe(engine) for engine in ENGINES]
        for found in probes:
            print(f"engine {found}{found.remedy}", flush=True)
        fail_for_what_is_required(probes)
        for extension in self.extensions:
            extension.define_macros += [found.define for found in probes]
            extension.extra_link_args += [arg for found in probes for arg in found.link_args]
            extension.extra_link_args.append(exports_option(self.build_temp))
            self.start_over_if_flags_changed(extension, [str(found) for found in probes])
        with ParallelCompile("DEEPNVME_JOBS", default=JOBS, needs_recompile=must_compile):
            super().build_extensions()

    def start_over_if_flags_changed(self, extension, notes: list[str]) -> None:
        """Drops objects made with other flags; the link depends on the record of the flags."""
        flags = [
            *notes,
            *map(shlex.join, (self.compiler.compiler_so_cxx, self.compiler.linker_so_cxx)),
            shlex.join([*extension.extra_compile_args, *extension.extra_link_args]),
            *(f"{name}={value}" for name, value in extension.define_macros),
            *extension.include_dirs,
            *extension.sources,
            EXPORTS,
        ]
        record = Path(self.build_temp, "flags.txt")
        text = "\n".join(flags) + "\n"
        if not record.exists() or record.read_text() != text:
            for stale in Path(self.build_temp).rglob("*.o"):
                stale.unlink()
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(text)
            record.with_name(EXPORTS_FILE).write_text(EXPORTS)
        extension.depends.append(str(record))


class EngineFlags(Command):
    """Prints the engines' defines and link arguments as makefile variables."""

    description = "print the engines' compiler and linker flags as makefile variables"
    user_options = []  # noqa: RUF012  (setuptools reads the class attribute)

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        probes = [probe(engine) for engine in ENGINES]
        defines = ["-D{}={}".format(*found.define) for found in probes]
        print(f"ENGINE_DEFINES := {shlex.join(defines)}")
        print(f"ENGINE_LIBS := {shlex.join([arg for found in probes for arg in found.link_args])}")


def sources() -> list[str]:
    """Relative, as setuptools wants them; the binding first, whose files compile longest."""
    found = sorted(path.relative_to(ROOT) for path in ROOT.glob("csrc/**/*.cpp"))
    return [str(path) for path in sorted(found, key=lambda path: path.parts[1] != "python")]


def checking_flags() -> list[str]:
    """For compiling and linking: what the extension finds out about itself as it runs."""
    counters = list(COUNTERS) if COVERAGE else []
    if not SANITIZE:
        return counters
    return [
        *counters,
        # A report ends the process, and has the lines of all callers.
        *(f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"),
        # It looks at an object through a pipe, and calls the object wrong where no descriptor is
        # left, which is what some tests are about.
        "-fno-sanitize=vptr",
    ]


def extension():
    from pybind11.setup_helpers import Pybind11Extension

    chosen = any(flag.startswith("-O") for flag in environment_flags("CXXFLAGS"))
    optimise = [] if chosen else ["-O1" if SANITIZE else "-O3"]
    return Pybind11Extension(
        "_deepnvme",
        sources(),
        depends=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.h")),
        include_dirs=["csrc"],
        cxx_std=20,
        define_macros=[("_GLIBCXX_ASSERTIONS", "1")] if SANITIZE else [],
        extra_compile_args=[
            *(*optimise, "-Wall", "-Wextra", "-pthread", "-MMD"),
            *checking_flags(),
        ],
        extra_link_args=[
            *("-pthread", *checking_flags()),
            *(["-Wl,--undefined=__gcov_dump"] if COVERAGE else []),
        ],
    )


if __name__ == "__main__":
    use_a_compiler_that_exists()
    wants_engine_flags_only = sys.argv[-1] == "engine_flags"
    setup(
        ext_modules=[] if wants_engine_flags_only else [extension()],
        cmdclass={
            "build_py": BuildPackages,
            "build_ext": BuildExtension,
            "engine_flags": EngineFlags,
        },
    )
