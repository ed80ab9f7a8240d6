"""The verification cache: verified files are not hashed again, unless they may have changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rdrr_format import verified_files
from rdrr_format.errors import ShardError
from rdrr_format.file_state import CLOCK_TICK_NS, COARSE_TICK_NS, FileState
from rdrr_format.stores import replace_file
from rdrr_format.verified_files import VerifiedFiles
from support.commands import environment, rdrr
from support.deadlines import HANGS
from support.verification import (
    PROMPT,
    flip,
    load,
    shards,
    state_another_hash,
)

# A changed shard is decoded before its hash is known; some of its bytes decode to NaN.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")


def test_a_second_load_hashes_nothing_unless_asked_to(package, hashed):
    once = {shard.name: 1 for shard in shards(package)}
    load(package)
    assert hashed == once
    load(package)
    assert hashed == once
    load(package, verify="none")
    assert hashed == once
    load(package, verify="full")
    assert hashed == dict.fromkeys(once, 2)


def test_full_ignores_the_verification_cache_and_none_never_writes_it(package, cache_file, hashed):
    load(package, verify="none")
    assert not cache_file.exists()
    assert not hashed
    load(package, verify="full")
    assert cache_file.exists()
    load(package)
    assert set(hashed.values()) == {1}


def test_no_load_waits_for_the_disk(package, cache_file, monkeypatch):
    """What is remembered may be lost in a power cut; flushing it took longer than the load."""

    def flushed(descriptor: int) -> None:
        raise AssertionError(f"file {descriptor} was flushed")

    monkeypatch.setattr(os, "fsync", flushed)
    load(package)
    assert cache_file.exists()
    with pytest.raises(AssertionError, match="was flushed"):  # the control
        replace_file(cache_file, b"")


def touch(path: Path) -> None:
    os.utime(path)


def replace_inode(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    shutil.copy(path, other)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_ino != before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("change", [touch, replace_inode])
def test_a_file_that_may_have_changed_is_hashed_again_and_no_other(package, hashed, change):
    load(package)
    changed = shards(package)[1]
    change(changed)
    load(package)
    others = {shard.name: 1 for shard in shards(package) if shard != changed}
    assert hashed == others | {changed.name: 2}


def test_changed_bytes_are_found_even_if_the_modification_time_is_restored(package, rng):
    load(package)
    bad = shards(package)[2]
    before = bad.stat()
    flip(bad, rng)
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert bad.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(ShardError, match="wrong hash"):
        load(package)


def test_another_expected_hash_is_verified_anew(package, hashed):
    load(package)
    state_another_hash(package)
    with pytest.raises(ShardError, match="wrong hash"):
        load(package)
    assert hashed[shards(package)[0].name] == 2
    assert hashed[shards(package)[1].name] == 1


def test_a_file_written_a_moment_ago_is_not_cached(package, hashed):
    touched = shards(package)[0]
    soon = time.time_ns() + 3600 * 10**9
    os.utime(touched, ns=(soon, soon))
    load(package)
    load(package)
    assert hashed[touched.name] == 2
    assert hashed[shards(package)[1].name] == 1  # the control


def test_modification_times_in_whole_seconds_are_trusted_later():
    second = 10**9
    state = FileState(1, 2, 3, 5 * second + 1, 5 * second + 1)
    coarse = replace(state, modified_ns=5 * second, changed_ns=5 * second)
    now = 5 * second + CLOCK_TICK_NS + 2
    assert state.is_settled(now)
    assert not coarse.is_settled(now)
    assert not replace(state, changed_ns=now).is_settled(now)
    assert coarse.is_settled(5 * second + COARSE_TICK_NS + 1)


DAMAGED = {
    "empty": b"",
    "cut short": b'{"format":"rdrr-verified-1","files":{"/a":[1,2',
    "not text": bytes(range(256)),
    "deeply nested": b"[" * 200_000,
    "another format": b'{"format":"rdrr-verified-9","files":{}}',
    "no table of files": b'{"format":"rdrr-verified-1","files":[1]}',
    "a list": b"[]",
    "a huge number": b"9" * 10_000,
}


def test_a_damaged_cache_is_empty_and_replaced(tmp_path):
    path, file, state = tmp_path / "memory.json", Path("/a"), FileState(1, 2, 3, 4, 5)
    for content in DAMAGED.values():
        path.write_bytes(content)
        known = VerifiedFiles(path)
        assert not known.has(file, state, "sha256:ab")
        known.add([(file, state, "sha256:ab")])
        assert VerifiedFiles(path).has(file, state, "sha256:ab")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(content, id=name, marks=() if name == "cut short" else pytest.mark.thorough)
        for name, content in DAMAGED.items()
    ],
)
def test_a_damaged_cache_file_is_ignored(package, cache_file, hashed, content):
    cache_file.parent.mkdir(parents=True)
    cache_file.write_bytes(content)
    load(package)
    load(package)
    assert set(hashed.values()) == {1}  # the file was replaced, and the second load used it


def test_invalid_cache_entries_are_ignored(package, cache_file, hashed):
    load(package)
    data = json.loads(cache_file.read_text(encoding="utf-8"))
    odd = [None, 7, [], {}, "sha256", [1, 2, 3], ["a"] * 6]
    data["files"] = {name: odd[at % len(odd)] for at, name in enumerate(data["files"])}
    cache_file.write_text(json.dumps(data), encoding="utf-8")
    load(package)
    assert set(hashed.values()) == {2}


def test_a_cache_that_cannot_be_written_only_costs_time(package, cache_file, hashed):
    cache_file.parent.parent.mkdir()
    cache_file.parent.write_text("a file where the folder should be", encoding="utf-8")
    load(package)
    load(package)
    assert set(hashed.values()) == {2}
    cache_file.parent.unlink()
    cache_file.mkdir(parents=True)  # a folder where the file should be
    load(package)
    assert set(hashed.values()) == {3}


def test_the_cache_drops_its_oldest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(verified_files, "MAX_FILES", 4)
    state = FileState(1, 2, 3, 4, 5)
    paths = [Path(f"/shards/{number}") for number in range(6)]
    known = VerifiedFiles(tmp_path / "memory.json")
    for path in paths:
        known.add([(path, state, "sha256:ab")])
    known.add([(paths[2], state, "sha256:cd")])
    again = VerifiedFiles(tmp_path / "memory.json")
    for one in (known, again):
        assert not one.has(paths[1], state, "sha256:ab")
        assert one.has(paths[3], state, "sha256:ab")
        assert one.has(paths[2], state, "sha256:cd")
        assert not one.has(paths[2], state, "sha256:ab")
        assert not one.has(paths[3], replace(state, inode=9), "sha256:ab")
    known.add([(Path("/shards/new"), state, "sha256:ab")])
    assert not VerifiedFiles(tmp_path / "memory.json").has(paths[3], state, "sha256:ab")
    assert VerifiedFiles(tmp_path / "memory.json").has(paths[2], state, "sha256:cd")


WRITER = """
import sys
from pathlib import Path
from rdrr_format.file_state import FileState
from rdrr_format.verified_files import VerifiedFiles
known = VerifiedFiles(Path(sys.argv[1]))
for number in range(20):
    path = Path(f"/{sys.argv[2]}/{number}")
    known.add([(path, FileState(1, number, 3, 4, 5), "sha256:ab")])
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "memory.json"
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], env=environment())
        for name in "abc"
    ]
    assert [thread.wait(HANGS) for thread in running] == [0, 0, 0]
    known = VerifiedFiles(path)
    for name in "abc":
        for number in range(20):
            assert known.has(Path(f"/{name}/{number}"), FileState(1, number, 3, 4, 5), "sha256:ab")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.thorough  # two tests above: processes share a cache, and each load reads it
def test_a_file_that_one_process_verified_is_not_hashed_by_another(package, hashed):
    words = ("generate", package, "--prompt", PROMPT, "--max-tokens", 1, "--backend", "cpu")
    assert rdrr(*words, own_process=True).code == 0
    load(package)
    assert not hashed
    touch(shards(package)[0])
    load(package)
    assert hashed == {shards(package)[0].name: 1}
