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


def test_a_manifest_with_linear_attention_has_a_graph_with_states() -> None:
    report = validate(DATA / "qwen-3-5-0-8b-q4k-ehaf16.json")
    assert report.ok(), [fault.line() for fault in report.errors]
    assert report.runnable
    # The manifest says that the head is tied, and has a second copy of it in another type.
    assert [fault.rule for fault in report.warnings] == ["tensor-flags"]
    graph = open_package(DATA / "qwen-3-5-0-8b-q4k-ehaf16.json", bare=True).graph
    assert graph.states == ((4, 6144), (16, 128, 128)) * 3
    assert list(graph.caches) == [3]


def test_flat_tensors_are_recognised_by_size_and_names_of_lfm2_are_known() -> None:
    report = validate(DATA / "lfm2-5-1-2b-instruct-q4k-ehf16-af32.json", strict=True)
    assert report.ok(), [fault.line() for fault in report.faults]
    assert report.runnable
    graph = open_package(DATA / "lfm2-5-1-2b-instruct-q4k-ehf16-af32.json", bare=True).graph
    assert graph.states == ((3, 2048),) * 2, "the shape of the weight gives the number of taps"


def reasons(name: str) -> dict[str, str | None]:
    """Return why a valid manifest cannot run: the value that was found, by field."""
    report = validate(DATA / f"{name}.json")
    assert report.ok(), [fault.line() for fault in report.errors]
    assert not report.runnable
    return {
        fault.field: fault.found
        for fault in report.warnings
        if fault.message.startswith("not runnable here")
    }


def test_tensors_of_a_decoder_are_found_and_every_reason_not_to_run_has_its_value() -> None:
    stated = reasons("diffusiongemma-26b-a4b-it-q4k-ehf16-af16")
    assert stated["modelType"] == "diffusion_gemma"
    assert "'numExperts': 128" in (stated["moeConfig"] or "")
    assert len(stated) >= 2


def test_types_that_cannot_be_decoded_are_reasons_not_to_run() -> None:
    assert reasons("gemma-4-12b-it-text-w4a16-ct-ehf16-af16")["tensors"] == "W4A16"
    reason = reasons("gemma-4-e2b-it-q4k-ehf16-af16-int4ple")["tensors"]
    assert reason == "INT4, which sourceTransform litert_axis_dequant would expand"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"size": 167772161}, "167772160"),
        ({"sourceTransform": {"sourceDtype": "INT8"}}, "335544320"),
        ({"sourceTransform": {"sourceDtype": "INT4", "storageShape": [262144, 1281]}}, "167903232"),
        ({"sourceTransform": {"sourceDtype": "INT3"}}, None),
    ],
)
def test_the_size_of_a_transformed_tensor_is_that_of_its_integers(
    tmp_path: Path, change: dict[str, object], expected: str | None
) -> None:
    manifest = json.loads(
        (DATA / "gemma-4-e2b-it-q4k-ehf16-af16-int4ple.json").read_text(encoding="utf-8")
    )
    name = "model.language_model.embed_tokens_per_layer.weight"
    entry = manifest["tensors"][name]
    assert entry["sourceTransform"]["sourceDtype"] == "INT4"
    entry.update(change)
    entry["spans"] = [{**entry["spans"][0], "size": entry["size"]}]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    faults = [fault for fault in validate(path).faults if fault.rule == "tensor-size"]
    assert [fault.expected for fault in faults] == ([] if expected is None else [expected])


def test_a_bare_manifest_can_be_opened_without_its_files_if_asked() -> None:
    path = DATA / "gemma-4-12b-it-text-w4a16-ct-ehf16-af16.json"
    with pytest.raises(ManifestError, match="shard-file"):
        open_package(path)
    package = open_package(path, bare=True)
    assert not package.is_runnable
    assert "W4A16" in [fault.found for fault in package.obstacles]
    with pytest.raises(ManifestError, match=r"7 tensors of the model cannot be decoded .*W4A16"):
        _ = package.graph
    assert open_package(DATA / "gemma-3-270m-it-q4k-ehf16-af32.json", bare=True).obstacles == ()


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
    manifest = json.loads(
        (DATA / "tiny-model-dec2025" / "manifest.json").read_text(encoding="utf-8")
    )
    shard = manifest["shards"][0]
    weights = rng.normal(size=shard["size"] // 4).astype("<f4").tobytes()
    (tmp_path / shard["fileName"]).write_bytes(weights)
    shard["hash"] = hashlib.sha256(weights).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
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
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["shards"][0]["hash"] = hashlib.sha256(weights).hexdigest()
    path.write_text(json.dumps(manifest), encoding="utf-8")
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
