"""Pipes, devices, endless files, and files that are truncated while they are read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.checkpoint.files import read_json_object
from rdrr_converter.gguf.file import read_gguf
from rdrr_converter.gguf.imatrix import read_imatrix
from rdrr_converter.sources import open_source
from rdrr_converter.sources.safetensors import read_file
from rdrr_format.errors import SourceError, StoreError
from rdrr_format.regular_files import map_regular, open_regular, read_regular, read_span
from rdrr_format.stores import LocalStore
from rdrr_manifests.validation import validate
from support.commands import environment, error_line, rdrr, rdrr_each
from support.deadlines import HANGS
from support.manifests import write_package
from support.safetensor_files import llama_tensors, write_llama

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")

READERS = {
    "model.safetensors": read_file,
    "model.gguf": read_gguf,
    "m.dat": read_imatrix,
    "config.json": read_json_object,
}


def run_to_end(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, so that one that hangs can be killed."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=HANGS,
        check=False,
    )


READ = """
import importlib, pathlib, sys
for module, name, path in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
    try:
        getattr(importlib.import_module(module), name)(pathlib.Path(path))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    words: list[object] = []
    for name, reader in READERS.items():
        os.mkfifo(tmp_path / name)
        words += [reader.__module__, reader.__name__, tmp_path / name]
    lines = run_to_end(READ, *words).stdout.splitlines()
    for line, (name, reader) in zip(lines, READERS.items(), strict=True):
        assert line.startswith("SourceError ")
        assert "not a regular file" in line
        with pytest.raises(SourceError, match="not a regular file"):
            reader(tmp_path / name)


def test_a_checkpoint_with_a_pipe_for_weights_does_not_hang(tmp_path, rng):
    names = ("model.safetensors", "pytorch_model.bin", "model.gguf")
    for name in names:
        folder = write_llama(tmp_path / name, llama_tensors(rng))
        assert open_source(folder).tensors  # the control
        (folder / "model.safetensors").unlink()
        os.mkfifo(folder / name)
        if name.endswith("gguf"):
            (folder / "config.json").unlink()
    each = rdrr_each(*(("convert", tmp_path / name, tmp_path / "out") for name in names))
    for name, done in zip(names, each, strict=True):
        assert done.code == 1
        assert f"{name}: cannot be read (found not a regular file)" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device")
def test_devices_and_folders_are_not_read_as_files(tmp_path):
    for path, words in ((Path("/dev/zero"), "not a regular file"), (tmp_path, "directory")):
        with pytest.raises(OSError, match=words):
            open_regular(path)
    assert open_regular(Path(__file__)).read(3) == b'"""'


@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_a_file_is_read_whole_up_to_its_bound(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert read_regular(path, 10) == b"x" * size
    path.write_bytes(b"x" * (size + 1) * 11)
    with pytest.raises(Exception, match="too large"):
        read_regular(path, 10)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no such file system")
def test_a_file_that_reports_no_size_is_bounded_too():
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert b"Name:" in read_regular(path, 1 << 20)
    with pytest.raises(Exception, match="too large"):
        read_regular(path, 16)


def test_a_memory_map_is_no_longer_than_its_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(64)))
    assert map_regular(path, np.uint8, 60, (4,)).tolist() == [60, 61, 62, 63]
    with pytest.raises(ValueError, match="size"):
        map_regular(path, np.uint8, 60, (5,))
    assert read_span(path, 60, 4).tolist() == read_span(path, 60, 9).tolist() == [60, 61, 62, 63]
    assert read_span(path, 64, 1).size == read_span(path, 99, 1).size == 0


@pytest.mark.parametrize(
    ("name", "rule"), [("shard_00001.bin", "shard-file"), ("tokenizer.json", "tokenizer-file")]
)
def test_a_pipe_in_a_package_is_a_fault(tmp_path, rng, name, rule):
    write_package(tmp_path, rng)
    assert validate(tmp_path, deep=True).ok()
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    for deep in (False, True):
        faults = validate(tmp_path, deep=deep).faults
        assert rule in {fault.rule for fault in faults}
        assert "not a regular file" in faults[0].line()


@pytest.mark.parametrize(
    ("name", "command"),
    [("manifest.json", "validate"), ("manifest.json", "inspect"),
     ("conversion-report.json", "report")],
)  # fmt: skip
def test_a_pipe_that_a_command_reads_is_named(tmp_path, rng, name, command):
    write_package(tmp_path, rng)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert f"{name}: not a regular file" in error_line(rdrr(command, tmp_path))
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert f"{name}: a folder, where a file was expected" in error_line(rdrr(command, tmp_path))


def test_nothing_of_a_store_but_regular_files_exists_or_is_read(tmp_path):
    store = LocalStore(tmp_path)
    assert not store.exists("file")
    os.mkfifo(tmp_path / "file")
    for use in (store.exists, store.size, store.read, store.readable):
        with pytest.raises(StoreError, match="file: not a regular file"):
            use("file")
    assert store.list() == []


def test_a_shard_truncated_during_validation_is_reported(tmp_path, rng, monkeypatch):
    """Reading a memory map of it would kill the process; the validation before is the control."""
    write_package(tmp_path, rng)
    assert validate(tmp_path, deep=True).ok()
    held: list[np.ndarray] = []
    whole = LocalStore.read

    def cut_afterwards(self: LocalStore, name: str, *range_: int) -> np.ndarray:
        result = whole(self, name, *range_)
        if name.startswith("shard") and result.size:
            held.append(result)
            os.truncate(tmp_path / name, 0)
        return result

    monkeypatch.setattr(LocalStore, "read", cut_afterwards)
    faults = {fault.rule for fault in validate(tmp_path, deep=True).faults}
    assert "shard-file" in faults
    assert held
    assert all(part.sum() > 0 for part in held)  # reading a memory map would kill the process here


def test_a_file_truncated_between_stat_and_mmap_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(100))
    assert LocalStore(tmp_path).read("file").size == 100

    class Grown:
        st_size = 200
        st_mode = 0o100644

    monkeypatch.setattr(Path, "stat", lambda *_, **__: Grown)
    with pytest.raises(StoreError, match="truncated while it was opened"):
        LocalStore(tmp_path).read("file")
