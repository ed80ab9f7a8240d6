"""A manifest is changed and saved from Python, and JSON has one name for each field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rdrr_format.errors import StoreError, UsageError
from rdrr_manifests.models import Manifest
from rdrr_manifests.rules.schema import parse
from rdrr_manifests.schema import manifest_schema, report_schema
from support.manifests import valid_manifest


@pytest.fixture
def manifest() -> Manifest:
    return Manifest.model_validate(valid_manifest())


def test_a_change_keeps_all_other_fields(manifest):
    changed = manifest.with_(
        model_id="mine", optimizations={"kernel_hints": {"f16_matmul": "gemv"}}
    )
    assert changed.model_id == "mine"
    assert changed.kernel_hints.f16_matmul == "gemv"
    before, after = manifest.to_dict(), changed.to_dict()
    before["modelId"] = "mine"
    before["optimizations"]["kernelHints"]["f16Matmul"] = "gemv"
    assert after == before
    assert manifest.model_id != "mine"


def test_a_block_changes_as_a_whole_or_by_its_own_fields(manifest):
    attention = manifest.inference.attention.with_(sliding_window=64)
    whole = manifest.with_(inference=manifest.inference.with_(attention=attention))
    assert whole == manifest.with_(inference={"attention": {"sliding_window": 64}})
    assert whole.inference.attention.sliding_window == 64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modelid": "mine"}, "did you mean model_id"),
        ({"nothing_like_it": 1}, "it has version, model_id"),
        ({"architecture": {"head_dims": 8}}, "did you mean head_dim"),
        ({"architecture": {"head_dim": 0}}, "headDim.*greater than 0.*found 0"),
        ({"eos_token_id": "two"}, "eos_token_id"),
        ({"model_id": 5}, r"modelId: .*\(expected a valid string, found 5\)"),
    ],
)
def test_a_wrong_change_is_wrong_usage(manifest, changes, words):
    with pytest.raises(UsageError, match=words):
        manifest.with_(**changes)


def test_it_is_saved_in_a_file_or_in_the_folder_of_a_package(manifest, tmp_path):
    manifest.save(tmp_path)
    manifest.save(tmp_path / "copy.json")
    text = (tmp_path / "manifest.json").read_text(encoding="utf-8")
    assert text == (tmp_path / "copy.json").read_text(encoding="utf-8") == manifest.to_json()
    with pytest.raises(StoreError):
        manifest.save(tmp_path / "no-such-folder" / "manifest.json")


def test_json_has_the_names_of_the_schema_and_is_read_back(manifest):
    text = manifest.model_dump_json()
    assert json.loads(text).keys() <= manifest_schema()["properties"].keys()
    assert "headDim" in json.loads(text)["architecture"]
    assert Manifest.model_validate_json(text) == manifest


def with_second_spelling(path: tuple[str, ...], name: str, spelled: str) -> dict[str, Any]:
    """Return a valid manifest in which one field is given by its name in Python."""
    data = valid_manifest()
    block: Any = data
    for key in path:
        block = block[key]
    block[spelled] = block.pop(name, None)
    return data


@pytest.mark.parametrize(
    ("path", "name", "spelled"),
    [
        ((), "weightsTransposed", "weights_transposed"),
        (("inference", "attention"), "slidingWindow", "sliding_window"),
        (("tokenizer",), "bosTokenId", "bos_token_id"),
    ],
)
def test_a_field_under_its_name_in_python_is_a_fault_of_a_file(path, name, spelled):
    (fault,) = parse(with_second_spelling(path, name, spelled)).faults
    assert (fault.rule, fault.severity) == ("schema", "error")
    assert fault.field == ".".join((*path, spelled))
    assert (fault.expected, fault.found) == (name, spelled)
    assert parse(with_second_spelling(path, name, name)).faults == ()  # the control


def test_a_required_field_under_its_name_in_python_is_missing():
    data = valid_manifest()
    data["model_id"] = data.pop("modelId")
    (fault,) = parse(data).faults
    assert (fault.field, fault.message) == ("modelId", "the field is missing")


def test_every_field_of_the_schemas_has_a_description_in_names_of_json():
    for schema in (manifest_schema(), report_schema()):
        for block in (schema, *schema["$defs"].values()):
            assert "Attributes:" not in block["description"]
            for name, field in block["properties"].items():
                assert field.get("description"), name
    rope = manifest_schema()["$defs"]["Rope"]["properties"]
    assert "`partialRotaryFactor`" in rope["ropeFrequencyBaseDim"]["description"]
    assert "null" in rope["ropeLocalTheta"]["description"]
