"""Storage options: alignment, hashes and compression of shards, and invalid combinations."""

from __future__ import annotations

import json
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from blake3 import blake3
from rdrr_converter.convert import convert
from rdrr_format.errors import UsageError
from rdrr_manifests.package import open_package, validate
from support.safetensor_files import llama_tensors, write_llama


@pytest.fixture
def folder(tmp_path, rng):
    sizes = {"num_hidden_layers": 1, "intermediate_size": 256, "head_dim": 32}
    return write_llama(tmp_path / "source", llama_tensors(rng, **sizes), **sizes)


def starts(folder):
    with open_package(folder) as package:
        return [entry.byte_spans()[0].offset for entry in package.manifest.tensors.values()]


@pytest.mark.parametrize("align", [1, 4096])
def test_tensors_begin_at_multiples_of_the_alignment(tmp_path, folder, align):
    convert(folder, tmp_path / "usual")
    convert(folder, tmp_path / "out", align=align)
    assert any(start % 4096 for start in starts(tmp_path / "usual"))  # control
    assert not any(start % align for start in starts(tmp_path / "out"))
    assert validate(tmp_path / "out", deep=True, strict=True).ok()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["conversion"]["options"]["align"] == align


def test_shards_are_hashed_with_blake3_on_request(tmp_path, folder):
    convert(folder, tmp_path / "out", hash_algorithm="blake3")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["hashAlgorithm"] == "blake3"
    for shard in manifest["shards"]:
        content = (tmp_path / "out" / shard["filename"]).read_bytes()
        assert shard["hash"] == blake3(content).hexdigest()
    assert validate(tmp_path / "out", deep=True, strict=True).ok()


def tensors_of(location):
    with open_package(location) as package:
        return {name: bytes(package.read(name)) for name in package.manifest.tensors}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def packages(tmp_path, folder):
    """The same weights in several shards, uncompressed and compressed."""
    for name, options in (("plain", {}), ("packed", {"compress": "zstd:1"})):
        convert(folder, tmp_path / name, quantize="f16", shard_size=1 << 16, workers=2, **options)
    return tmp_path / "plain", tmp_path / "packed"


def test_a_compressed_package_holds_the_same_tensors_in_fewer_bytes(packages):
    plain, packed = packages
    before, after = (
        json.loads((folder / "manifest.json").read_text(encoding="utf-8")) for folder in packages
    )
    assert after["totalSize"] < 0.95 * before["totalSize"]
    assert after["tensors"] == before["tensors"]  # byte spans refer to the uncompressed content
    assert after["conversion"]["options"]["compress"] == "zstd:1"
    assert len(after["shards"]) > 2
    for shard, old in zip(after["shards"], before["shards"], strict=True):
        assert shard["compression"] == "zstd"
        assert shard["uncompressedSize"] == old["size"]
        assert shard["size"] == (packed / shard["filename"]).stat().st_size
        assert "compression" not in old
    report = validate(packed, deep=True, strict=True)
    assert report.ok(), [fault.line() for fault in report.faults]
    assert tensors_of(packed) == tensors_of(plain)
    name = max(before["tensors"], key=lambda tensor: before["tensors"][tensor]["size"])
    with open_package(packed) as package:  # a tensor over several shards, a few rows of it
        rows = package.read_rows(name, 3, 2)
        assert np.array_equal(rows, package.read(name).reshape(-1, rows.shape[1])[3:5])
        assert np.isfinite(package.dequantize(name)).all()


def test_a_compressed_package_is_read_from_a_url(packages):
    url = f"memory://{uuid4().hex}"
    for path in packages[1].iterdir():
        fsspec.filesystem("memory").pipe_file(f"{url}/{path.name}", path.read_bytes())
    assert tensors_of(url) == tensors_of(packages[0])
    assert validate(url, deep=True).ok()


def test_a_compressed_package_is_written_to_a_url_and_replaces_a_plain_one(folder, packages):
    url = f"memory://{uuid4().hex}"
    options = {"quantize": "f16", "shard_size": 1 << 16}
    convert(folder, url, **options)
    convert(folder, url, compress="zstd:1", overwrite=True, **options)
    files = fsspec.filesystem("memory")
    stored = {path.rsplit("/", 1)[-1]: files.cat_file(path) for path in files.ls(url, detail=False)}
    assert stored == content(packages[1])


def test_compressed_bytes_do_not_depend_on_the_workers(tmp_path, folder, packages):
    again = tmp_path / "again"
    convert(folder, again, quantize="f16", shard_size=1 << 16, workers=1, compress="zstd:1")
    assert content(again) == content(packages[1])


def spoil(folder, change):
    """Change the second shard, and update its size and hash in the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    changed = folder / manifest["shards"][1]["filename"]
    changed.write_bytes(change(changed.read_bytes()))
    position = 0
    for shard in manifest["shards"]:
        raw = (folder / shard["filename"]).read_bytes()
        shard |= {"size": len(raw), "hash": blake3(raw).hexdigest(), "offset": position}
        position += len(raw)
    manifest |= {"totalSize": position, "hashAlgorithm": "blake3"}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return {(fault.rule, fault.message) for fault in validate(folder, deep=True).errors}


def test_damaged_compression_with_a_valid_hash_is_found_and_named(packages):
    folder = packages[1]
    assert spoil(folder, lambda raw: raw) == set()  # control
    assert spoil(folder, lambda raw: raw[:9] + bytes([raw[9] ^ 0xFF]) + raw[10:]) == {
        ("tensor-values", "shard_00001.bin.zst: frame 0 cannot be decompressed")
    }
    missing = "no seek table at the end"
    assert spoil(folder, lambda raw: raw[:-3]) == {
        ("shard-frames", missing),
        ("tensor-values", f"shard_00001.bin.zst: {missing}"),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align": 0}, "`align`"),
        ({"align": 96}, "power of two"),
        ({"align": 4096, "shard_size": 100_000}, "`shard_size` that is a multiple of 4096"),
        ({"hash_algorithm": "md5"}, "`hash_algorithm`"),
        ({"compress": "gzip"}, "`compress`"),
        ({"compress": "zstd:23"}, "`compress`"),
    ],
)
def test_invalid_storage_options_are_usage_errors(tmp_path, folder, options, message):
    with pytest.raises(UsageError, match=message):
        convert(folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
