"""Shards are verified against their hashes while they are loaded (docs/SECURITY.md, section 17)."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
import rdrr as front
from rdrr_device import device as device_module
from rdrr_format import integrity
from rdrr_format.doppler_blake3 import doppler_blake3_hex
from rdrr_format.errors import ShardError
from rdrr_runtime.reference.backend import CpuBackend
from support.commands import error_line, rdrr
from support.range_server import RangeHandler, served
from support.verification import (
    PROMPT,
    edit_manifest,
    flip,
    let_times_settle,
    load,
    load_as_it_is,
    shards,
    state_another_hash,
)

# Changed bytes are decoded where a test loads them with `none`; some decode to NaN.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
TEXT = "And it came to pass in those days, that there went out a decree."


# The test below has the backend `wgpu` refuse changed bytes.
@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_flipped_bytes_are_refused_by_default(package, rng, backend):
    assert load(package, backend=backend)  # the control
    bad = shards(package)[1]
    declared = json.loads((package / "manifest.json").read_text(encoding="utf-8"))["shards"][1][
        "hash"
    ]
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


def test_a_refused_load_frees_its_gpu_memory(package, rng, monkeypatch):
    opened = []
    real = device_module.open_adapter

    def remembering(*arguments, **options):
        opened.append(real(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(device_module, "open_adapter", remembering)
    flip(shards(package)[0], rng)
    with pytest.raises(ShardError):
        load(package, backend="wgpu")
    [device] = opened
    assert device.memory.peak > 4 << 20  # weights had been uploaded
    assert device.memory.live < 1 << 20


@pytest.mark.parametrize("verify", ["full", "cached"])
def test_a_file_that_changes_while_it_is_loaded_is_refused(package, rng, monkeypatch, verify):
    load(package)
    real = CpuBackend.__init__

    def slow(self, *arguments, **options):
        real(self, *arguments, **options)
        time.sleep(0.3)  # long after it was hashed
        flip(shards(package)[1], rng)

    monkeypatch.setattr(CpuBackend, "__init__", slow)
    with pytest.raises(ShardError, match="changed while it was read"):
        load(package, verify=verify)


def test_commands_refuse_changed_bytes_and_accept_the_flag(package, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT, encoding="utf-8")
    state_another_hash(package)
    generate = ("generate", package, "--prompt", PROMPT, "--max-tokens", 2)
    perplexity = ("perplexity", package, "--text", text, "--window", 8)
    for words in (generate, perplexity):
        done = rdrr(*words, "--backend", "cpu")
        assert done.out == ""
        assert "wrong hash" in error_line(done, 1)
        assert rdrr(*words, "--backend", "cpu", "--verify", "none").code == 0
    done = rdrr("chat", package, "--backend", "cpu", stdin="hello\n")
    assert "wrong hash" in error_line(done)
    assert rdrr(*generate, "--verify", "always").code == 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ("bench", "--prompt-tokens", 4, "--tokens", 2, "--repeat", 1),
        ("profile", "--tokens", 2),
        ("tune", "--op", "norm", "--pass", "decode", "--rounds", 3),
    ],
)
def test_commands_that_only_measure_hash_nothing(package, words):
    state_another_hash(package)
    rdrr(words[0], package, *words[1:], code=0)


def test_an_importance_matrix_is_not_computed_from_changed_weights(package, rng, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT, encoding="utf-8")
    words = (
        *("imatrix", package, "--text", text, "--window", 8),
        *("--out", tmp_path / "out.gguf", "--overwrite"),
    )
    assert rdrr(*words).code == 0  # the control
    flip(shards(package)[0], rng)
    assert "wrong hash" in error_line(rdrr(*words))


def test_a_draft_model_is_verified_like_the_target_model(package, sharded_package):
    draft = front.Speculative(package)
    with front.load(sharded_package, backend="cpu", context=64) as model:
        plain = model.generate(PROMPT, max_tokens=4).read()
        assert model.generate(PROMPT, max_tokens=4, decode=draft).read() == plain  # the control
    state_another_hash(package)
    for verify, refused in (("cached", True), ("none", False)):
        with front.load(sharded_package, backend="cpu", context=64, verify=verify) as model:
            if refused:
                with pytest.raises(ShardError, match="wrong hash"):
                    model.generate(PROMPT, max_tokens=4, decode=draft).read()
            else:
                assert model.generate(PROMPT, max_tokens=4, decode=draft).read() == plain


def test_a_compressed_shard_is_verified_by_the_hash_of_its_file(shallow_checkpoint, tmp_path, rng):
    folder = tmp_path / "small-llama"
    stored = ("--compress", "zstd:1", "--quantize", "f16", "--shard-size", "1MiB", "--quiet")
    assert rdrr("convert", shallow_checkpoint, folder, *stored).code == 0
    load(folder)  # the control
    flip(shards(folder)[1], rng)
    with pytest.raises(ShardError, match="wrong hash"):
        load(folder)
    with pytest.raises(ShardError) as caught:
        load(folder, verify="none")
    assert "wrong hash" not in str(caught.value)  # a zstd frame reports the damage itself


@pytest.fixture(scope="module")
def hashed_by_blake3(shallow_checkpoint, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blake3") / "small-llama"
    stored = ("--hash", "blake3", "--quantize", "f16", "--shard-size", "1MiB", "--quiet")
    assert rdrr("convert", shallow_checkpoint, folder, *stored).code == 0
    return folder


@pytest.fixture
def with_blake3(hashed_by_blake3, tmp_path) -> Path:
    folder = shutil.copytree(hashed_by_blake3, tmp_path / "small-llama")
    let_times_settle()
    return folder


def test_blake3_hashes_are_verified(with_blake3, rng, hashed):
    load(with_blake3)
    load(with_blake3)
    assert set(hashed.values()) == {1}
    flip(shards(with_blake3)[0], rng)
    with pytest.raises(ShardError, match="wrong hash"):
        load(with_blake3)


def test_the_blake3_variant_of_the_public_runtime_is_accepted(with_blake3, rng, hashed):
    manifest = json.loads((with_blake3 / "manifest.json").read_text(encoding="utf-8"))
    for shard in manifest["shards"]:
        shard["hash"] = doppler_blake3_hex((with_blake3 / shard["filename"]).read_bytes())
    edit_manifest(with_blake3, shards=manifest["shards"])
    load(with_blake3)
    load(with_blake3)
    assert set(hashed.values()) == {1}
    flip(shards(with_blake3)[0], rng)
    with pytest.raises(ShardError, match="wrong hash"):
        load(with_blake3)


def test_hashes_that_cannot_be_computed_are_reported_as_not_checked(with_blake3, monkeypatch):
    words = ("generate", with_blake3, "--prompt", PROMPT, "--max-tokens", 1, "--backend", "cpu")
    assert "not checked" not in rdrr(*words).err  # the control

    def missing():
        raise ImportError

    monkeypatch.setattr(integrity, "ALGORITHMS", dict(integrity.ALGORITHMS) | {"blake3": missing})
    with front.load(with_blake3, backend="cpu") as model:
        [line] = model.unchecked
    assert line == "the shards were not checked: the package blake3 is not installed"
    assert line in rdrr(*words).err


def test_a_package_on_a_server_is_downloaded_once_and_verified(package, rng, monkeypatch, tmp_path):
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
        assert [asked[shard.name] for shard in shards(package)] == [1] * len(shards(package))
        flip(shards(package)[1], rng)
        with pytest.raises(ShardError, match="wrong hash") as caught:
            load(f"{url}/package")
        assert str(caught.value.where).startswith(url)
        load_as_it_is(f"{url}/package")
    assert not list((tmp_path / "copies").iterdir())
