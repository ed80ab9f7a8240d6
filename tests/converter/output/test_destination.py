"""A package appears complete or not at all, and replaces only other packages."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from rdrr_converter import convert as convert_module
from rdrr_converter.convert import convert
from rdrr_converter.encode import pack
from rdrr_format.errors import ConversionError, ShardError, SourceError, StoreError
from rdrr_format.stores import LocalStore
from rdrr_manifests.package import validate
from support.safetensor_files import llama_tensors, write_llama


@pytest.fixture
def folder(tmp_path, rng):
    (tmp_path / "packages").mkdir()
    sizes = {"num_hidden_layers": 1}
    return write_llama(tmp_path / "source", llama_tensors(rng, **sizes), **sizes)


@pytest.fixture
def packages(tmp_path):
    """The folder for packages, with nothing else in it."""
    return tmp_path / "packages"


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


class FullDisk:
    """A file that accepts a number of bytes and then reports a full disk."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def write(self, data):
        self._room -= len(memoryview(data).cast("B"))
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_folder_flushes_is_accepted_but_an_io_error_is_not(
    folder, packages, monkeypatch, number
):
    flush = os.fsync

    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    if number == errno.EIO:
        with pytest.raises(StoreError, match=os.strerror(number)):
            convert(folder, packages / "out")
        assert listing(packages) == []
    else:
        convert(folder, packages / "out")
        assert validate(packages / "out", deep=True).ok()


