"""Shards are held to their hashes while they are loaded (docs/SECURITY.md, section 12)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rdrr as front
from rdrr_device import device as device_module
from rdrr_format import integrity, verified_files
from rdrr_format.doppler_blake3 import doppler_blake3_hex
from rdrr_format.errors import ShardError
from rdrr_format.file_state import CLOCK_TICK_NS, COARSE_TICK_NS, FileState
from rdrr_format.verified_files import VerifiedFiles
from rdrr_manifests import loading
from rdrr_runtime.reference.backend import CpuBackend
from support.commands import EXAMPLE, environment, error_line, rdrr
from support.range_server import RangeHandler, served

# Changed bytes are decoded where a test loads them with `none`; some are no numbers.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")

PROMPT = "And it came to pass"
TEXT = "And it came to pass in those days, that there went out a decree."
FLIPPED = 400


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch) -> Path:
    """The file that remembers, in a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rdrr" / "verified.json"


@pytest.fixture(autouse=True)
def hashed(monkeypatch) -> Counter[str]:
    """How often each local file was hashed."""
    times: Counter[str] = Counter()
    real = loading.hash_file

    def counting(path, *arguments):
        times[path.name] += 1
        return real(path, *arguments)

    monkeypatch.setattr(loading, "hash_file", counting)
    return times


@pytest.fixture(scope="module")
def several_shards(tmp_path_factory) -> Path:
    """The bundled checkpoint in several shards; not to be changed."""
    folder = tmp_path_factory.mktemp("shards") / "small-llama"
    done = rdrr("convert", EXAMPLE, folder, "--shard-size", "1MiB", "--quiet")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def package(several_shards, tmp_path) -> Path:
    """A package that may be changed, old enough for its files' times to be relied on."""
    folder = tmp_path / "package"
    shutil.copytree(several_shards, folder)
    settle()
    return folder


def settle() -> None:
    time.sleep(2 * CLOCK_TICK_NS / 1e9)


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("shard_*"))
    assert len(found) > 2
    return found


def flip(path: Path, rng: np.random.Generator, count: int = FLIPPED) -> None:
    """Flip bits of some bytes of a file in its place."""
    data = np.fromfile(path, np.uint8)
    where = rng.choice(len(data), count, replace=False)
    data[where] ^= rng.integers(1, 256, count, dtype=np.uint8)
    with path.open("r+b") as file:
        file.write(data.tobytes())


def edit_manifest(folder: Path, **changes) -> dict:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(manifest))
    return manifest


