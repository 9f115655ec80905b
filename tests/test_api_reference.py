"""docs/api.md is what tools/api_reference.py writes, and that is what Python finds at runtime."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import api_reference


def definitions() -> Iterator[tuple[str, ast.AST, Any]]:
    """Each public name in full, its source, and what Python has by that name."""
    for module in api_reference.public_modules():
        for name in api_reference.public_names(api_reference.tree_of(module)):
            if not name.startswith("__"):
                place = api_reference.place_of(module, name)
                assert place is not None, f"{module}.{name} is defined nowhere here"
                yield f"{module}.{name}", place.node, getattr(importlib.import_module(module), name)


def test_page_is_up_to_date() -> None:
    assert api_reference.PAGE.read_text() == api_reference.reference(), "run make docs"


def test_public_names_are_those_of_python() -> None:
    modules = list(api_reference.public_modules())
    assert {"aio", "aio.swap", "pinned_manager"} <= set(modules)
    for name in modules:
        module = importlib.import_module(name)
        assert sorted(module.__all__) == sorted(
            api_reference.public_names(api_reference.tree_of(name))
        )


def test_everything_says_what_it_is() -> None:
    """In the source, where the page takes it from, and in help()."""
    silent = []
    for name, node, actual in definitions():
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            inside = [one for one in getattr(node, "body", []) if isinstance(one, ast.FunctionDef)]
            public = [one for one in inside if not one.name.startswith("_")]
            methods = public if isinstance(node, ast.ClassDef) else []
            silent += [f"{name}.{one.name}" for one in methods if not ast.get_docstring(one)]
            silent += [] if ast.get_docstring(node) and inspect.getdoc(actual) else [name]
    assert silent == []


def test_parameters_are_those_of_python() -> None:
    """A decorator that hides them would also hide them from users."""
    shown, found = {}, {}
    for name, node, actual in definitions():
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
            shown[name] = {one.arg for one in every}
            found[name] = set(inspect.signature(actual).parameters)
    assert len(shown) > 20
    assert shown == found
