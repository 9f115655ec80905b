"""deepnvme info prints directories of any name, those that it cannot use too."""

from __future__ import annotations

from pathlib import Path

import pytest

from aio.info import print_info


@pytest.mark.parametrize("name", ["plain", "[red]", "[/red]", "with [/] in it"])
@pytest.mark.parametrize("there", [False, True])
def test_names_are_not_markup(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    there: bool,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    directory = tmp_path / name
    if there:
        directory.mkdir(parents=True)
    print_info([str(directory)], as_json=False)
    shown = capsys.readouterr().out
    assert "".join(str(directory).split()) in "".join(shown.split())  # it is wrapped anywhere
    assert ("file system" in shown) is there