def state_another_hash(folder: Path) -> None:
    """Change the first shard's declared hash: what is loaded with `none` still makes sense."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0]["hash"] = "5" * 64
    edit_manifest(folder, shards=manifest["shards"])


def load(folder, **options) -> str:
    """Load a package on the CPU and return what it says."""
    with front.load(folder, **({"backend": "cpu", "context": 32} | options)) as model:
        return model.generate(PROMPT, max_tokens=3).read()


def load_as_it_is(folder, backend: str = "cpu") -> None:
    """Load changed bytes, of which a model may make nonsense or no numbers at all."""
    with front.load(folder, backend=backend, context=32, verify="none") as model:
        assert model.info.name == backend


@pytest.mark.parametrize("backend", ["cpu", "wgpu"])
def test_flipped_bytes_are_refused_by_default(package, rng, backend):
    assert load(package, backend=backend)  # the control
    bad = shards(package)[1]
    declared = json.loads((package / "manifest.json").read_text())["shards"][1]["hash"]
    flip(bad, rng)
    with pytest.raises(ShardError, match="wrong hash") as caught:
        load(package, backend=backend)
    error = caught.value
    assert error.where == str(bad)
    assert error.expected == declared
    assert error.found == integrity.hash_bytes("sha256", bad.read_bytes())
    assert "get the shard again" in str(error)
    assert "`verify` none" in str(error)
    load_as_it_is(package, backend)


def test_what_a_refused_load_took_of_the_gpu_is_given_back(package, rng, monkeypatch):
    opened = []
    real = device_module.open_device

    def remembering(*arguments, **options):
        opened.append(real(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(device_module, "open_device", remembering)
    flip(shards(package)[0], rng)
    with pytest.raises(ShardError):
        load(package, backend="wgpu")
    [device] = opened
    assert device.memory.peak > 4 << 20  # weights were there
    assert device.memory.live < 1 << 20


def test_a_second_load_hashes_nothing_unless_it_is_told_to(package, hashed):
    once = {one.name: 1 for one in shards(package)}
    load(package)
    assert hashed == once
    load(package)
    assert hashed == once
    load(package, verify="none")
    assert hashed == once
    load(package, verify="full")
    assert hashed == dict.fromkeys(once, 2)


def test_full_refuses_what_is_remembered_and_none_leaves_no_memory(package, memory, hashed):
    load(package, verify="none")
    assert not memory.exists()
    assert not hashed
    load(package, verify="full")
    assert memory.exists()
    load(package)
    assert set(hashed.values()) == {1}


def touch(path: Path) -> None:
    os.utime(path)


def give_another_inode(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    shutil.copy(path, other)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_ino != before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("change", [touch, give_another_inode])
def test_a_file_that_may_have_changed_is_hashed_again_and_no_other(package, hashed, change):
    load(package)
    changed = shards(package)[1]
    change(changed)
    load(package)
    others = {one.name: 1 for one in shards(package) if one != changed}
    assert hashed == others | {changed.name: 2}


def test_changed_bytes_are_found_though_the_time_was_put_back(package, rng):
    load(package)
    bad = shards(package)[2]
    before = bad.stat()
    flip(bad, rng)
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert bad.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(ShardError, match="wrong hash"):
        load(package)


def test_another_expected_hash_is_another_question(package, hashed):
    load(package)
    state_another_hash(package)
    with pytest.raises(ShardError, match="wrong hash"):
        load(package)
    assert hashed[shards(package)[0].name] == 2
    assert hashed[shards(package)[1].name] == 1


def test_a_file_written_a_moment_ago_is_not_remembered(package, hashed):
    touched = shards(package)[0]
    soon = time.time_ns() + 10 * COARSE_TICK_NS + 1
    os.utime(touched, ns=(soon, soon))
    load(package)
    load(package)
    assert hashed[touched.name] == 2
    assert hashed[shards(package)[1].name] == 1  # the control


def test_times_in_whole_seconds_are_relied_on_later():
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
    "no text": bytes(range(256)),
    "deeply nested": b"[" * 200_000,
    "another format": b'{"format":"rdrr-verified-9","files":{}}',
    "no table": b'{"format":"rdrr-verified-1","files":[1]}',
    "a list": b"[]",
    "a huge number": b"9" * 10_000,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_memory_is_as_none(package, memory, hashed, content):
    memory.parent.mkdir(parents=True)
    memory.write_bytes(content)
    load(package)
    load(package)
    assert set(hashed.values()) == {1}  # it was replaced, and the second load knew


def test_entries_that_make_no_sense_vouch_for_nothing(package, memory, hashed):
    load(package)
    data = json.loads(memory.read_text())
    odd = [None, 7, [], {}, "sha256", [1, 2, 3], ["a"] * 6]
    data["files"] = {name: odd[at % len(odd)] for at, name in enumerate(data["files"])}
    memory.write_text(json.dumps(data))
    load(package)
    assert set(hashed.values()) == {2}


def test_a_memory_that_cannot_be_written_only_costs_time(package, memory, hashed):
    memory.parent.parent.mkdir()
    memory.parent.write_text("a file where the folder should be")
    load(package)
    load(package)
    assert set(hashed.values()) == {2}
    memory.parent.unlink()
    memory.mkdir(parents=True)  # a folder where the file should be
    load(package)
    assert set(hashed.values()) == {3}


def test_the_memory_drops_its_oldest_files(tmp_path, monkeypatch):
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
    assert [one.wait(60) for one in running] == [0, 0, 0]
    known = VerifiedFiles(path)
    for name in "abc":
        for number in range(20):
            assert known.has(Path(f"/{name}/{number}"), FileState(1, number, 3, 4, 5), "sha256:ab")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_what_one_process_found_right_another_need_not_hash(package, hashed):
    words = ("generate", package, "--prompt", PROMPT, "--max-tokens", 1, "--backend", "cpu")
    assert rdrr(*words, own_process=True).code == 0
    load(package)
    assert not hashed
    touch(shards(package)[0])
    load(package)
    assert hashed == {shards(package)[0].name: 1}


@pytest.mark.parametrize("verify", ["full", "cached"])
def test_a_file_that_changes_while_it_is_loaded_is_refused(package, rng, monkeypatch, verify):
    load(package)
    real = CpuBackend.__init__

    def slow(self, *arguments, **options):
        real(self, *arguments, **options)
        time.sleep(0.3)  # long after its hash was known
        flip(shards(package)[1], rng)

    monkeypatch.setattr(CpuBackend, "__init__", slow)
    with pytest.raises(ShardError, match="changed while it was read"):
        load(package, verify=verify)


def test_commands_refuse_and_take_the_flag(package, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT)
    state_another_hash(package)
    generate = ("generate", package, "--prompt", PROMPT, "--max-tokens", 2)
    perplexity = ("perplexity", package, "--text", text, "--window", 8)
    for words in (generate, perplexity):
        done = rdrr(*words, "--backend", "cpu")
        assert done.code == 1
        assert done.out == ""
        assert "wrong hash" in error_line(done)
        assert rdrr(*words, "--backend", "cpu", "--verify", "none").code == 0
    done = rdrr("chat", package, "--backend", "cpu", stdin="hello\n")
    assert "wrong hash" in error_line(done)
    assert rdrr(*generate, "--verify", "always").code == 2


def test_an_importance_matrix_is_not_made_of_changed_weights(package, rng, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT)
    words = (
        *("imatrix", package, "--text", text, "--window", 8),
        *("--out", tmp_path / "out.gguf", "--overwrite"),
    )
    assert rdrr(*words).code == 0  # the control
    flip(shards(package)[0], rng)
    assert "wrong hash" in error_line(rdrr(*words))


def test_a_draft_model_is_checked_as_the_model_is(package, several_shards):
    draft = front.Speculative(package)
    with front.load(several_shards, backend="cpu", context=64) as model:
        plain = model.generate(PROMPT, max_tokens=4).read()
        assert model.generate(PROMPT, max_tokens=4, decode=draft).read() == plain  # the control
    state_another_hash(package)
    for verify, refused in (("cached", True), ("none", False)):
        with front.load(several_shards, backend="cpu", context=64, verify=verify) as model:
            if refused:
                with pytest.raises(ShardError, match="wrong hash"):
                    model.generate(PROMPT, max_tokens=4, decode=draft).read()
            else:
                assert model.generate(PROMPT, max_tokens=4, decode=draft).read() == plain


def test_a_compressed_shard_is_held_to_the_hash_of_its_file(tmp_path, rng):
    folder = tmp_path / "small-llama"
    stored = ("--compress", "zstd:1", "--shard-size", "1MiB", "--quiet")
    assert rdrr("convert", EXAMPLE, folder, *stored).code == 0
    load(folder)  # the control
    flip(shards(folder)[1], rng)
    with pytest.raises(ShardError, match="wrong hash"):
        load(folder)
    with pytest.raises(ShardError) as caught:
        load(folder, verify="none")
    assert "wrong hash" not in str(caught.value)  # what a frame says of itself


@pytest.fixture
def with_blake3(tmp_path) -> Path:
    folder = tmp_path / "small-llama"
    stored = ("--hash", "blake3", "--shard-size", "1MiB", "--quiet")
    assert rdrr("convert", EXAMPLE, folder, *stored).code == 0
    settle()
    return folder


def test_hashes_of_blake3_are_checked(with_blake3, rng, hashed):
    load(with_blake3)
    load(with_blake3)
    assert set(hashed.values()) == {1}
    flip(shards(with_blake3)[0], rng)
    with pytest.raises(ShardError, match="wrong hash"):
        load(with_blake3)


def test_the_public_runtime_s_own_blake3_is_taken(with_blake3, rng, hashed):
    manifest = json.loads((with_blake3 / "manifest.json").read_text())
    for shard in manifest["shards"]:
        shard["hash"] = doppler_blake3_hex((with_blake3 / shard["filename"]).read_bytes())
    edit_manifest(with_blake3, shards=manifest["shards"])
    load(with_blake3)
    load(with_blake3)
    assert set(hashed.values()) == {1}
    flip(shards(with_blake3)[0], rng)
    with pytest.raises(ShardError, match="wrong hash"):
        load(with_blake3)


def test_hashes_that_cannot_be_computed_are_said_to_be_unchecked(with_blake3, monkeypatch):
    words = ("generate", with_blake3, "--prompt", PROMPT, "--max-tokens", 1, "--backend", "cpu")
    assert "not checked" not in rdrr(*words).err  # the control

    def missing():
        raise ImportError

    monkeypatch.setattr(integrity, "ALGORITHMS", dict(integrity.ALGORITHMS) | {"blake3": missing})
    with front.load(with_blake3, backend="cpu") as model:
        [line] = model.unchecked
    assert line == "the shards were not checked: the package blake3 is not installed"
    assert line in rdrr(*words).err


def test_a_package_on_a_server_is_downloaded_once_and_checked(package, rng, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "copies"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "copies").mkdir()
    asked: Counter[str] = Counter()
    real = RangeHandler.do_GET

    def counting(self):
        asked[self.path.rsplit("/", 1)[-1]] += 1
        real(self)

    monkeypatch.setattr(RangeHandler, "do_GET", counting)
    expected = load(package)
    with served(tmp_path) as url:
        assert load(f"{url}/package") == expected
        assert [asked[one.name] for one in shards(package)] == [1] * len(shards(package))
        flip(shards(package)[1], rng)
        with pytest.raises(ShardError, match="wrong hash") as caught:
            load(f"{url}/package")
        assert str(caught.value.where).startswith(url)
        load_as_it_is(f"{url}/package")
    assert not list((tmp_path / "copies").iterdir())
