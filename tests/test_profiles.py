"""A saved profile is for its own drive alone, explicit options win, and a bad one harms nobody."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aio
from aio import backends, drives, profiles
from aio.options import HandleOptions
from aio.profiles import (
    ProfileError,
    find_profile,
    load_profile,
    profile_path,
    save_profile,
)
from aio.swap import SwapStore
from support.mounts import ext4_image
from support.profiles import TUNED, only_uuids, options_of, profile_for, saved

pytestmark = pytest.mark.usefixtures("own_profiles")


def options_used(profile: Any, **given: Any) -> HandleOptions:
    with aio.aio_handle(profile=profile, **given) as handle:
        return options_of(handle)


# ---- what a handle takes from it ----


def test_every_form_of_a_profile(directory: Path) -> None:
    path = saved(directory)
    found = find_profile(directory)
    assert found == profile_for(directory)
    forms: list[Any] = [
        path,
        str(path),
        directory,
        str(directory),
        TUNED.as_dict(),
        json.loads(path.read_text()),
        found,
    ]
    assert [options_used(form) for form in forms] == [TUNED] * len(forms)


SOME_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "block_size": st.integers(1, 1 << 24),
        "queue_depth": st.integers(1, 64),
        "single_submit": st.booleans(),
        "overlap_events": st.booleans(),
        "intra_op_parallelism": st.integers(1, 3),
    },
)


@given(profile=SOME_OPTIONS, explicit=SOME_OPTIONS)
def test_arguments_go_before_the_profile_and_that_before_the_defaults(
    profile: dict[str, Any], explicit: dict[str, Any]
) -> None:
    defaults = {
        "block_size": 1048576,
        "queue_depth": 128,
        "single_submit": False,
        "overlap_events": True,
        "intra_op_parallelism": 1,
    }
    wanted = {**defaults, **profile, **explicit}
    used = options_used({**profile, "backend": "posix"}, **explicit)
    assert used == HandleOptions(**wanted, backend="posix")


def test_the_backend_of_the_argument_and_of_the_environment_go_before_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = aio.available_backends()[0]
    assert options_used({"backend": "posix"}, backend="auto").backend == usual
    monkeypatch.setenv("DEEPNVME_BACKEND", "auto")
    assert options_used({"backend": "posix"}).backend == usual
    monkeypatch.delenv("DEEPNVME_BACKEND")
    assert options_used({"backend": "posix"}).backend == "posix"


def test_a_backend_that_cannot_run_here_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make: Callable[..., Any] = backends._io.Handle

    def without_libaio(*args: Any, backend: str, **options: Any) -> Any:
        if backend == "libaio":
            raise RuntimeError("libaio cannot run: no contexts are left")
        return make(*args, backend=backend, **options)

    monkeypatch.setattr(backends._io, "Handle", without_libaio)
    used = options_used({"backend": "libaio", "queue_depth": 3})
    assert used == HandleOptions(queue_depth=3, backend=aio.available_backends()[0])
    assert "no contexts are left" in caplog.text
    with pytest.raises(RuntimeError, match="no contexts are left"):
        aio.aio_handle(backend="libaio")


@pytest.mark.parametrize(
    ("profile", "error", "words"),
    [
        ({"num_threads": 2}, ValueError, "num_threads.*intra_op_parallelism"),
        ({"single_submit": "false"}, ValueError, "single_submit 'false'.*true or false"),
        ({"queue_depth": True}, ValueError, "queue_depth True"),
        ({"queue_depth": 0}, ValueError, "queue_depth is 0"),
        ({"block_size": "1M"}, ValueError, "whole number"),
        ({"backend": "dma"}, ValueError, "'dma'.*io_uring"),
        ({"format": "deepnvme profile", "version": 1}, ProfileError, "damaged.*options"),
        (7, TypeError, "int"),
    ],
)
def test_profiles_that_cannot_be(profile: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        aio.aio_handle(profile=profile)


def test_a_directory_that_was_not_tuned(directory: Path) -> None:
    assert find_profile(directory) is None
    assert options_used(None) == HandleOptions(backend=aio.available_backends()[0])
    with pytest.raises(FileNotFoundError, match="ds_nvme_tune --nvme_dir"):
        aio.aio_handle(profile=directory)
    with pytest.raises(FileNotFoundError):
        aio.aio_handle(profile=directory / "missing.json")


# ---- whose it is ----


def test_every_directory_of_a_file_system_has_its_profile(directory: Path) -> None:
    saved(directory)
    below = directory / "a" / "b"
    below.mkdir(parents=True)
    assert find_profile(below) == profile_for(directory)


def test_no_other_file_system_has_it(disk: Path, tmpfs: Path) -> None:
    path = saved(disk)
    assert find_profile(tmpfs) is None
    other = profile_path([tmpfs])
    assert other != path
    shutil.copy(path, other)
    with pytest.raises(ProfileError, match=r"other drives.*ds_nvme_tune"):
        find_profile(tmpfs)


def test_two_file_systems_of_one_kind_differ(tmp_path: Path) -> None:
    with ext4_image(tmp_path / "one", 8 << 20) as one, ext4_image(tmp_path / "two", 8 << 20) as two:
        saved(one)
        assert find_profile(one) is not None
        assert find_profile(two) is None


def test_a_file_system_is_known_by_its_uuid(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = drives.block_device_of(disk)
    if block is None:
        pytest.skip(f"{disk} is on no block device")
    only_uuids(monkeypatch, tmp_path / "by-uuid", {"1234-abcd": block.name})
    found = drives.identity(disk)
    assert found["uuid"] == "1234-abcd"
    assert "device" not in found, "the number changes with the order in which drives are found"
    assert found["file_system"] == drives.mount_of(disk)[0]
    assert "drive" in found, "a copy of the file system has the same UUID"


def test_several_directories_have_one_together(disk: Path, tmpfs: Path) -> None:
    saved(disk, tmpfs)
    assert find_profile([tmpfs, disk]) == profile_for(disk, tmpfs)
    assert find_profile(disk) is None
    assert find_profile(tmpfs) is None
    (disk / "second").mkdir()
    assert find_profile([disk / "second", disk, tmpfs]) is not None, "each drive counts once"


# ---- the file ----


def test_a_failed_save_leaves_the_old_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(directory)
    before = path.read_bytes()

    def refuse(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        save_profile(profile_for(directory, options=HandleOptions()), path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@given(st.data())
def test_damaged_files_are_refused_in_words(tmpfs: Path, data: st.DataObject) -> None:
    content = bytearray(saved(tmpfs).read_bytes())
    kind = data.draw(st.sampled_from(["cut", "changed", "other"]))
    if kind == "cut":
        del content[data.draw(st.integers(0, len(content) - 3)) :]
    elif kind == "changed":
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    else:
        content[:] = data.draw(st.binary(max_size=50))
    path = profile_path([tmpfs])
    path.write_bytes(content)
    try:
        load_profile(path)
    except ProfileError as error:
        words = str(error)
    else:
        assert kind == "changed"  # inside of a string, or another number
        return
    assert str(path) in words


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(key=st.sampled_from(["options", "read", "directories", "drives", "machine"]), value=ANYTHING)
def test_any_content_is_taken_or_refused(tmpfs: Path, key: str, value: Any) -> None:
    path = saved(tmpfs)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, key: value}))
    try:
        found = find_profile(tmpfs)
    except ProfileError as error:
        words = str(error)
        assert str(path) in words
    else:
        assert found is not None
        assert {type(value) for value in found.options.as_dict().values()} == {int, bool, str}


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_profile_of_another_version(directory: Path, version: Any) -> None:
    path = saved(directory)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": version}))
    with pytest.raises(ProfileError, match=r"version.*ds_nvme_tune again"):
        find_profile(directory)


def test_where_profiles_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiles.profile_folder() == tmp_path / "config" / "deepnvme" / "profiles"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CONFIG_HOME", ignored)
        assert profiles.profile_folder() == tmp_path / ".config" / "deepnvme" / "profiles"


def test_no_place_for_profiles(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ProfileError, match="XDG_CONFIG_HOME"):
        find_profile(directory)
    with SwapStore(directory):
        assert "XDG_CONFIG_HOME" in caplog.text