@pytest.mark.parametrize("step", ["mkdir", "acquire"])
def test_an_interruption_while_locking_leaves_no_files(folder, packages, monkeypatch, step):
    owner = {"mkdir": Path, "acquire": FileLock}[step]
    done = getattr(owner, step)

    def interrupted(self, *given, **options):
        done(self, *given, **options)
        if Path(getattr(self, "lock_file", self)).parent.name in ("packages", ".out.partial"):
            raise KeyboardInterrupt

    monkeypatch.setattr(owner, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(folder, packages / "out")
    assert listing(packages) == []
    monkeypatch.undo()
    convert(folder, packages / "out")
    assert listing(packages) == ["out"]


def test_a_full_disk_gives_one_clear_error_and_leaves_no_files(folder, packages, monkeypatch):
    opened = LocalStore.open_write
    monkeypatch.setattr(
        LocalStore, "open_write", lambda self, name: FullDisk(opened(self, name), 200_000)
    )
    with pytest.raises(StoreError, match="disk is full"):
        convert(folder, packages / "out")
    assert listing(packages) == []
    monkeypatch.undo()
    convert(folder, packages / "out")
    assert listing(packages) == ["out"]


@pytest.mark.parametrize("step", ["tokenizer.json", "manifest.json", "fsync", "rename"])
def test_a_disk_that_fills_up_at_the_end_leaves_no_files(folder, packages, monkeypatch, step):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    opened = LocalStore.open_write

    def open_write(self, name):
        file = opened(self, name)
        return FullDisk(file, 0) if name == step else file

    if step.endswith(".json"):
        monkeypatch.setattr(LocalStore, "open_write", open_write)
    else:
        monkeypatch.setattr(os if step == "fsync" else Path, step, full)
    with pytest.raises(StoreError, match="disk is full"):
        convert(folder, packages / "out")
    assert listing(packages) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_an_interruption_before_the_first_finished_shard_leaves_no_files(folder, packages, error):
    def interrupt(event):
        if event.stage == "write" and event.done > event.total // 2:
            raise error

    with pytest.raises(error):
        convert(folder, packages / "out", progress=interrupt, workers=2)
    assert listing(packages) == []


@pytest.mark.thorough
def test_a_killed_process_leaves_nothing_under_the_final_name(folder, packages):
    """After SIGKILL before the verification, only the hidden staging folder is left."""
    script = """
import sys, time
from rdrr_converter.convert import convert
def stall(event):
    if event.stage == "verify":
        print("half", flush=True)
        time.sleep(60)
convert(sys.argv[1], sys.argv[2], progress=stall)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(packages / "out")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == b"half\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert listing(packages) == [".out.partial"]
    convert(folder, packages / "out")
    assert listing(packages) == ["out"]
    assert validate(packages / "out", deep=True).errors == ()


def test_an_existing_destination_is_refused_before_any_work(folder, packages):
    convert(folder, packages / "out")
    stamp = (packages / "out/manifest.json").stat().st_mtime_ns
    seen = []
    with pytest.raises(StoreError, match="exists already"):
        convert(folder, packages / "out", progress=seen.append)
    assert seen == []
    assert (packages / "out/manifest.json").stat().st_mtime_ns == stamp


def test_overwriting_replaces_the_whole_folder(folder, packages):
    convert(folder, packages / "out", quantize="f32", shard_size=2**16)
    (packages / "out/stray.txt").write_text("left by somebody", encoding="utf-8")
    convert(folder, packages / "out", quantize="f16", overwrite=True)
    assert listing(packages) == ["out"]
    assert listing(packages / "out") == [
        "conversion-report.json",
        "manifest.json",
        "shard_00000.bin",
        "tokenizer.json",
    ]
    assert validate(packages / "out", deep=True).errors == ()


def test_a_failed_overwrite_leaves_the_old_package(folder, packages, monkeypatch):
    convert(folder, packages / "out", quantize="f16")
    before = (packages / "out/manifest.json").read_bytes()

    def fail(*_args):
        raise StoreError("no luck")

    monkeypatch.setattr(convert_module, "copy_files", fail)
    with pytest.raises(StoreError, match="no luck"):
        convert(folder, packages / "out", overwrite=True)
    assert (packages / "out/manifest.json").read_bytes() == before
    assert listing(packages) == ["out"]


def test_a_rename_that_fails_puts_the_old_package_back(folder, packages, monkeypatch):
    convert(folder, packages / "out", quantize="f16")
    renamed = Path.rename

    def refuse_new(self, target):
        if self.name == "package":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(StoreError, match="permission denied"):
        convert(folder, packages / "out", overwrite=True)
    assert listing(packages) == ["out"]
    assert validate(packages / "out").errors == ()


def test_only_packages_and_empty_folders_are_replaced(folder, packages):
    out = packages / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(StoreError, match="not an RDRR package"):
        convert(folder, out, overwrite=True)
    assert listing(out) == ["thesis.tex"]
    (out / "thesis.tex").unlink()
    convert(folder, out, overwrite=True)
    file = packages / "file"
    file.write_text("x", encoding="utf-8")
    with pytest.raises(StoreError, match="not an RDRR package"):
        convert(folder, file, overwrite=True)


def test_the_source_is_never_replaced(folder):
    with pytest.raises(StoreError, match="holds the source"):
        convert(folder, folder, overwrite=True)
    with pytest.raises(StoreError, match="holds the source"):
        convert(folder, folder.parent, overwrite=True)
    assert (folder / "model.safetensors").exists()


def test_parent_folders_are_created(folder, packages):
    convert(folder, packages / "deep/er/out")
    assert validate(packages / "deep/er/out").errors == ()


def test_a_destination_inside_a_file_is_refused(folder, packages):
    (packages / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StoreError):
        convert(folder, packages / "file/out")
    assert listing(packages) == ["file"]


def test_a_damaged_checkpoint_leaves_no_files(folder, packages):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SourceError, match="truncated"):
        convert(folder, packages / "out")
    assert listing(packages) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_on_disk_is_found_before_the_package_appears(folder, packages, monkeypatch, damage):
    written = pack.write_shards

    def damaged(*arguments):
        shards = written(*arguments)
        path = packages / ".out.partial/package" / shards[0].filename
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "flip":
            path.write_bytes(data)
        elif damage == "cut":
            path.write_bytes(data[:-1])
        else:
            path.unlink()
        return shards

    monkeypatch.setattr(convert_module, "write_shards", damaged)
    with pytest.raises(ShardError):
        convert(folder, packages / "out")
    assert listing(packages) == []


def test_a_source_that_changes_during_the_conversion_is_detected(folder, packages, monkeypatch):
    """The verification finds that the values on disk differ from the changed source."""
    source = folder / "model.safetensors"
    written = pack.write_shards

    def change(*arguments):
        shards = written(*arguments)
        data = bytearray(source.read_bytes())
        data[-2:] = b"\x00\x48"
        source.write_bytes(data)
        return shards

    monkeypatch.setattr(convert_module, "write_shards", change)
    with pytest.raises(ConversionError, match="differs from the source"):
        convert(folder, packages / "out", quantize="f32")
    assert listing(packages) == []
