"""Writes docs/api.md: every public name, with its signature and docstring, from the source alone.

    python tools/api_reference.py

A name is public if `__all__` of a package or module lists it. Nothing is imported, so the page is
the same on every machine. tests/test_api_reference.py fails while the page is not up to date.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
PACKAGES = ("aio", "pinned_manager")
WIDTH = 110

INTRODUCTION = """\
# API reference

Every public name, from the docstrings; `make docs` writes this page. Other pages explain how things
work together: [handles](handles.md), [pinning](pinning.md), [swapping](swapping.md). What is not
here is private and may change.
"""


@dataclass(frozen=True)
class Place:
    """A definition, and the module that it is in."""

    module: str
    node: ast.ClassDef | ast.FunctionDef | ast.Assign


def file_of(module: str) -> Path | None:
    """The source of a module; of the extension, its stub."""
    parts = module.split(".")
    if parts[0] == "_deepnvme":
        return ROOT.joinpath("_deepnvme-stubs", *parts[1:]).with_suffix(".pyi")
    whole = ROOT.joinpath(*parts)
    found = (path for path in (whole / "__init__.py", whole.with_suffix(".py")) if path.exists())
    return next(found, None)


@cache
def tree_of(module: str) -> ast.Module:
    file = file_of(module)
    if file is None:
        raise LookupError(f"no source of {module}")
    return ast.parse(file.read_text())


def public_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def public_modules() -> Iterator[str]:
    """Those with `__all__`: a package before what is in it."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py"), key=lambda file: file.parts[:-1]):
            parts = file.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if "__all__" in file.read_text():
                yield module


def place_of(module: str, name: str) -> Place | None:
    """Where a name is defined, behind any number of imports; None outside of this project."""
    if file_of(module) is None:
        return None
    for node in tree_of(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return Place(module, node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return behind_an_alias(module, node.value) or Place(module, node)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return place_of(node.module or "", alias.name)
    return None


def docstring_of(node: ast.AST) -> str:
    with_text = ast.Module | ast.ClassDef | ast.FunctionDef
    return (ast.get_docstring(node) or "") if isinstance(node, with_text) else ""


def behind_an_alias(module: str, value: ast.expr) -> Place | None:
    """The definition that `Name = other_module.Name` stands for."""
    if not isinstance(value, ast.Attribute):
        return None
    for node in tree_of(module).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == ast.unparse(value.value):
                    return place_of(f"{node.module}.{alias.name}", value.attr)
    return None


def as_markdown(docstring: str) -> str:
    """With the list of arguments as a list."""
    return re.sub(
        r"^ {4}( *)(\S.*)$",
        lambda line: f"  {line[2]}" if line[1] else "- " + re.sub(r"^(\w+):", r"`\1`:", line[2]),
        re.sub(r"^Arguments:$", "Arguments:\n", docstring, flags=re.MULTILINE),
        flags=re.MULTILINE,
    )


def first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".:")


def code(line: str) -> list[str]:
    return ["", *(f"    {part}" for part in line.splitlines()), ""]


def signature(node: ast.FunctionDef, bound: bool, shown_as: str = "") -> str:
    """As it is called; a parameter a line where it is too long for one."""
    arguments = copy.deepcopy(node.args)
    if bound and not any(ast.unparse(item) == "staticmethod" for item in node.decorator_list):
        first = arguments.posonlyargs or arguments.args
        del first[0]
    text = ast.unparse(arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not shown_as else ""
    name = shown_as or node.name
    line = f"{name}({text}){returns}"
    if len(line) <= WIDTH:
        return line
    parts = []
    for position, default in with_defaults(arguments):
        parts.append(f"    {position}{default},")
    return "\n".join([f"{name}(", *parts, f"){returns}"])


def with_defaults(arguments: ast.arguments) -> Iterator[tuple[str, str]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))

    def default(value: ast.expr | None, annotated: bool) -> str:
        if value is None:
            return ""
        return f" = {ast.unparse(value)}" if annotated else f"={ast.unparse(value)}"

    for index, (one, value) in enumerate(
        zip(positional, [*missing, *arguments.defaults], strict=True)
    ):
        yield ast.unparse(one), default(value, one.annotation is not None)
        if index + 1 == len(arguments.posonlyargs):
            yield "/", ""
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}", ""
    elif arguments.kwonlyargs:
        yield "*", ""
    for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield ast.unparse(one), default(value, one.annotation is not None)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}", ""


def is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(item) == "property" for item in node.decorator_list)


def members(place: Place) -> Iterator[list[str]]:
    """What a class offers: its own attributes and methods, then those of its bases here."""
    assert isinstance(place.node, ast.ClassDef)
    seen: set[str] = set()
    for owner in with_bases(place):
        body = owner.node.body if isinstance(owner.node, ast.ClassDef) else []
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                if node.name in seen or any(
                    "overload" in ast.unparse(d) for d in node.decorator_list
                ):
                    continue
                seen.add(node.name)
                returned = ast.unparse(node.returns) if node.returns else "Any"
                shown = f"{node.name}: {returned}" if is_property(node) else signature(node, True)
                yield [*code(shown), as_markdown(docstring_of(node))]
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                name = ast.unparse(
                    node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                )
                if name.startswith("_") or name in seen:
                    continue
                seen.add(name)
                yield [*code(ast.unparse(node)), docstring_of_attribute(after)]


def docstring_of_attribute(after: ast.stmt | None) -> str:
    """The string that follows an attribute."""
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return str(after.value.value)
    return ""


def with_bases(place: Place) -> Iterator[Place]:
    yield place
    if isinstance(place.node, ast.ClassDef):
        for base in place.node.bases:
            found = place_of(place.module, ast.unparse(base))
            if found is not None:
                yield from with_bases(found)


def constructor(place: Place) -> str:
    """How an object is made: bases instead where no class here has an `__init__`."""
    assert isinstance(place.node, ast.ClassDef)
    for owner in with_bases(place):
        for node in getattr(owner.node, "body", []):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return f"class {signature(node, True, shown_as=place.node.name)}"
    bases = ", ".join(map(ast.unparse, place.node.bases))
    return f"class {place.node.name}({bases})" if bases else f"class {place.node.name}"


def documented(place: Place) -> list[str]:
    node = place.node
    if isinstance(node, ast.ClassDef):
        lines = [*code(constructor(place)), as_markdown(docstring_of(node))]
        for member in members(place):
            lines += member
        return lines
    if isinstance(node, ast.FunctionDef):
        return [*code(signature(node, False)), as_markdown(docstring_of(node))]
    return code(ast.unparse(node))


def reference() -> str:
    """The whole page."""
    shown: set[tuple[str, str]] = set()
    contents: list[str] = []
    sections: list[str] = []
    for module in public_modules():
        tree = tree_of(module)
        entries: list[str] = []
        for name in public_names(tree):
            place = place_of(module, name)
            if place is None or name.startswith("__") or (place.module, name) in shown:
                continue
            shown.add((place.module, name))
            full_name, text = f"{module}.{name}", docstring_of(place.node)
            anchor = full_name.replace(".", "").lower()
            contents += [f"- [{full_name}](#{anchor}):", f"  {first_sentence(text)}"]
            entries += [f"\n### {full_name}", *documented(place)]
        if entries:
            sections += [f"\n## {module}", "", as_markdown(docstring_of(tree)), *entries]
    page = "\n".join([INTRODUCTION, *contents, *sections])
    return re.sub(r"\n{3,}", "\n\n", page.rstrip()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference())
