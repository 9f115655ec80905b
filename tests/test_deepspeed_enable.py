"""enable() replaces every builder, before or after the import; disable() leaves no trace of it.

On a package of the shape of DeepSpeed's, so that every shape is there: accelerators without these
builders, and both ways to probe. test_deepspeed_builders.py has the real one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aio.deepspeed
from aio.deepspeed import operators
from support.fake_deepspeed import write_package

Package = Callable[..., None]


def fakes() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """``package(version, ...)`` puts a package where ``import deepspeed`` finds it."""
    assert fakes() == []
    before = list(sys.meta_path), dict(vars(sys))

    def make(version: str = "0.19.8", **options: bool) -> None:
        write_package(tmp_path, version, **options)
        monkeypatch.syspath_prepend(tmp_path)

    yield make
    aio.deepspeed.disable()
    for name in fakes():
        del sys.modules[name]
    assert sys.meta_path == before[0]
    assert set(vars(sys)) == set(before[1])


def load(name: str) -> Any:
    return importlib.import_module(f"deepspeed.{name}" if name else "deepspeed")


def check_replaced() -> None:
    for module in ("async_io", "cpu.async_io", "npu.async_io"):
        builder = load(f"ops.op_builder.{module}").AsyncIOBuilder
        assert builder().load() is builder().load(verbose=True) is operators.async_io
        assert builder().is_compatible() is builder().is_compatible(verbose=True) is True
        gds = load(f"ops.op_builder.{module}").GDSBuilder
        assert gds().is_compatible() is False
        with pytest.raises(RuntimeError, match="use_gds"):
            gds().load()
    pins = load("ops.op_builder.pin_memory").PinMemoryBuilder
    assert pins().load() is operators.pin_memory
    assert pins().is_compatible() is True
    for user in ("swapper", "ops.op_builder"):
        assert load(user).AsyncIOBuilder().load() is operators.async_io
        assert load(user).PinMemoryBuilder().load() is operators.pin_memory
    base = load("ops.op_builder.builder").OpBuilder
    assert base._loaded_ops["async_io"] is operators.async_io
    assert base._loaded_ops["pin_memory"] is operators.pin_memory
    assert vars(sys)["_deepspeed_pin_memory_op_module"] is operators.pin_memory
    assert load("ops").__compatible_ops__ == {"async_io": True, "pin_memory": True}
    other = load("ops.op_builder.other").UtilsBuilder
    assert other().load() == "compiled utils"
    assert other().is_compatible() is False


def snapshot() -> dict[str, Any]:
    """All that is defined in the package, with the contents of classes and dictionaries."""
    found: dict[str, Any] = {}
    for name in fakes():
        for key, value in vars(sys.modules[name]).items():
            if key.startswith("__") and key != "__compatible_ops__":
                continue
            if isinstance(value, type):
                found[f"{name}.{key}"] = value
                for inner, of_class in vars(value).items():
                    copied = dict(of_class) if isinstance(of_class, dict) else of_class
                    found[f"{name}.{key}.{inner}"] = copied
            else:
                found[f"{name}.{key}"] = dict(value) if isinstance(value, dict) else value
    return found


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("implemented", [False, True])
@pytest.mark.parametrize("probed", [False, True])
def test_after_the_import(package: Package, implemented: bool, lazy: bool, probed: bool) -> None:
    package(implemented=implemented, lazy=lazy)
    load("")
    load("ops.op_builder.all_ops"), load("ops.op_builder.npu"), load("utils.pin_memory")
    if probed:
        assert load("ops").__compatible_ops__ == {"async_io": False, "pin_memory": False}
    before = snapshot()
    for _ in range(3):
        aio.deepspeed.enable()
        aio.deepspeed.enable()
        assert aio.deepspeed.enabled()
        check_replaced()
        aio.deepspeed.disable()
        aio.deepspeed.disable()
        assert not aio.deepspeed.enabled()
        assert snapshot() == before
        assert load("ops").__compatible_ops__ == {"async_io": False, "pin_memory": False}
        before = snapshot()  # with what was probed just now


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("implemented", [False, True])
def test_before_the_import(package: Package, implemented: bool, lazy: bool) -> None:
    package(implemented=implemented, lazy=lazy)
    aio.deepspeed.enable()
    assert fakes() == []  # it does not import DeepSpeed
    check_replaced()
    aio.deepspeed.disable()
    assert load("ops").__compatible_ops__ == {"async_io": False, "pin_memory": False}
    after = snapshot()
    assert after["deepspeed.ops.op_builder.cpu.AsyncIOBuilder"]().load() == "own compiled async_io"
    names = fakes()
    for name in names:
        del sys.modules[name]
    for name in names:
        importlib.import_module(name)
    assert load("ops").__compatible_ops__ == {"async_io": False, "pin_memory": False}
    assert after.keys() == snapshot().keys()


def test_an_accelerator_that_is_imported_later(package: Package) -> None:
    package()
    load("")
    aio.deepspeed.enable()
    assert "deepspeed.ops.op_builder.npu" not in sys.modules
    late = load("ops.op_builder.npu.async_io")
    assert late.AsyncIOBuilder().load() is operators.async_io
    assert late.__loader__.get_source(late.__name__).startswith("\nfrom")  # its own loader again
    aio.deepspeed.disable()
    assert late.AsyncIOBuilder().load() == "own compiled async_io"


class OldFinder:
    """As before Python 3.4: older ones ask it, with a warning, newer ones pass over it."""

    def find_module(self, fullname: str, path: object = None) -> None:
        return


@pytest.mark.filterwarnings("ignore:OldFinder:ImportWarning")
def test_builders_of_other_packages(package: Package, tmp_path: Path) -> None:
    """A folder op_builder without __init__.py, where nothing of DeepSpeed is: as without us."""
    package()
    (tmp_path / "op_builder").mkdir()
    (tmp_path / "op_builder" / "mine.py").write_text(
        "class Missing:\n    NAME = 'deepspeed_not_implemented'\nAsyncIOBuilder = Missing\n"
    )
    before = list(sys.meta_path)
    sys.meta_path.insert(0, OldFinder())  # type: ignore[arg-type]
    try:
        aio.deepspeed.enable()
        found = importlib.import_module("op_builder.mine")
        assert found.AsyncIOBuilder is found.Missing
        assert list(sys.modules["op_builder"].__path__) == [str(tmp_path / "op_builder")]
        assert found.__loader__ is found.__spec__.loader
        assert fakes() == []
    finally:
        aio.deepspeed.disable()
        sys.meta_path[:] = before
        for name in ("op_builder", "op_builder.mine"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("version", ["0.16.0", "0.17.6", "0.18.9", "0.19.8", "0.19.9+ab12cd"])
def test_known_versions(package: Package, version: str) -> None:
    package(version)
    aio.deepspeed.enable()
    assert aio.deepspeed.enabled()


@pytest.mark.parametrize("version", ["0.15.4", "0.20.0", "1.0.0", "0.1", "0.190.0"])
@pytest.mark.parametrize("imported", [False, True])
def test_unknown_versions(package: Package, version: str, imported: bool) -> None:
    """Nothing is changed, and the message has what is there and what is supported."""
    package(version)
    if imported:
        load("")
    before = snapshot()
    with pytest.raises(aio.deepspeed.UnsupportedDeepSpeed) as raised:
        aio.deepspeed.enable()
    assert version in str(raised.value)
    assert "0.16 to 0.19" in str(raised.value)
    assert not aio.deepspeed.enabled()
    assert snapshot() == before
    load("")
    assert load("swapper").AsyncIOBuilder().load() == "own compiled async_io"


def test_a_checkout(package: Package, tmp_path: Path) -> None:
    """Its version is in a file beside the package."""
    package()
    (tmp_path / "deepspeed" / "git_version_info_installed.py").unlink()
    for text in (None, "unknown\n"):
        if text is not None:  # neither says anything
            (tmp_path / "version.txt").write_text(text)
            (tmp_path / "deepspeed" / "git_version_info_installed.py").write_text("git_hash=None\n")
        with pytest.raises(aio.deepspeed.UnsupportedDeepSpeed, match="does not say"):
            aio.deepspeed.enable()
    (tmp_path / "version.txt").write_text("0.19.9\n")
    aio.deepspeed.enable()
    check_replaced()


def test_no_deepspeed(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("deepspeed"):
        pytest.skip("DeepSpeed is installed for this interpreter")
    with pytest.raises(ModuleNotFoundError, match="pip install deepspeed"):
        aio.deepspeed.enable()


class Pins:
    """DeepSpeed's manager, as far as it is looked at."""

    def __init__(self, nbytes: int) -> None:
        self._ranges = {4096: 4096 + nbytes} if nbytes else {}


def test_what_deepspeed_has_pinned_itself(package: Package) -> None:
    """Refused: ours does not know these tensors. Where there are none, a new manager is made."""
    package()
    pins = load("utils.pin_memory")
    pins._shared_native_pins = Pins(12288)
    with pytest.raises(RuntimeError, match="12288 bytes"):
        aio.deepspeed.enable()
    assert not aio.deepspeed.enabled()
    pins._shared_native_pins = own = Pins(0)
    aio.deepspeed.enable()
    assert pins._shared_native_pins is None
    pins._shared_native_pins = Pins(4096)  # made with our handle
    aio.deepspeed.disable()
    assert pins._shared_native_pins is own


def test_a_failure_undoes_what_was_done(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    package()
    load(""), load("ops.op_builder.npu")
    before = snapshot()

    def fail(*_: object) -> None:
        raise LookupError("as it was told")

    monkeypatch.setattr("aio.deepspeed.patches._Patches._fill_gaps", fail)
    with pytest.raises(LookupError, match="as it was told"):
        aio.deepspeed.enable()
    assert not aio.deepspeed.enabled()
    assert snapshot() == before
