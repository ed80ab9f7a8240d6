"""The profile `doppler`: what conversion refuses, and what validation finds in other packages."""

from __future__ import annotations

import json
import shutil

import pytest
import rdrr
from rdrr_format.errors import ConversionError, UsageError


@pytest.fixture(scope="module")
def package(shallow_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("doppler") / "package"
    rdrr.convert(shallow_checkpoint, folder, profile="doppler")
    return folder


@pytest.fixture
def changed(package, tmp_path):
    """A function that validates a copy of the manifest after a change, and returns the rule ids."""

    def validate(change):
        manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
        change(manifest)
        path = tmp_path / "manifest.json"
        path.write_text(json.dumps(manifest), encoding="utf-8")
        report = rdrr.validate(path, profile="doppler")
        return {fault.rule for fault in report.faults if fault.rule.startswith("doppler")}

    return validate


def nothing(manifest):
    pass


def without_session_field(manifest):
    del manifest["inference"]["session"]["perLayerInputs"]["hotCache"]


def without_graph(manifest):
    manifest["inference"]["execution"] = None


def with_unknown_step(manifest):
    manifest["inference"]["execution"]["decode"][0] = ["input_norm", "no_such_kernel"]


def without_a_stage(manifest):
    del manifest["inference"]["execution"]["prefill"]


def with_another_digest(manifest):
    manifest["inference"]["execution"]["kernels"]["rope"]["digest"] = "sha256:" + "0" * 64


def with_llama3_rope(manifest):
    manifest["inference"]["rope"] |= {
        "ropeScalingType": "llama3",
        "ropeScalingFactor": 8.0,
        "llama3LowFreqFactor": 1.0,
        "llama3HighFreqFactor": 4.0,
        "llama3OriginalMaxPos": 512,
    }


def with_field(block, field, value):
    """Return a change that sets a field of one of the typed blocks."""

    def change(manifest):
        where = (
            manifest["architecture"] if block == "architecture" else manifest["inference"][block]
        )
        where[field] = value

    return change


def with_bias(projection, dtype):
    """Return a change that adds a bias to a projection of the first layer."""

    def change(manifest):
        tensors = manifest["tensors"]
        rows = tensors[f"model.layers.0.{projection}.weight"]["shape"][0]
        facts = {"shape": [rows], "dtype": dtype, "size": rows * {"F16": 2, "F32": 4}[dtype]}
        entry = tensors["model.norm.weight"] | facts | {"role": "bias"}
        tensors[f"model.layers.0.{projection}.bias"] = entry

    return change


def with_a_field_of_ours(manifest):
    manifest["inference"]["rope"]["ropeInterleaved"] = True


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (nothing, set()),
        (without_session_field, {"doppler-session"}),
        (without_graph, {"doppler-execution"}),
        (with_unknown_step, {"doppler-execution"}),
        (without_a_stage, {"doppler-execution"}),
        (with_another_digest, {"doppler-kernel"}),
        (with_llama3_rope, {"doppler-support"}),
        (with_field("attention", "slidingWindow", 64), set()),
        (with_field("attention", "attnLogitSoftcapping", 30.0), {"doppler-support"}),
        (with_field("normalization", "layerNorm", True), {"doppler-support"}),
        (with_field("rope", "partialRotaryFactor", 0.5), {"doppler-support"}),
        (with_field("layerPattern", "parallelResidual", True), {"doppler-support"}),
        (with_field("architecture", "kvLoraRank", 64), {"doppler-support"}),
        (with_bias("self_attn.q_proj", "F32"), set()),
        (with_bias("self_attn.q_proj", "F16"), {"doppler-support"}),
        (with_bias("mlp.up_proj", "F32"), {"doppler-support"}),
        (with_a_field_of_ours, {"doppler-support"}),
    ],
)
def test_each_rule_of_the_profile_finds_its_fault_and_no_other(changed, change, rules):
    assert changed(change) == rules


def test_a_package_of_the_other_profile_lacks_the_graph(shallow_checkpoint, tmp_path):
    rdrr.convert(shallow_checkpoint, tmp_path / "plain", quantize="f16")
    assert rdrr.validate(tmp_path / "plain").ok()
    report = rdrr.validate(tmp_path / "plain", profile="doppler")
    assert [fault.rule for fault in report.errors] == ["doppler-execution"]


def test_an_unknown_profile_is_a_usage_error(package):
    with pytest.raises(UsageError, match="`profile`"):
        rdrr.validate(package, profile="other")


def test_a_model_that_doppler_computes_differently_is_refused_before_anything_is_written(
    shallow_checkpoint, tmp_path
):
    source = shutil.copytree(shallow_checkpoint, tmp_path / "yarn")
    config = json.loads((shallow_checkpoint / "config.json").read_text(encoding="utf-8"))
    config.pop("rope_scaling", None)
    config["rope_parameters"] = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rdrr.convert(source, tmp_path / "for-rdrr", quantize="f16")
    with pytest.raises(ConversionError, match="ropeScalingType") as caught:
        rdrr.convert(source, tmp_path / "for-doppler", quantize="f16", profile="doppler")
    assert "yarn" in caught.value.line()
    assert not (tmp_path / "for-doppler").exists()
