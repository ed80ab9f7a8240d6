"""How bytes are stored: alignment and hashes that are asked for, and options that mean nothing."""

from __future__ import annotations

import json

import pytest
from blake3 import blake3
from rdrr_converter.convert import convert
from rdrr_format.errors import UsageError
from rdrr_manifests.package import open_package, validate
from support.safetensor_files import llama_tensors, write_llama


@pytest.fixture
def folder(tmp_path, rng):
    return write_llama(tmp_path / "source", llama_tensors(rng))


def starts(folder):
    with open_package(folder) as package:
        return [entry.runs()[0].offset for entry in package.manifest.tensors.values()]


@pytest.mark.parametrize("align", [1, 4096])
def test_tensors_begin_at_the_multiples_that_are_asked_for(tmp_path, folder, align):
    convert(folder, tmp_path / "usual")
    convert(folder, tmp_path / "out", align=align)
    assert any(start % 4096 for start in starts(tmp_path / "usual"))  # control
    assert not any(start % align for start in starts(tmp_path / "out"))
    assert validate(tmp_path / "out", deep=True, strict=True).ok()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["conversion"]["options"]["align"] == align


def test_shards_are_hashed_by_blake3_when_asked(tmp_path, folder):
    convert(folder, tmp_path / "out", hash_algorithm="blake3")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["hashAlgorithm"] == "blake3"
    for shard in manifest["shards"]:
        content = (tmp_path / "out" / shard["filename"]).read_bytes()
        assert shard["hash"] == blake3(content).hexdigest()
    assert validate(tmp_path / "out", deep=True, strict=True).ok()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align": 0}, "--align"),
        ({"align": 96}, "power of two"),
        ({"align": 4096, "shard_size": 100_000}, "--shard-size that is a multiple of 4096"),
        ({"hash_algorithm": "md5"}, "--hash"),
    ],
)
def test_storage_that_means_nothing_is_wrong_usage(tmp_path, folder, options, message):
    with pytest.raises(UsageError, match=message):
        convert(folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
