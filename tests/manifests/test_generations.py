"""Older generations and spellings are translated into the current one, with notes and warnings."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from rdrr_manifests.generations import Generation, detect, normalize
from rdrr_manifests.graph import Graph
from rdrr_manifests.rules import Examination, examine
from support.manifests import HEAD_DIM, HIDDEN, INNER, LAYERS, VOCAB, valid_manifest


def december(**config: Any) -> dict[str, Any]:
    """Return the valid manifest as of December 2025: a raw configuration instead of blocks."""
    manifest = valid_manifest()
    for key in ("inference", "architecture", "quantizationInfo", "eos_token_id", "optimizations"):
        del manifest[key]
    manifest |= {
        "version": "1.0",
        "architecture": "LlamaForCausalLM",
        "config": {
            "num_hidden_layers": LAYERS,
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": VOCAB,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 20000.0,
            "eos_token_id": [2, 3],
        }
        | config,
    }
    for shard in manifest["shards"]:
        shard["fileName"] = shard.pop("filename")
        shard["hashAlgorithm"] = "sha256"
        del shard["offset"]
    for entry in manifest["tensors"].values():
        if "shard" in entry:
            entry["shardIndex"] = entry.pop("shard")
        del entry["role"]
    del manifest["hashAlgorithm"]
    return manifest


def january() -> dict[str, Any]:
    """Return the valid manifest as of January 2026: blocks without schema and session."""
    manifest = valid_manifest()
    del manifest["inference"]["schema"]
    manifest["inference"]["attention"]["queryPreAttnScalar"] = HEAD_DIM**0.5
    manifest["inference"]["normalization"]["postAttentionNorm"] = False
    manifest["inference"]["defaultKernelPath"] = "some-path"
    del manifest["quantizationInfo"]["layout"]
    return manifest


def examined(manifest: dict[str, Any]) -> Examination:
    before = copy.deepcopy(manifest)
    examination = examine(manifest)
    assert manifest == before, "the manifest that was given must not change"
    return examination


def test_generations_are_recognised_by_their_fields() -> None:
    assert detect(valid_manifest()) is Generation.CURRENT
    assert detect(january()) is Generation.JANUARY
    assert detect(december()) is Generation.DECEMBER
    nothing = valid_manifest()
    del nothing["inference"]
    assert detect(nothing) is Generation.CURRENT, "a current manifest that lost its blocks"


def test_a_december_manifest_is_read_without_a_fault_and_can_be_run() -> None:
    examination = examined(december())
    assert [fault.line() for fault in examination.faults] == []
    manifest = examination.manifest
    assert isinstance(examination.graph, Graph)
    assert manifest.version == 1
    assert manifest.architecture.head_dim == HIDDEN // 4
    assert manifest.inference.rope.rope_theta == 20000.0
    assert manifest.inference.normalization.rms_norm_eps == 1e-6
    assert manifest.eos_token_ids == (2, 3)
    assert manifest.hash_algorithm == "sha256"
    assert [shard.offset for shard in manifest.shards] == [0, 32768, 65536]


def test_a_december_and_a_current_manifest_give_the_same_graph() -> None:
    now = valid_manifest()
    now["inference"]["rope"]["ropeTheta"] = 20000.0
    now["inference"]["normalization"]["rmsNormEps"] = 1e-6
    assert examined(december()).graph == examined(now).graph


def test_every_translation_is_noted() -> None:
    notes = " ".join(examined(december()).normalized.notes)
    for word in ("version", "fileName", "offsets", "shardIndex", "LlamaForCausalLM", "inferred"):
        assert word in notes
    assert examined(valid_manifest()).normalized.notes == ()


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"numLayers": 2, "hiddenSize": 64, "numHeads": 4, "contextLength": 7}, "hand-written"),
        (
            {
                "llama.block_count": 2,
                "llama.embedding_length": 64,
                "llama.attention.head_count": 4,
                "llama.context_length": 7,
            },
            "of GGUF",
        ),
    ],
    ids=["hand-written", "gguf"],
)
def test_sizes_are_found_under_the_names_of_other_configurations(
    config: dict[str, Any], names: str
) -> None:
    manifest = december()
    manifest["config"] = config | {"vocabSize": VOCAB, "rms_norm_eps": 1e-6}
    sizes = normalize(manifest).data["architecture"]
    assert sizes["numLayers"] == 2, names
    assert sizes["maxSeqLen"] == 7
    assert sizes["intermediateSize"] == INNER, "taken from the tensors"


def test_a_nested_text_configuration_is_read() -> None:
    manifest = december()
    manifest["config"] = {"text_config": manifest["config"], "vision_config": {"hidden_size": 9}}
    assert examined(manifest).faults == ()


def test_settings_of_december_are_translated_into_the_blocks() -> None:
    manifest = december(
        scale_embeddings=True,
        rms_norm_weight_offset=True,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=16,
        sliding_window_pattern=6,
        rope_local_base_freq=1000.0,
        final_logit_softcapping=30.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    blocks = normalize(manifest).data["inference"]
    assert blocks["output"]["scaleEmbeddings"] is True
    assert blocks["normalization"]["rmsNormWeightOffset"] is True
    assert blocks["ffn"]["activation"] == "gelu"
    assert blocks["attention"]["slidingWindow"] == 16
    assert blocks["layerPattern"] == {
        "type": "every_n",
        "period": 6,
        "offset": 5,
        "residualBranchScale": 1.0,
    }
    assert (blocks["rope"]["ropeLocalTheta"], blocks["rope"]["ropeScalingFactor"]) == (1000, 8)
    assert blocks["output"]["finalLogitSoftcapping"] == 30


def test_a_sliding_window_that_is_disabled_is_none() -> None:
    on, off = (december(sliding_window=16, use_sliding_window=use) for use in (True, False))
    assert normalize(on).data["inference"]["attention"]["slidingWindow"] == 16
    assert normalize(off).data["inference"]["attention"]["slidingWindow"] is None


def test_a_package_without_blocks_and_with_unknown_tensors_is_valid_but_not_runnable() -> None:
    manifest = december()
    manifest["tensors"] = {
        name.replace("self_attn", "attention"): entry for name, entry in manifest["tensors"].items()
    }
    examination = examined(manifest)
    assert {fault.severity for fault in examination.faults} == {"warning"}
    assert not isinstance(examination.graph, Graph)


def test_the_query_scalar_of_january_is_squared() -> None:
    examination = examined(january())
    assert [fault.line() for fault in examination.faults] == []
    assert examination.manifest.inference.attention.query_pre_attn_scalar == HEAD_DIM
    assert examination.graph == examined(valid_manifest()).graph
    assert any("square root" in note for note in examination.normalized.notes)


def test_a_query_scalar_of_january_that_is_not_a_root_is_kept() -> None:
    manifest = january()
    manifest["inference"]["attention"]["queryPreAttnScalar"] = HEAD_DIM
    attention = normalize(manifest).data["inference"]["attention"]
    assert attention["queryPreAttnScalar"] == HEAD_DIM


def test_a_period_of_january_ends_with_its_global_layer() -> None:
    manifest = january()
    manifest["inference"]["layerPattern"] = {"type": "every_n", "period": 6}
    normalized = normalize(manifest)
    assert normalized.data["inference"]["layerPattern"]["offset"] == 5
    assert [fault.rule for fault in normalized.warnings] == ["layer-pattern"]


def test_a_period_of_gemma_with_offset_zero_ends_with_its_global_layer() -> None:
    manifest = january()
    manifest["inference"]["layerPattern"] = {"type": "every_n", "period": 6, "offset": 0}
    assert normalize(manifest).data["inference"]["layerPattern"]["offset"] == 0
    manifest["inference"]["presetId"] = "gemma3"
    normalized = normalize(manifest)
    assert normalized.data["inference"]["layerPattern"]["offset"] == 5
    assert [fault.rule for fault in normalized.warnings] == ["layer-pattern"]


@pytest.mark.parametrize(
    ("fields", "generation"),
    [
        ({"schema": "doppler.execution/v1"}, Generation.CURRENT),
        ({"schema": None}, Generation.CURRENT),
        ({"schema": None, "session": {}, "presetId": "x"}, Generation.CURRENT),
        ({"schema": "doppler.execution/v0", "execution": {"steps": []}}, Generation.JANUARY),
        ({"schema": None, "presetId": "gemma3"}, Generation.JANUARY),
        ({}, Generation.JANUARY),
    ],
)
def test_blocks_of_the_weeks_after_january_belong_to_january(
    fields: dict[str, Any], generation: Generation
) -> None:
    manifest = valid_manifest()
    del manifest["inference"]["schema"]
    manifest["inference"] |= fields
    assert detect(manifest) is generation


def test_an_external_tensor_table_replaces_the_inline_one() -> None:
    manifest = january()
    tensors = manifest.pop("tensors")
    manifest["tensorsFile"] = "tensors.json"
    for table in (tensors, {"tensors": tensors}):
        examination = examine(manifest, external_tensors=table)
        assert examination.faults == ()
        assert len(examination.manifest.tensors) == len(tensors)


def test_a_tensor_table_that_is_not_available_is_a_warning() -> None:
    manifest = january()
    del manifest["tensors"]
    manifest["tensorsFile"] = "tensors.json"
    faults = examine(manifest, has_tensors=False).faults
    assert ("tensor-list", "warning") in {(fault.rule, fault.severity) for fault in faults}
    assert {fault.severity for fault in faults} == {"warning"}


def test_shard_of_a_span_and_blake3_of_a_shard_are_translated() -> None:
    manifest = valid_manifest()
    spanned = next(entry for entry in manifest["tensors"].values() if "spans" in entry)
    for span in spanned["spans"]:
        span["shard"] = span.pop("shardIndex")
    for shard in manifest["shards"]:
        shard["blake3"] = shard.pop("hash")
    assert examined(manifest).faults == ()


def test_the_field_blake3_is_used_only_with_hash_algorithm_blake3() -> None:
    manifest = valid_manifest()
    manifest["shards"][0]["blake3"] = "b" * 64
    assert normalize(manifest).data["shards"][0]["hash"] != "b" * 64
    manifest["hashAlgorithm"] = "blake3"
    assert normalize(manifest).data["shards"][0]["hash"] == "b" * 64


@pytest.mark.parametrize("stated", ["column_wise", "col", "column"])
def test_a_column_layout_stated_for_the_package_applies_to_its_tensors(stated: str) -> None:
    manifest = valid_manifest(layout="column")
    for entry in manifest["tensors"].values():
        entry.pop("layout", None)
    manifest["quantizationInfo"]["layout"] = stated
    examination = examined(manifest)
    control = examine(valid_manifest(layout="column"))
    assert examination.manifest.tensors == control.manifest.tensors


def test_a_transposed_shape_is_replaced_by_the_logical_one() -> None:
    manifest = valid_manifest(layout="column")
    name = "model.layers.0.mlp.up_proj.weight"
    entry = manifest["tensors"][name]
    entry["originalShape"], entry["shape"] = entry["shape"], entry["shape"][::-1]
    examination = examined(manifest)
    assert examination.faults == ()
    assert examination.manifest.tensors[name].shape == (INNER, HIDDEN)


def test_each_late_field_gets_its_default_and_a_warning() -> None:
    manifest = valid_manifest()
    del manifest["inference"]["output"]["embeddingScale"]
    del manifest["inference"]["output"]["logitInputScale"]
    del manifest["inference"]["layerPattern"]["residualBranchScale"]
    examination = examined(manifest)
    assert [(f.rule, f.severity) for f in examination.faults] == [("late-field", "warning")] * 3
    assert examination.manifest.inference.output.embedding_scale is None
    assert examination.manifest.inference.output.logit_input_scale == 1
    assert examination.manifest.inference.layer_pattern.residual_branch_scale == 1


def test_null_is_read_as_absent_if_the_field_has_a_default() -> None:
    manifest = valid_manifest()
    manifest["inference"]["rope"]["ropeScalingFactor"] = None
    manifest["inference"]["chatTemplate"] = None
    manifest["metadata"] = None
    manifest["optimizations"] = None
    assert examined(manifest).faults == ()
    manifest["inference"]["rope"]["ropeTheta"] = None  # a required field must not be null
    assert [fault.rule for fault in examined(manifest).faults] == ["schema"]


def test_runtime_optimizations_are_ignored_with_a_warning() -> None:
    manifest = valid_manifest()
    manifest["runtimeOptimizations"] = {"preferredKernels": {"matmul": "x"}}
    assert [(f.rule, f.severity) for f in examined(manifest).faults] == [
        ("hint-ignored", "warning")
    ]


def test_hints_of_december_are_translated() -> None:
    manifest = december()
    manifest["optimizations"] = {
        "attentionKernel": "streaming",
        "kernelHints": {"f16Matmul": "fused_q4k", "q4kMatmul": "dequant_f16", "tunedDevice": None},
    }
    examination = examined(manifest)
    assert [fault.rule for fault in examination.faults] == ["hint-ignored"]
    hints = examination.manifest.kernel_hints
    assert (hints.attention_prefill, hints.attention_decode) == ("streaming", "streaming")
    assert (hints.f16_matmul, hints.q4k_matmul) == ("auto", "dequant_f16")


def test_normalising_twice_has_the_same_result_as_once(rng: np.random.Generator) -> None:
    manifests = [december(), january(), valid_manifest()]
    manifest = manifests[int(rng.integers(3))]
    once = normalize(manifest).data
    again = normalize(once)
    assert again.data == once
    assert again.generation is Generation.CURRENT or "schema" not in once["inference"]
