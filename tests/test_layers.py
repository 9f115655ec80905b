"""Layers know only what is below them, in imports and includes, as the architecture page has it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From below to above. What is not on the list, such as torch, is below all.
PYTHON_LAYERS = ("_deepnvme", "pinned_manager", "aio")
CPP_LAYERS = ("sys", "pin", "io", "python")
# The one file that knows a layer above its own, which it imports when a move begins.
KNOWS_ABOVE = {("pinned_manager.states.nvme", "aio")}
NOT_SHIPPED = {"benchmarks", "examples", "setup", "support", "tests", "tools"}


@dataclass(frozen=True)
class Import:
    """One name that a module imports, and whether that happens as the module is loaded."""

    module: str
    imported: str
    on_loading: bool

    @property
    def layer(self) -> str:
        return self.imported.partition(".")[0]


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(body: list[ast.stmt], on_loading: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement below `body`, and whether it runs whenever the module is loaded."""
    for node in body:
        yield node, on_loading
        optional = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try)
        inside = on_loading and not optional and not is_for_type_checkers(node)
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, name, []), inside)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, False)
        for case in getattr(node, "cases", []):
            yield from statements(case.body, inside)


def imports_of(module: str, source: str) -> Iterator[Import]:
    for node, on_loading in statements(ast.parse(source).body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, on_loading)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports by full name only"
            assert node.module is not None
            for alias in node.names:
                # A module of the package, or a name in it: which, module_of() finds out.
                yield Import(module, f"{node.module}.{alias.name}", on_loading)


def modules() -> dict[str, Path]:
    """Every module of the Python layers by its full name."""
    found = {}
    for package in PYTHON_LAYERS[1:]:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
IMPORTS = [found for name, path in MODULES.items() for found in imports_of(name, path.read_text())]


def module_of(imported: str) -> str:
    """The module of ours that an import loads; empty where it is none of ours."""
    while imported and imported not in MODULES:
        imported = imported.rpartition(".")[0]
    return imported


def assert_no_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a circle: " + " <- ".join(error.args[1]))


def test_python_imports_what_is_below() -> None:
    assert len(IMPORTS) > 500
    height = PYTHON_LAYERS.index
    upwards = {
        (found.module, found.layer)
        for found in IMPORTS
        if found.layer in PYTHON_LAYERS
        and height(found.layer) > height(found.module.partition(".")[0])
    }
    assert upwards == KNOWS_ABOVE


def test_the_exception_imports_when_it_is_used() -> None:
    """Otherwise `import pinned_manager` would bring `aio`, which brings pinned_manager."""
    known = [found for found in IMPORTS if (found.module, found.layer) in KNOWS_ABOVE]
    assert [found.imported for found in known if found.on_loading] == []


def test_nothing_shipped_knows_tests_or_tools() -> None:
    assert [found for found in IMPORTS if found.layer in NOT_SHIPPED] == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for found in IMPORTS:
        other = module_of(found.imported)
        if found.on_loading and other and other != found.module:
            graph.setdefault(found.module, set()).add(other)
    assert_no_circle(graph)


def test_what_loading_needs_is_declared() -> None:
    tomllib = pytest.importorskip("tomllib", reason="tomllib comes with Python 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[^\w-]", needed)[0] for needed in project["dependencies"]}
    needed = {found.layer for found in IMPORTS if found.on_loading}
    assert needed >= {"torch"}
    assert needed - set(sys.stdlib_module_names) - set(PYTHON_LAYERS) - declared == set()


SOURCES = {
    path.relative_to(ROOT / "csrc").as_posix(): path.read_text()
    for path in (ROOT / "csrc").rglob("*.*")
    if path.suffix in (".h", ".cpp")
}


def includes(opening: str) -> dict[str, list[str]]:
    """What every C++ file of csrc includes: "files of ours" or <files of others>."""
    form = re.compile(rf"^\s*#\s*include\s*{opening}([^>\"]+)", re.MULTILINE)
    return {file: form.findall(text) for file, text in SOURCES.items()}


OURS, OTHERS = includes('"'), includes("<")


def test_cpp_includes_what_is_below() -> None:
    assert {file.partition("/")[0] for file in SOURCES} == set(CPP_LAYERS)
    height = CPP_LAYERS.index
    upwards = [
        f"{file} includes {included}"
        for file, all_included in OURS.items()
        for included in all_included
        if height(included.partition("/")[0]) > height(file.partition("/")[0])
    ]
    assert upwards == []


def test_own_headers_are_named_by_their_path_from_csrc() -> None:
    """Any other way of naming one would hide its layer from the test above."""
    assert {name for all_named in OURS.values() for name in all_named} - set(SOURCES) == set()
    assert {name for all_named in OTHERS.values() for name in all_named} & set(SOURCES) == set()


def test_only_the_binding_knows_python() -> None:
    outside = re.compile(r"(pybind11|torch|c10|ATen|numpy)/.*|Python\.h")
    knowing = {
        file.partition("/")[0]
        for file, all_included in OTHERS.items()
        if any(outside.fullmatch(included) for included in all_included)
    }
    assert knowing == {"python"}


def test_headers_do_not_include_each_other_in_a_circle() -> None:
    assert_no_circle({file: set(all_included) for file, all_included in OURS.items()})
