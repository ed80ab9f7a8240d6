"""Order of flushes to disk: a file's name is durable before anything relies on it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import rdrr
from rdrr_format.errors import StoreError
from rdrr_format.stores import replace_file
from rdrr_manifests.editing import set_hints
from support.safetensor_files import llama_tensors, write_llama


class Recorder:
    """Records renames and flushes in order, with the paths at that time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, Path]] = []
        self.fails: Path | None = None
        flush, replace, rename = os.fsync, Path.replace, Path.rename

        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path == self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.events.append(("flush", path))
            flush(descriptor)

        def replaced(path: Path, new: Path) -> Path:
            self.events.append(("name", Path(new)))
            return replace(path, new)

        def renamed(path: Path, new: Path) -> Path:
            self.events.append(("name", Path(new)))
            return rename(path, new)

        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "replace", replaced)
        patch.setattr(Path, "rename", renamed)

    def after(self, path: Path) -> list[Path]:
        """Return the paths that were flushed after something was renamed to `path`."""
        at = self.events.index(("name", path))
        return [event for kind, event in self.events[at:] if kind == "flush"]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    if not Path("/proc/self/fd").exists():
        pytest.skip("descriptors have no paths here")
    with pytest.MonkeyPatch.context() as patch:
        yield Recorder(patch)


@pytest.fixture
def source(tmp_path: Path, rng) -> Path:
    return write_llama(tmp_path / "source", llama_tensors(rng))


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_name_of_a_converted_package_is_durable(source, tmp_path, recorder, overwrite):
    out = tmp_path / "new" / "deep" / "out"
    rdrr.convert(source, out)
    if overwrite:
        recorder.events.clear()
        rdrr.convert(source, out, overwrite=True)
    else:
        for folder in (tmp_path / "new" / "deep", tmp_path / "new"):
            assert ("flush", folder.parent) in recorder.events
    assert out.parent in recorder.after(out)
    flushed = [path for kind, path in recorder.events if kind == "flush"]
    assert {path.name for path in flushed} > {"manifest.json", "shard_00000.bin"}
    first = recorder.events.index(("name", out))
    assert all(path.parent.name != "package" for kind, path in recorder.events[first:])


def test_the_name_of_an_export_is_durable(source, tmp_path, recorder):
    rdrr.convert(source, tmp_path / "package", quantize="f16")
    recorder.events.clear()
    for to, out in (("gguf", tmp_path / "m.gguf"), ("safetensors", tmp_path / "exported")):
        rdrr.export(tmp_path / "package", out, to=to)
        assert tmp_path in recorder.after(out), to


def test_the_name_of_a_manifest_with_new_hints_is_durable(source, tmp_path, recorder):
    rdrr.convert(source, tmp_path / "package")
    recorder.events.clear()
    set_hints(tmp_path / "package", {"computePrecision": "f32"})
    assert recorder.after(tmp_path / "package" / "manifest.json") == [tmp_path / "package"]


def test_a_file_is_flushed_before_it_is_named_and_its_folder_afterwards(tmp_path, recorder):
    replace_file(tmp_path / "file", b"first")
    (kind, partial), named, last = recorder.events
    assert (kind, partial.parent) == ("flush", tmp_path)
    assert (named, last) == (("name", tmp_path / "file"), ("flush", tmp_path))


@pytest.mark.parametrize("overwrite", [False, True])
def test_if_the_name_cannot_be_flushed_everything_stays_as_it_was(
    source, tmp_path, recorder, overwrite
):
    place = tmp_path / "place"
    out = place / "out"
    if overwrite:
        rdrr.convert(source, out, model_id="older")
    else:
        place.mkdir()
    recorder.fails = place
    with pytest.raises(StoreError, match=os.strerror(errno.EIO)):
        rdrr.convert(source, out, overwrite=overwrite)
    assert [path.name for path in place.iterdir()] == ["out"] * overwrite
    if overwrite:
        assert rdrr.open_package(out).manifest.model_id == "older"
    recorder.fails = None
    rdrr.convert(source, out, overwrite=overwrite)
    assert rdrr.validate(out, deep=True).ok()


@pytest.mark.parametrize(("code", "is_accepted"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_that_cannot_flush_folders_is_accepted(
    tmp_path, monkeypatch, code, is_accepted
):
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with nullcontext() if is_accepted else pytest.raises(StoreError):
        replace_file(tmp_path / "file", b"content")
    assert (tmp_path / "file").exists() or not is_accepted
