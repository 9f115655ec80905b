"""The documentation is true: its code runs, its links lead somewhere, its lists are complete."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import aio
import aio.deepspeed
import aio.profiles
import pinned_manager
from aio.swap import StoreFuture, SwappedOptimizer, SwapStore
from support.child import run_child

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "examples")),
]
PAGES_WITH_CODE = [page for page in PAGES if "```python\n" in page.read_text()]
SOURCES = [
    *ROOT.glob("*.py"),
    *(
        file
        for folder in ("aio", "pinned_manager", "csrc")
        for file in (ROOT / folder).rglob("*.*")
    ),
    *(ROOT / "tests").glob("*.py"),
]

# Blocks are padded with the lines before them, so that a traceback names the line of the page.
RUN_PAGE = """
import re, sys
from pathlib import Path
page = Path(sys.argv[1]).read_text()
names = {"__name__": "__main__"}
for block in re.finditer(r"^```python\\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
    before = page.count("\\n", 0, block.start(1))
    exec(compile("\\n" * before + block[1], sys.argv[1], "exec"), names)
"""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=name_of)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    """In order, in one process, in an empty directory, with warnings as errors."""
    script = f"import os\nos.chdir({str(tmp_path)!r})\n{RUN_PAGE}"
    options = ("-W", "error", "-W", "ignore::DeprecationWarning:torch")
    search = filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    environment = {"PYTHONPATH": os.pathsep.join(search)}
    done = run_child(script, page, options=options, environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        assert not anchor or anchor in headings(linked), target


def test_every_page_is_in_the_readme() -> None:
    links = set(re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text()))
    wanted = {name_of(page) for page in PAGES} - {"README.md", "CHANGELOG.md"}
    assert wanted - links == set()


def test_python_is_nowhere_without_being_run() -> None:
    """Blocks in other spellings would be left out; a session of a shell is no Python."""
    languages = {
        language
        for page in PAGES
        for language in re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    }
    assert languages <= {"python", "sh", ""}


def test_pictures_are_shown_and_can_be_read() -> None:
    """On a dark page too: each has a background of its own."""
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    assert shown == set((DOCS / "images").iterdir())
    for picture in shown:
        top = ElementTree.parse(picture).getroot()
        assert top.get("viewBox"), picture
        first = next(one for one in top.iter() if one.tag.endswith(("}rect", "}path")))
        assert "#ffffff" in first.get("fill", first.get("style", "")), picture


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_prose_has_120_columns(page: Path) -> None:
    """A row of a table is a line, however long; what a program prints is as it prints it."""
    blocks = re.compile(r"^```(\w*)$.*?^```$", re.MULTILINE | re.DOTALL)
    text = blocks.sub(
        lambda block: block[0] if block[1] else "\n" * block[0].count("\n"), page.read_text()
    )
    lines = enumerate(text.splitlines(), 1)
    assert [number for number, line in lines if len(line) > 120 and line[0] != "|"] == []


@pytest.mark.parametrize(
    ("page", "described"),
    [
        ("handles.md", aio.aio_handle),
        ("handles.md", aio.IOFuture),
        ("pinning.md", aio.pin_handle),
        ("swapping.md", SwapStore),
        ("swapping.md", StoreFuture),
        ("swapping.md", SwappedOptimizer),
    ],
)
def test_every_method_is_described(page: str, described: type) -> None:
    text = (DOCS / page).read_text()
    inherited = set(dir(torch.optim.Optimizer)) if described is SwappedOptimizer else set()
    names = [name for name in dir(described) if not name.startswith("_")]
    missing = [name for name in names if name not in inherited and f"`{name}" not in text]
    assert missing == []


def test_every_function_of_pinned_manager_is_described() -> None:
    text = (DOCS / "pinning.md").read_text()
    missing = [name for name in pinned_manager.__all__ if not re.search(rf"[`.]{name}\b", text)]
    assert missing == []


def test_every_exception_is_described() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    found = {
        name
        for module in (aio, aio.deepspeed, aio.profiles, aio.swap, pinned_manager)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Exception) and name[0] != "_"
    }
    assert found >= {"AioError", "PinError", "SwapStepError", "ProfileError"}
    assert {name for name in found if not re.search(rf"`{name}`|^## {name}$", text, re.M)} == set()


def logged(source: str) -> Iterator[str]:
    """The longest part without a value of each line that goes to a log from a warning on."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("warning", "error", "exception")
            and "logger" in ast.unparse(node.func.value)
            and isinstance(node.args[0], ast.Constant)
        ):
            parts = re.split(r"%[sdr]|\. | \(", str(node.args[0].value))
            yield max(parts, key=len).strip(" :")


def test_every_line_in_the_log_is_described() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    files = [
        file for package in ("aio", "pinned_manager") for file in (ROOT / package).rglob("*.py")
    ]
    lines = [line for file in files for line in logged(file.read_text())]
    assert len(lines) > 15
    assert [line for line in lines if line not in text] == []


def test_every_environment_variable_is_described() -> None:
    text = (DOCS / "environment.md").read_text()
    used = set()
    for file in SOURCES:
        if file.suffix in (".py", ".cpp"):
            call = r"(?:environ(?:\.get)?[(\[]|getenv\(|named_by_the_user\()"
            used |= set(re.findall(rf"{call}\s*\"(D[A-Z]+_[A-Z_]+)\"", file.read_text()))
    assert used >= {"DEEPNVME_BACKEND", "DEEPNVME_PIN_CACHE_BYTES", "DEEPNVME_WITHOUT"}
    assert {name for name in used if f"## {name}\n" not in text} == set()


def test_every_file_is_on_the_map() -> None:
    named = set(re.findall(r"[\w.]*\w", (DOCS / "architecture.md").read_text()))
    wanted = {file.stem for file in (ROOT / "csrc").rglob("*.*") if file.suffix in (".h", ".cpp")}
    for package in ("aio", "pinned_manager"):
        wanted |= {file.name for file in (ROOT / package).rglob("[!_]*.py")}
    assert wanted - named == set()


def test_every_module_says_what_it_is() -> None:
    """So does the `__init__` of a folder: what belongs there."""
    folders = ("aio", "benchmarks", "examples", "pinned_manager", "tests", "tools")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    silent = [name_of(file) for file in files if not ast.get_docstring(ast.parse(file.read_text()))]
    assert silent == []


def test_every_folder_of_code_is_on_the_map() -> None:
    text = (DOCS / "architecture.md").read_text()
    sources = [
        file for package in ("aio", "pinned_manager") for file in (ROOT / package).rglob("*.py")
    ]
    folders = {name_of(file.parent) for file in [*sources, *(ROOT / "csrc").rglob("*.cpp")]}
    assert folders >= {"aio", "csrc/io", "pinned_manager/states"}
    missing = [name for name in folders if not re.search(rf"^(### |`){name}\b", text, re.MULTILINE)]
    assert missing == []
