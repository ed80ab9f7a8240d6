"""Opening and validating packages on disk: valid, damaged and hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rdrr_format.doppler_blake3 import doppler_blake3_hex
from rdrr_format.errors import ManifestError, RdrrError, ShardError, StoreError
from rdrr_format.integrity import hash_bytes
from rdrr_manifests.graph import Graph
from rdrr_manifests.package import open_package, validate
from support.manifests import (
    HIDDEN,
    INNER,
    SHARD_SIZE,
    TOKENIZER,
    spoiled,
    valid_manifest,
    write_manifest,
    write_package,
)

UP = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    write_package(tmp_path / "package", rng)
    return tmp_path / "package"


def rules(folder: Path, *, deep: bool = False) -> set[str]:
    return {fault.rule for fault in validate(folder, deep=deep).faults}


def test_a_valid_package_passes_every_level_under_strict(folder: Path) -> None:
    files, deep = validate(folder, strict=True), validate(folder, deep=True, strict=True)
    bare = validate(folder / "manifest.json", strict=True)
    assert (files.level, deep.level, bare.level) == ("files", "deep", "structure")
    assert files.ok()
    assert deep.ok(), [fault.line() for fault in deep.faults]
    assert bare.ok()
    assert deep.runnable
    assert deep.as_dict()["valid"] is True
    assert deep.facts == {"shards": 3, "tensors": 20, "bytes": valid_manifest()["totalSize"]}


def test_a_report_can_be_written_as_json(folder: Path) -> None:
    (folder / "shard_00001.bin").unlink()
    report = json.loads(json.dumps(validate(folder).as_dict()))
    assert report["valid"] is False
    assert report["errors"][0]["rule"] == "shard-file"


def test_a_missing_shard_a_short_one_and_a_missing_tokenizer_are_found_together(
    folder: Path,
) -> None:
    (folder / "shard_00000.bin").unlink()
    short = folder / "shard_00001.bin"
    short.write_bytes(short.read_bytes()[:-1])
    (folder / "tokenizer.json").unlink()
    lines = [fault.line() for fault in validate(folder).faults]
    assert lines == [
        "error [shard-file] shard_00000.bin: shard is missing",
        "error [shard-file] shard_00001.bin: shard is too short "
        f"(expected {SHARD_SIZE} bytes, found {SHARD_SIZE - 1} bytes)",
        "error [tokenizer-file] tokenizer.file: no such file in the package (found tokenizer.json)",
    ]


def test_a_shard_that_is_too_long_is_found(folder: Path) -> None:
    with (folder / "shard_00002.bin").open("ab") as file:
        file.write(b"\0")
    assert rules(folder) == {"shard-file"}


def test_a_changed_byte_is_found_only_by_deep_validation(folder: Path) -> None:
    path = folder / "shard_00002.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    assert rules(folder) == set()
    assert rules(folder, deep=True) == {"shard-hash"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_found(
    tmp_path: Path, rng: np.random.Generator, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import support.manifests as made

    original = made.payload

    def poisoned(manifest: dict, rng: np.random.Generator) -> bytes:
        stream = bytearray(original(manifest, rng))
        entry = manifest["tensors"][NORM]
        at = entry["shard"] * SHARD_SIZE + entry["offset"] + 4 * 5
        stream[at : at + 4] = np.float32(bad).tobytes()
        scale = manifest["tensors"][UP]
        at = scale["shard"] * SHARD_SIZE + scale["offset"] + 34 * 2 * 7
        stream[at : at + 2] = np.float16(bad).tobytes()
        return bytes(stream)

    monkeypatch.setattr(made, "payload", poisoned)
    write_package(tmp_path, rng)
    faults = validate(tmp_path, deep=True).faults
    assert {(fault.rule, fault.field) for fault in faults} == {
        ("tensor-values", f'tensors["{NORM}"]'),
        ("tensor-values", f'tensors["{UP}"]'),
    }
    message = next(fault.message for fault in faults if UP in fault.field)
    assert message.endswith("row 7")


def test_values_are_checked_in_every_shard_that_is_intact(folder: Path) -> None:
    (folder / "shard_00000.bin").unlink()
    path = folder / "shard_00002.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)
    broken = rules(folder, deep=True)
    assert broken == {"shard-file", "shard-hash", "tensor-values"}


def test_hashes_of_an_unavailable_algorithm_are_a_warning(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, rng)
    monkeypatch.setattr("rdrr_manifests.rules.files.ALGORITHMS", {})
    report = validate(tmp_path, deep=True)
    assert [(f.rule, f.severity) for f in report.faults] == [("shard-hash", "warning")]


@pytest.mark.parametrize(
    ("function", "rules"),
    [(partial(hash_bytes, "blake3"), []), (doppler_blake3_hex, ["shard-hash"])],
)
def test_both_variants_of_blake3_are_accepted_and_that_of_doppler_is_a_warning(
    folder: Path, function: Callable[[bytes], str], rules: list[str]
) -> None:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["hashAlgorithm"] = "blake3"
    for shard in manifest["shards"]:
        shard["hash"] = function((folder / shard["filename"]).read_bytes())
    write_manifest(folder, manifest)
    report = validate(folder, deep=True)
    assert report.ok()
    assert [fault.rule for fault in report.warnings] == rules
    assert all("DOPPLER" in fault.message for fault in report.warnings)
    manifest["shards"][1]["hash"] = "ab" * 32
    write_manifest(folder, manifest)
    assert [fault.field for fault in validate(folder, deep=True).errors] == ["shard_00001.bin"]


def test_an_opened_package_has_manifest_graph_and_tensors(folder: Path) -> None:
    with open_package(folder) as package:
        assert package.manifest.model_id == "tiny-llama"
        assert isinstance(package.graph, Graph)
        assert package.graph is package.graph
        assert package.is_runnable
        assert package.warnings == ()
        assert package.tensor(UP).shape == (INNER, HIDDEN)
        assert package.tokenizer_path == str(folder / "tokenizer.json")
        assert package.tokenizer_bytes() == TOKENIZER.encode()
        assert "tiny-llama" in repr(package)


def test_a_manifest_inside_its_folder_opens_the_package(folder: Path) -> None:
    assert open_package(folder / "manifest.json").manifest == open_package(folder).manifest


@pytest.mark.parametrize("layout", ["row", "column"])
def test_rows_are_stored_bytes_and_values_have_the_logical_shape(
    tmp_path: Path, rng: np.random.Generator, layout: str
) -> None:
    write_package(tmp_path, rng, valid_manifest(layout=layout))
    package = open_package(tmp_path)
    for name, tensor in package.manifest.tensors.items():
        geometry = tensor.geometry()
        raw = package.read(name)
        assert raw.dtype == np.uint8
        assert raw.shape == (tensor.size,)
        rows = package.read_rows(name, 0, geometry.rows)
        assert rows.shape == (geometry.rows, geometry.row_bytes)
        np.testing.assert_array_equal(rows.reshape(-1), raw)
        first = int(rng.integers(geometry.rows))
        np.testing.assert_array_equal(package.read_rows(name, first, 1)[0], rows[first])
        values = package.dequantize(name)
        assert values.shape == tensor.shape
        assert np.isfinite(values).all()
    spanned = [tensor for tensor in package.manifest.tensors.values() if tensor.spans]
    assert spanned, "some tensor must lie in two shards for this to say anything"


def test_a_shard_that_is_deleted_after_opening_is_a_shard_error(folder: Path) -> None:
    package = open_package(folder)
    (folder / "shard_00002.bin").unlink()
    with pytest.raises(ShardError, match="shard_00002"):
        package.read(NORM)


def test_an_unknown_tensor_is_an_error_that_names_it(folder: Path) -> None:
    with pytest.raises(ManifestError, match=r"no such tensor.*nobody"):
        open_package(folder).tensor("nobody")


def test_the_error_of_opening_a_faulty_package_lists_every_fault(folder: Path) -> None:
    def spoil(manifest: dict) -> None:
        manifest["totalSize"] = 1
        manifest["shards"][0]["filename"] = "../shard_00000.bin"

    write_manifest(
        folder, spoiled(spoil, json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
    )
    with pytest.raises(ManifestError) as caught:
        open_package(folder)
    assert {fault.rule for fault in caught.value.faults} == {"total-size", "shard-name"}
    assert "\n" not in str(caught.value)


def test_a_shard_outside_the_folder_is_never_opened(folder: Path) -> None:
    secret = folder.parent / "secret.bin"
    secret.write_bytes((folder / "shard_00000.bin").read_bytes())

    def spoil(manifest: dict) -> None:
        manifest["shards"][0]["filename"] = "../secret.bin"

    write_manifest(
        folder, spoiled(spoil, json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
    )
    assert rules(folder, deep=True) == {"shard-name"}
    with pytest.raises(ManifestError, match="shard-name"):
        open_package(folder)


def test_a_tokenizer_or_tensor_table_outside_the_folder_is_never_opened(folder: Path) -> None:
    (folder.parent / "secret.json").write_text("{}", encoding="utf-8")

    def spoil(manifest: dict) -> None:
        manifest["tokenizer"]["file"] = "../secret.json"
        del manifest["tensors"]
        manifest["tensorsFile"] = "../secret.json"

    write_manifest(
        folder, spoiled(spoil, json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
    )
    assert {"tokenizer-file", "tensors-file"} <= rules(folder)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b'{"a": 1}'])
def test_an_external_tensor_table_that_is_not_an_object_is_a_fault(
    folder: Path, content: bytes
) -> None:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "tensors.json").write_text(json.dumps(manifest.pop("tensors")), encoding="utf-8")
    manifest["tensorsFile"] = "tensors.json"
    write_manifest(folder, manifest)
    assert validate(folder).ok()
    (folder / "tensors.json").write_bytes(content)
    report = validate(folder)
    assert not report.ok()


@pytest.mark.parametrize(
    ("prepare", "kind", "words"),
    [
        (Path, StoreError, "no such path"),
        (lambda path: path.mkdir(), ManifestError, "no manifest.json"),
        (lambda path: _checkpoint(path), ManifestError, "rdrr convert"),
        (lambda path: path.write_bytes(b"GGUF\3\0\0\0"), ManifestError, "a GGUF file"),
    ],
    ids=["missing", "empty", "checkpoint", "gguf"],
)
def test_a_path_that_is_not_a_package_is_an_error_of_one_line(
    tmp_path: Path, prepare: Callable[[Path], object], kind: type[RdrrError], words: str
) -> None:
    path = tmp_path / "thing"
    prepare(path)
    with pytest.raises(kind) as caught:
        open_package(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def _checkpoint(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}", encoding="utf-8")


def test_validating_a_file_that_is_not_a_manifest_reports_a_fault(tmp_path: Path) -> None:
    report = validate(tmp_path)
    assert [fault.rule for fault in report.errors] == ["not-rdrr"]
    assert report.model_id is None
    with pytest.raises(StoreError):
        validate(tmp_path / "nowhere")


def test_a_package_is_read_through_a_url(folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe_file(f"/{folder.parent.name}/{path.name}", path.read_bytes())
    url = f"memory://{folder.parent.name}"
    try:
        report = validate(url, deep=True, strict=True)
        assert report.ok(), [fault.line() for fault in report.faults]
        remote, local = open_package(url), open_package(folder)
        np.testing.assert_array_equal(remote.read(UP), local.read(UP))
        assert remote.tokenizer_path is None
        assert remote.tokenizer_bytes() == TOKENIZER.encode()
        assert validate(f"{url}/manifest.json").level == "structure"
        with pytest.raises(RdrrError):
            open_package(f"{url}/nowhere")
    finally:
        memory.rm(f"/{folder.parent.name}", recursive=True)
