"""Published manifests of other writers, cut down to a few layers, are read as expected."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rdrr_format.errors import ManifestError
from rdrr_manifests.package import open_package, validate

DATA = Path(__file__).parents[1] / "data" / "manifests"


@pytest.mark.parametrize(
    "name", ["gemma-3-270m-it-q4k-ehf16-af32.json", "qwen-3-embedding-0-6b-q4k-ehf16-af32.json"]
)
def test_a_current_manifest_is_valid_without_a_warning_and_has_a_graph(name: str) -> None:
    report = validate(DATA / name, strict=True)
    assert report.ok(), [fault.line() for fault in report.faults]
    assert (report.level, report.generation, report.runnable) == ("structure", "current", True)


def test_flat_tensors_are_recognised_by_size_and_an_unknown_model_is_not_runnable() -> None:
    report = validate(DATA / "lfm2-5-1-2b-instruct-q4k-ehf16-af32.json")
    assert report.ok()
    assert not report.runnable
    assert {fault.rule for fault in report.warnings} == {"graph-support", "tensor-flags"}


def test_each_missing_late_field_gets_its_default_and_a_warning() -> None:
    report = validate(DATA / "gemma-3-1b-it-q4k-ehf16-af32.json")
    assert report.ok()
    assert report.runnable
    assert [fault.rule for fault in report.warnings] == ["late-field"] * 3
    assert not report.ok(strict=True)


def test_the_smallest_accepted_set_of_fields_is_valid() -> None:
    report = validate(DATA / "minimal-current.json")
    assert report.ok(), [fault.line() for fault in report.errors]
    assert not report.runnable, "it has one norm and no other layer tensor"


def test_the_package_of_december_is_valid_including_its_hash(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    manifest = json.loads((DATA / "tiny-model-dec2025" / "manifest.json").read_text())
    shard = manifest["shards"][0]
    weights = rng.normal(size=shard["size"] // 4).astype("<f4").tobytes()
    (tmp_path / shard["fileName"]).write_bytes(weights)
    shard["hash"] = hashlib.sha256(weights).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    report = validate(tmp_path, deep=True)
    assert report.ok(), [fault.line() for fault in report.errors]
    assert (report.level, report.generation) == ("deep", "2025-12")
    package = open_package(tmp_path)
    assert package.dequantize("lm_head.weight").shape == (1000, 64)
    with pytest.raises(ManifestError, match="not runnable here"):
        _ = package.graph


def test_the_package_of_january_is_refused_only_for_its_placeholder_hash(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    folder = tmp_path / "mini"
    shutil.copytree(DATA / "mini-model-jan2026", folder)
    weights = rng.normal(size=337152 // 4).astype("<f4").tobytes()
    (folder / "shard-0.bin").write_bytes(weights)
    report = validate(folder, deep=True)
    assert [(f.rule, f.field) for f in report.errors] == [("shard-hash-form", "shards[0].hash")]
    assert "placeholder" in report.errors[0].line()
    # The control: with the right hash it is valid and has a graph. Its tokenizer is a bare
    # vocabulary, with which text cannot be encoded.
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][0]["hash"] = hashlib.sha256(weights).hexdigest()
    path.write_text(json.dumps(manifest))
    assert validate(folder, strict=True).ok()
    report = validate(folder, deep=True)
    assert report.ok()
    assert [(f.rule, f.severity) for f in report.faults] == [("tokenizer-content", "warning")]
    assert open_package(folder).graph.layers == 2


def test_a_bare_manifest_without_its_tensor_table_gives_a_warning(
    tmp_path: Path,
) -> None:
    shutil.copy(DATA / "mini-model-jan2026" / "manifest.json", tmp_path / "alone.json")
    report = validate(tmp_path / "alone.json")
    assert [fault.rule for fault in report.warnings] == ["tensor-list"]
    assert [fault.rule for fault in report.errors] == ["shard-hash-form"]
