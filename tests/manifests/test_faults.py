"""What an examination reports: all faults together, one line each, and what it keeps."""

from __future__ import annotations

from typing import Any

from rdrr_manifests.faults import Fault
from rdrr_manifests.rules import examine
from support.manifest_changes import (
    NORM,
    Q0,
    both,
    drop,
    foreign,
    put,
)
from support.manifests import spoiled, valid_manifest


def test_all_faults_are_reported_together() -> None:
    changes = (
        put("modelId", "A B"),
        put("shards[0].hash", "placeholder"),
        put("totalSize", 1),
        put(f"tensors/{NORM}/size", 1),
        drop(f"tensors/{Q0}/dtype"),
        put("architecture.headDim", None),
        put("optimizations.kernelHints.q4kMatmul", "no"),
    )
    rules = {fault.rule for fault in examine(spoiled(both(*changes))).faults}
    assert rules >= {
        "model-id",
        "shard-hash-form",
        "total-size",
        "tensor-size",
        "schema",
        "hint-value",
    }


def test_a_fault_states_field_expected_and_found_on_one_line() -> None:
    faults = examine(spoiled(put(f"tensors/{NORM}/size", 255))).faults
    assert [fault.line() for fault in faults] == [
        'error [tensor-size] tensors["model.norm.weight"].size: not the size of F32 [64] in layout'
        " row (expected 256, found 255)"
    ]


def test_untrusted_text_is_escaped_and_shortened_for_the_terminal() -> None:
    faults = examine(spoiled(put("modelId", "\x1b[2Jgone\n" + "y" * 5000))).faults
    line = faults[0].line()
    assert line.isprintable()
    assert len(line) < 400


def test_a_part_that_no_layer_has_is_a_warning_unless_rdrr_wrote_the_package() -> None:
    def without_queries(manifest: dict[str, Any]) -> None:
        foreign(manifest)
        for layer in (0, 1):
            del manifest["tensors"][f"model.layers.{layer}.self_attn.q_proj.weight"]

    examination = examine(spoiled(without_queries))
    assert [(f.rule, f.severity) for f in examination.faults] == [("graph-weights", "warning")]
    assert not hasattr(examination.graph, "ops")
    # The control: in a package that rdrr wrote it is an error.
    converted = spoiled(without_queries)
    converted["conversion"] = valid_manifest()["conversion"]
    assert {f.severity for f in examine(converted).faults} == {"error"}


def test_unknown_top_level_keys_are_kept_without_a_fault() -> None:
    examination = examine(spoiled(put("somethingNew", {"a": 1})))
    assert examination.faults == ()
    assert examination.manifest.to_dict()["somethingNew"] == {"a": 1}


def test_a_manifest_survives_reading_and_writing() -> None:
    first = examine(valid_manifest()).manifest
    assert isinstance(first, object)
    again = examine(first.to_dict())
    assert again.faults == ()
    assert again.manifest == first


def test_the_json_of_a_fault_omits_fields_that_are_none() -> None:
    fault = Fault("a-rule", "error", "x.y", "wrong")
    assert fault.as_dict() == {
        "rule": "a-rule",
        "severity": "error",
        "field": "x.y",
        "message": "wrong",
    }
