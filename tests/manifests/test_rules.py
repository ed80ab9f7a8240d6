"""Each rule finds the fault it is for, and nothing in a valid manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rdrr_manifests.models import Processor
from rdrr_manifests.rules import STRUCTURE, examine
from rdrr_manifests.rules.files import DEEP, FILES
from support.images import GEMMA3, GEMMA4, IDEFICS3, QWEN, SEES_VIDEOS, VIDEO
from support.manifest_changes import (
    EMBED,
    NORM,
    Q0,
    both,
    copy_entry,
    drop,
    foreign,
    put,
    rename,
    scaling,
)
from support.manifests import VOCAB, spoiled, valid_manifest
from support.towers import manifest_with_tower


@dataclass(frozen=True)
class Case:
    """A change to a valid manifest and the rules it breaks, the one under test first."""

    rule: str
    change: Callable[[dict[str, Any]], object]
    field: str
    severity: str = "error"
    also: frozenset[str] = frozenset()
    base: Callable[[], dict[str, Any]] = valid_manifest


def case(rule: str, field: str, change: Any, *also: str, severity: str = "error") -> Case:
    return Case(rule, change, field, severity, frozenset(also))


def tower(rule: str, path: str, value: Any, *also: str) -> Case:
    """Return a change of a field in a manifest with a vision tower."""
    return Case(rule, put(path, value), path, also=frozenset(also), base=manifest_with_tower)


PATCH_WEIGHT = "visual.patch_embed.weight"
PROCESSOR = QWEN.model_dump(mode="json")
TILED = IDEFICS3.model_dump(mode="json")
OF_VIDEOS = VIDEO.model_dump(mode="json")

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
    # By one byte: the tensor fills the rest of shard 2 from byte 5888 on.
    case("tensor-bounds", f'tensors["{NORM}"]', put(f"tensors/{NORM}/offset", 5889)),
    case("tensor-overlap", f'tensors["{NORM}"]', put(f"tensors/{NORM}/offset", 5887)),
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
    *(
        case("processor-sizes", f"processor.{field}", put("processor", {**PROCESSOR, **changes}))
        for field, changes in (
            ("maxPixels", {"maxPixels": None}),
            ("maxPixels", {"maxPixels": 4095}),
            ("maxPixels", {"maxPixels": 1000, "minPixels": 900}),
            ("width", {"sizing": "fixed", "height": 128}),
            ("width", {"sizing": "fixed", "height": 128, "width": 130}),
            ("height", {"sizing": "fixed", "height": 32_000, "width": 32_000}),
            ("maxTokens", {"sizing": "token_budget"}),
            ("maxTokens", {"sizing": "token_budget", "maxTokens": 65_537}),
        )
    ),
    *(
        case("processor-sizes", f"processor.{field}", put("processor", {**TILED, **changes}))
        for field, changes in (
            ("tiles", {"tiles": None}),
            ("height", {"height": None}),
            ("height", {"height": 57}),
            ("tiles.longestSide", {"height": 16_800, "tiles": {"longestSide": 4096}}),
        )
    ),
    *(
        case(
            "processor-sizes",
            f"processor.{field}",
            put("processor", {**PROCESSOR, **more, "video": {**OF_VIDEOS, **changes}}),
        )
        for field, more, changes in (
            ("video.maxFrames", {}, {"maxFrames": 3}),
            ("video.maxPixels", {}, {"maxPixels": 4095}),
            ("video.maxPixels", {}, {"minPixels": 1, "maxPixels": 1023}),
            ("sizing", {"sizing": "fixed", "height": 128, "width": 128}, {}),
        )
    ),
    case(
        "schema",
        "processor.tiles.longestSide",
        put("processor", {**TILED, "tiles": {"longestSide": 5000}}),
    ),
    case("schema", "processor.patchSize", put("processor", {**PROCESSOR, "patchSize": 0})),
    case("schema", "processor.sizing", put("processor", {**PROCESSOR, "sizing": "own"})),
    tower("vision-sizes", "vision.hiddenSize", 30),
    tower("vision-sizes", "vision.taps", [2]),
    tower("vision-sizes", "vision.taps", [1, 0]),
    tower("vision-sizes", "vision.taps", [0, 0]),
    tower("vision-agreement", "vision.outputSize", 32, "vision-tensors"),
    tower("vision-agreement", "vision.patchInputs", 768, "vision-tensors"),
    tower("vision-agreement", "vision.mergeSize", 1, "vision-tensors"),
    tower("vision-agreement", "processor.patchOrder", "raster"),
    tower("vision-tensors", "vision.numLayers", 1_000_000_000),
    Case(
        "vision-tensors",
        drop(f"tensors/{PATCH_WEIGHT}/"),
        f'tensors["{PATCH_WEIGHT}"]',
        base=manifest_with_tower,
    ),
    Case(
        "vision-tensors",
        put("vision.taps", [0, 1]),
        'tensors["visual.taps.1.norm.weight"]',
        base=manifest_with_tower,
    ),
    tower("schema", "vision.activation", "tanh"),
    tower("schema", "vision.merger", "sum"),
    tower("schema", "vision.positionSampling", "bicubic"),
    tower("schema", "vision.ropeTheta", 0),
    Case(
        "vision-tensors",
        put("vision.merger", "linear"),
        'tensors["visual.taps.0.proj.weight"]',
        base=manifest_with_tower,
    ),
    tower("schema", "vision.numAttentionHeads", 0),
    tower("schema", "vision.positionGrid", 1 << 20),
    Case("schema", put("vision.taps", [-1]), "vision.taps[0]", base=manifest_with_tower),
)


def ids(case: Case) -> str:
    return f"{case.rule}:{case.field}"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_changed_manifest_breaks_this_rule_and_no_unexpected_one(case: Case) -> None:
    faults = examine(spoiled(case.change, case.base())).faults
    lines = "\n".join(fault.line() for fault in faults)
    matching = [fault for fault in faults if fault.rule == case.rule and fault.field == case.field]
    assert matching, f"{case.rule} found nothing at {case.field}:\n{lines}"
    assert {fault.severity for fault in matching} == {case.severity}, lines
    assert {fault.rule for fault in faults} == {case.rule} | case.also, lines


@pytest.mark.parametrize("layout", ["row", "column"])
def test_a_valid_manifest_breaks_no_rule(layout: str) -> None:
    manifest = valid_manifest(layout=layout)
    manifest["weightsTransposed"] = layout == "column"
    assert [fault.line() for fault in examine(manifest).faults] == []


@pytest.mark.parametrize("processor", [QWEN, SEES_VIDEOS, GEMMA3, GEMMA4, IDEFICS3])
def test_a_manifest_with_a_recipe_for_images_breaks_no_rule(processor: Processor) -> None:
    manifest = valid_manifest() | {"processor": processor.model_dump(mode="json")}
    assert [fault.line() for fault in examine(manifest).faults] == []


def test_a_manifest_with_a_vision_tower_breaks_no_rule() -> None:
    assert [fault.line() for fault in examine(manifest_with_tower()).faults] == []


def test_a_small_tensor_within_a_large_one_does_not_hide_the_next() -> None:
    manifest = valid_manifest()
    large = manifest["tensors"][Q0]
    for index, name in enumerate(("first", "second")):
        place = {"shard": large["shard"], "offset": large["offset"] + 100 + 300 * index}
        manifest["tensors"][name] = manifest["tensors"][NORM] | place
    overlaps = [fault for fault in examine(manifest).faults if fault.rule == "tensor-overlap"]
    assert {fault.field for fault in overlaps} == {'tensors["first"]', 'tensors["second"]'}


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert {rule.id for rule in STRUCTURE} - {case.rule for case in CASES} == set()


def test_every_rule_is_in_the_specification() -> None:
    text = (Path(__file__).parents[2] / "docs" / "SPEC.md").read_text(encoding="utf-8")
    stated = set(re.findall(r"`([a-z-]+)`", text))
    names = {rule.id for rule in (*STRUCTURE, *FILES, *DEEP)} | {case.rule for case in CASES}
    assert names - stated == set()


def test_rule_ids_are_unique() -> None:
    names = [rule.id for rule in STRUCTURE]
    assert len(names) == len(set(names))
