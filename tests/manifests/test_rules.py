"""Each rule finds the fault it is for, and nothing in a valid manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rdrr_manifests.faults import Fault
from rdrr_manifests.rules import STRUCTURE, examine
from rdrr_manifests.rules.files import DEEP, FILES
from support.manifests import VOCAB, spoiled, valid_manifest

Q0 = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
EMBED = "model.embed_tokens.weight"


@dataclass(frozen=True)
class Case:
    """A change to a valid manifest and the rules it breaks, the one under test first."""

    rule: str
    change: Callable[[dict[str, Any]], object]
    field: str
    severity: str = "error"
    also: frozenset[str] = frozenset()


def case(rule: str, field: str, change: Any, *also: str, severity: str = "error") -> Case:
    return Case(rule, change, field, severity, frozenset(also))


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets `a.b[0].c`; the name of a tensor is enclosed in slashes."""

    def change(manifest: dict[str, Any]) -> None:
        *parents, last = _steps(path)
        target: Any = manifest
        for step in parents:
            target = target[step]
        target[last] = value

    return change


def drop(path: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        *parents, last = _steps(path)
        target: Any = manifest
        for step in parents:
            target = target[step]
        del target[last]

    return change


def _steps(path: str) -> list[Any]:
    found = re.findall(r"/([^/]+)/|\[(\d+)\]|([^./\[\]]+)", path)
    return [name or (int(index) if index else key) for name, index, key in found]


def both(*changes: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for one in changes:
            one(manifest)

    return change


def copy_entry(source: str, target: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that adds a second tensor with the bytes of another."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"][target] = dict(manifest["tensors"][source])

    return change


def rename(source: str, target: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"][target] = manifest["tensors"].pop(source)

    return change


def foreign(manifest: dict[str, Any]) -> None:
    """Change the manifest so that it seems to come from another writer."""
    manifest["conversion"] = None


def scaling(**fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["inference"]["rope"].update(fields)

    return change


CASES = (
    case("version", "version", put("version", 0)),
    case("version", "version", put("version", 3)),
    case("version", "version", put("version", 2), severity="warning"),
    case("model-id", "modelId", put("modelId", "Tiny Llama")),
    case("model-id", "modelId", put("modelId", "x" * 65)),
    case("model-id", "modelId", put("modelId", "")),
    case(
        "model-id",
        "modelId",
        both(foreign, put("modelId", "Tiny Llama")),
        severity="warning",
    ),
    case("hash-algorithm", "hashAlgorithm", put("hashAlgorithm", "md5")),
    case(
        "hash-algorithm",
        "shards[0].hashAlgorithm",
        put("shards[0].hashAlgorithm", "blake3"),
    ),
    case("eos-token", "eos_token_id", put("eos_token_id", VOCAB)),
    case("eos-token", "eos_token_id", put("eos_token_id", [1, -1])),
    case("eos-token", "eos_token_id", drop("eos_token_id"), severity="warning"),
    case(
        "tokenizer-vocabulary",
        "tokenizer.vocabSize",
        put("tokenizer.vocabSize", VOCAB + 1),
        severity="warning",
    ),
    case("tokenizer-vocabulary", "tokenizer", drop("tokenizer"), severity="warning"),
    case(
        "quantization-layout",
        "quantizationInfo.layout",
        put("quantizationInfo.layout", "diagonal"),
    ),
    case(
        "quantization-layout",
        "quantizationInfo.layout",
        put("quantizationInfo.layout", "flat"),
        severity="warning",
    ),
    case(
        "quantization-layout",
        "quantizationInfo.layout",
        both(
            drop("quantizationInfo.layout"),
            put(f"tensors/{Q0}/dtype", "Q4_K_M"),
            put(f"tensors/{Q0}/size", 64 * 144),
        ),
        "tensor-overlap",
    ),
    case("experts", "moeConfig.numExperts", put("moeConfig", {"numExperts": 0}), "graph-support"),
    case(
        "experts",
        "moeConfig.numExpertsPerToken",
        put("moeConfig", {"numExperts": 4, "numExpertsPerToken": 5}),
        "graph-support",
    ),
    case("groups", "groups.embed.shards", put("groups", {"embed": {"shards": [9]}})),
    case("groups", "groups.embed.tensors", put("groups", {"embed": {"tensors": ["nobody"]}})),
    case("groups", "groups.embed", put("groups", {"embed": 7})),
    case("tensor-count", "tensorCount", put("tensorCount", 3)),
    case(
        "tensor-role",
        f'tensors["{NORM}"].role',
        drop(f"tensors/{NORM}/role"),
        severity="warning",
    ),
    case("shard-list", "shards", put("shards", []), "total-size", "tensor-bounds"),
    case("shard-index", "shards[1].index", put("shards[1].index", 0)),
    case("shard-size", "shards[2].size", put("shards[2].size", 0), "total-size", "tensor-bounds"),
    case("shard-offset", "shards[1].offset", put("shards[1].offset", 5)),
    case("total-size", "totalSize", put("totalSize", 1)),
    *(
        case("shard-name", "shards[0].filename", put("shards[0].filename", name))
        for name in ("../../etc/passwd", "/etc/passwd", "..", "", "a\\b", "C:x", "a\x00b", "~x")
    ),
    case(
        "shard-name-unique",
        "shards[1].filename",
        put("shards[1].filename", "SHARD_00000.bin"),
    ),
    case("shard-compression", "shards[0].compression", put("shards[0].compression", "lzma")),
    case(
        "shard-compression",
        "shards[0].uncompressedSize",
        put("shards[0].compression", "zstd"),
    ),
    case(
        "shard-compression",
        "shards[0].uncompressedSize",
        put("shards[0].uncompressedSize", 40_000),
    ),
    case("shard-hash-form", "shards[0].hash", put("shards[0].hash", "fixture-placeholder")),
    case("shard-hash-form", "shards[0].hash", put("shards[0].hash", "z" * 64)),
    case("shard-hash-form", "shards[0].hash", put("shards[0].hash", "a" * 63)),
    case("shard-hash-form", "shards[0].hash", put("shards[0].hash", "0" * 64), severity="warning"),
    case("tensor-list", "tensors", put("tensors", {}), "graph-support", "norm-flags"),
    case(
        "tensor-shape",
        f'tensors["{NORM}"].shape',
        put(f"tensors/{NORM}/shape", [0]),
        "graph-shapes",
    ),
    case(
        "tensor-shape",
        f'tensors["{NORM}"].shape',
        put(f"tensors/{NORM}/shape", [-64]),
        "graph-shapes",
    ),
    case(
        "tensor-dtype",
        f'tensors["{NORM}"].dtype',
        put(f"tensors/{NORM}/dtype", "Q9_Z"),
        "graph-types",
    ),
    case(
        "tensor-dtype",
        f'tensors["{Q0}"].dtype',
        put(f"tensors/{Q0}/dtype", "W4A16"),
        "graph-types",
        severity="warning",
    ),
    case(
        "graph-types",
        "tensors",
        put(f"tensors/{Q0}/sourceTransform", {"kind": "a", "sourceDtype": "INT3"}),
        "tensor-dtype",
        severity="warning",
    ),
    case("tensor-layout", f'tensors["{Q0}"].layout', put(f"tensors/{Q0}/layout", "diagonal")),
    case("tensor-layout", f'tensors["{NORM}"].layout', put(f"tensors/{NORM}/layout", "column")),
    case("tensor-size", f'tensors["{NORM}"].size', put(f"tensors/{NORM}/size", 255)),
    case("tensor-place", f'tensors["{NORM}"].offset', drop(f"tensors/{NORM}/offset")),
    case("tensor-place", f'tensors["{NORM}"].shard', drop(f"tensors/{NORM}/shard")),
    case(
        "tensor-spans",
        f'tensors["{NORM}"].spans',
        put(f"tensors/{NORM}/spans", [{"shardIndex": 2, "offset": 0, "size": 8}]),
        "tensor-overlap",
    ),
    case("tensor-bounds", f'tensors["{NORM}"]', put(f"tensors/{NORM}/offset", 10**9)),
    case("tensor-bounds", f'tensors["{NORM}"]', put(f"tensors/{NORM}/shard", 3)),
    case("tensor-bounds", f'tensors["{NORM}"]', put(f"tensors/{NORM}/shard", -1)),
    case(
        "tensor-overlap",
        'tensors["spare.weight"]',
        copy_entry(NORM, "spare.weight"),
    ),
    case(
        "original-shape",
        f'tensors["{NORM}"].originalShape',
        put(f"tensors/{NORM}/originalShape", [63]),
    ),
    case(
        "weights-transposed",
        f'tensors["{Q0}"].layout',
        put("weightsTransposed", True),
    ),
    case(
        "attention-heads",
        "architecture.numKeyValueHeads",
        put("architecture.numKeyValueHeads", 3),
        "graph-shapes",
    ),
    case(
        "rotary-dim",
        "inference.rope.partialRotaryFactor",
        put("inference.rope.partialRotaryFactor", 0.2),
    ),
    case(
        "layer-pattern",
        "inference.layerPattern.layerTypes",
        put("inference.layerPattern", {"type": "custom", "layerTypes": ["full_attention"]}),
        "graph-support",
        "late-field",
    ),
    case(
        "layer-pattern",
        "inference.layerPattern.layerTypes",
        put("inference.layerPattern.type", "custom"),
    ),
    case(
        "layer-pattern",
        "inference.layerPattern.period",
        put("inference.layerPattern.type", "every_n"),
    ),
    case(
        "layer-pattern",
        "inference.layerPattern.offset",
        put(
            "inference.layerPattern",
            {"type": "every_n", "period": 2, "offset": 2, "residualBranchScale": 1},
        ),
    ),
    case(
        "layer-pattern",
        "inference.layerPattern.globalPattern",
        put("inference.layerPattern.type", "alternating"),
    ),
    case(
        "rope-scaling",
        "inference.rope.llama3OriginalMaxPos",
        scaling(ropeScalingType="llama3", llama3LowFreqFactor=1, llama3HighFreqFactor=4),
    ),
    case(
        "rope-scaling",
        "inference.rope.llama3HighFreqFactor",
        scaling(
            ropeScalingType="llama3",
            llama3LowFreqFactor=4,
            llama3HighFreqFactor=4,
            llama3OriginalMaxPos=64,
        ),
    ),
    case("rope-scaling", "inference.rope.yarnOriginalMaxPos", scaling(ropeScalingType="yarn")),
    case(
        "rope-scaling",
        "inference.rope.longropeLongFactor",
        scaling(
            ropeScalingType="longrope",
            longropeShortFactor=[1.0] * 8,
            longropeLongFactor=[1.0] * 7,
            longropeOriginalMaxPos=64,
        ),
    ),
    case(
        "attention-scale",
        "inference.attention.queryPreAttnScalar",
        put("inference.attention.queryPreAttnScalar", 4),
        severity="warning",
    ),
    case(
        "graph-support",
        "inference.ffn.activation",
        put("inference.ffn.activation", "mish"),
        severity="warning",
    ),
    case(
        "graph-support",
        "architecture.linearNormMode",
        put("architecture.linearNormMode", "per_head"),
        severity="warning",
    ),
    case("graph-weights", f'tensors["{NORM}"]', drop(f"tensors/{NORM}/")),
    case("graph-weights", f'tensors["{Q0}"]', both(foreign, drop(f"tensors/{Q0}/"))),
    case(
        "graph-shapes",
        f'tensors["{NORM}"].shape',
        both(put(f"tensors/{NORM}/shape", [32]), put(f"tensors/{NORM}/size", 128)),
    ),
    case(
        "graph-unused",
        "tensors",
        rename(EMBED, "model.layers.0.self_attn.unheard"),
        "graph-weights",
        severity="warning",
    ),
    case(
        "graph-mtp",
        'tensors["mtp.pre_fc_norm_embedding.weight"]',
        copy_entry(NORM, "mtp.fc.weight"),
        "tensor-overlap",
        severity="warning",
    ),
    case(
        "layer-count",
        "architecture.numLayers",
        put("architecture.numLayers", 3),
        "graph-weights",
    ),
    case("layer-count", "architecture.numLayers", put("architecture.numLayers", 1)),
    case(
        "norm-flags",
        "inference.normalization.postAttentionNorm",
        put("inference.normalization.postAttentionNorm", False),
    ),
    case(
        "norm-flags",
        "inference.normalization.postFeedforwardNorm",
        put("inference.normalization.postFeedforwardNorm", True),
        "graph-weights",
    ),
    case(
        "tensor-flags",
        "inference.output.tieWordEmbeddings",
        put("inference.output.tieWordEmbeddings", False),
        severity="warning",
    ),
    case(
        "tensor-flags",
        "inference.attention.attentionBias",
        put("inference.attention.attentionBias", True),
        severity="warning",
    ),
    case(
        "tensor-flags",
        "inference.attention.queryKeyNorm",
        put("inference.attention.queryKeyNorm", True),
        "graph-weights",
        severity="warning",
    ),
    case(
        "hint-key",
        "optimizations.kernelHints.warpSpeed",
        put("optimizations.kernelHints.warpSpeed", 9),
        severity="warning",
    ),
    case(
        "hint-value",
        "optimizations.kernelHints.q4kMatmul",
        put("optimizations.kernelHints.q4kMatmul", "fast"),
    ),
    case("schema", "architecture.hiddenSize", put("architecture.hiddenSize", "64")),
    case("schema", "architecture.numLayers", drop("architecture.numLayers")),
    case("schema", "inference.rope.ropeTheta", put("inference.rope.ropeTheta", -1.0)),
    case("schema", "inference", put("inference", 3)),
    case("schema", "shards[0].size", put("shards[0].size", -4)),
    case("schema", "shards[0].hash", drop("shards[0].hash")),
    case("schema", "tensors", put("tensors", [])),
    case("schema", f'tensors["{NORM}"].dtype', drop(f"tensors/{NORM}/dtype")),
    case("schema", f'tensors["{NORM}"].shape[0]', put(f"tensors/{NORM}/shape[0]", 1.5)),
    case("schema", "eos_token_id", put("eos_token_id", "two")),
    case("schema", "version", put("version", "one")),
    case("schema", "totalSize", drop("totalSize")),
    case(
        "late-field",
        "inference.output.logitInputScale",
        drop("inference.output.logitInputScale"),
        severity="warning",
    ),
)


def ids(one: Case) -> str:
    return f"{one.rule}:{one.field}"


@pytest.mark.parametrize("one", CASES, ids=ids)
def test_a_changed_manifest_breaks_this_rule_and_no_unexpected_one(one: Case) -> None:
    faults = examine(spoiled(one.change)).faults
    lines = "\n".join(fault.line() for fault in faults)
    matching = [fault for fault in faults if fault.rule == one.rule and fault.field == one.field]
    assert matching, f"{one.rule} found nothing at {one.field}:\n{lines}"
    assert {fault.severity for fault in matching} == {one.severity}, lines
    assert {fault.rule for fault in faults} == {one.rule} | one.also, lines


@pytest.mark.parametrize("layout", ["row", "column"])
def test_a_valid_manifest_breaks_no_rule(layout: str) -> None:
    manifest = valid_manifest(layout=layout)
    manifest["weightsTransposed"] = layout == "column"
    assert [fault.line() for fault in examine(manifest).faults] == []


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert {rule.id for rule in STRUCTURE} - {one.rule for one in CASES} == set()


def test_every_rule_is_in_the_specification() -> None:
    text = (Path(__file__).parents[2] / "docs" / "SPEC.md").read_text(encoding="utf-8")
    stated = set(re.findall(r"`([a-z-]+)`", text))
    names = {rule.id for rule in (*STRUCTURE, *FILES, *DEEP)} | {one.rule for one in CASES}
    assert names - stated == set()


def test_rule_ids_are_unique() -> None:
    names = [rule.id for rule in STRUCTURE]
    assert len(names) == len(set(names))


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
    own = spoiled(without_queries)
    own["conversion"] = valid_manifest()["conversion"]
    assert {f.severity for f in examine(own).faults} == {"error"}


def test_unknown_top_level_keys_are_kept_without_a_fault() -> None:
    examination = examine(spoiled(put("somethingNew", {"a": 1})))
    assert examination.faults == ()
    assert examination.manifest is not None
    assert examination.manifest.to_dict()["somethingNew"] == {"a": 1}


def test_a_manifest_survives_reading_and_writing() -> None:
    first = examine(valid_manifest()).manifest
    assert isinstance(first, object)
    assert first is not None
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
