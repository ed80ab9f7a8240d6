"""`--profile doppler`: what the parser of the public runtime needs, and which options conflict."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.check_options import check_options
from rdrr_converter.convert import convert
from rdrr_converter.options import PackageOptions
from rdrr_format.errors import UsageError
from rdrr_manifests.package import validate
from support.safetensor_files import llama_tensors, write_llama

PARSED = Path(__file__).parents[1] / "data" / "manifests" / "minimal-current.json"
"""The smallest manifest that the public parser accepts."""

DTYPES = {"F16", "BF16", "F32", "I64", "Q4_K_M", "W4A16"}
"""All storage types in packages of the public runtime."""


@pytest.fixture
def source(tmp_path, rng):
    sizes = {"hidden_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
    return write_llama(tmp_path / "source", llama_tensors(rng, **sizes), **sizes)


def manifest_of(source, folder, **options):
    convert(source, folder, **options)
    assert validate(folder, deep=True).errors == ()
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def missing_keys(wanted, found, place=""):
    """Yield the object keys of `wanted` that `found` lacks; tensors and lists are not compared."""
    for key, value in wanted.items():
        if key not in found:
            yield place + key
        elif isinstance(value, dict) and key != "tensors":
            yield from missing_keys(value, found[key] or {}, f"{place}{key}.")


@pytest.mark.parametrize("quantize", ["q4_k_m", "f16"])
def test_weights_have_types_that_the_public_runtime_has_kernels_for(tmp_path, source, quantize):
    manifest = manifest_of(source, tmp_path / "out", profile="doppler", quantize=quantize)
    weights = {"q4_k_m": "Q4_K_M", "f16": "F16"}[quantize]
    for name, tensor in manifest["tensors"].items():
        expected = weights if "_proj" in name else "F16"
        assert tensor["dtype"] == expected, name
        assert tensor.get("layout", "row") == "row"
    plain = manifest_of(source, tmp_path / "plain", quantize=quantize)
    types = {tensor["dtype"] for tensor in plain["tensors"].values()}
    assert types - {"F32"} != {"Q4_K_M", "F16"}  # control: the default profile differs
    assert {t["dtype"] for n, t in plain["tensors"].items() if "norm" in n} == {"F32"}


def test_the_manifest_has_all_fields_that_the_public_parser_reads(tmp_path, source):
    manifest = manifest_of(source, tmp_path / "out", profile="doppler")
    wanted = json.loads(PARSED.read_text(encoding="utf-8"))
    assert list(missing_keys(wanted, manifest)) == []
    info = manifest["quantizationInfo"]
    assert (manifest["version"], manifest["hashAlgorithm"]) == (1, "sha256")
    assert (info["weights"], info["embeddings"], info["layout"]) == ("q4k", "f16", "row")
    assert info["variantTag"] == "q4k-ehf16-af32"
    assert manifest["conversion"]["options"]["profile"] == "doppler"
    assert manifest["eos_token_id"]
    assert manifest["totalSize"] == sum(shard["size"] for shard in manifest["shards"])
    for shard in manifest["shards"]:
        assert "compression" not in shard
    for name, tensor in manifest["tensors"].items():
        assert {"shape", "dtype", "size", "role"} <= tensor.keys()
        assert tensor["dtype"] in DTYPES
        if tensor["dtype"] == "Q4_K_M":
            rows, K = prod(tensor["shape"][:-1]), tensor["shape"][-1]
            assert tensor["size"] == rows * -(-K // 256) * 144, name


def test_a_tensor_that_overflows_f16_is_kept_in_f32(tmp_path, rng):
    tensors = llama_tensors(rng)
    name = "model.layers.0.input_layernorm.weight"
    tensors[name] = np.full(256, 1e6, "<f4")
    source = write_llama(tmp_path / "source", tensors)
    manifest = manifest_of(source, tmp_path / "out", profile="doppler")
    assert manifest["tensors"][name]["dtype"] == "F32"
    assert manifest["tensors"][name.replace("layers.0", "layers.1")]["dtype"] == "F16"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("quantize", "q8_0"),
        ("quantize", "q5_k_m"),
        ("quantize", "f32"),
        ("q4k_layout", "column"),
        ("q4k_layout", "flat"),
        ("transpose_weights", True),
        ("k_tail", "ggml"),
        ("k_tail", "auto"),
        ("compress", "zstd"),
        ("hash_algorithm", "blake3"),
        ("tensor_types", {"o_proj": "Q8_0"}),
        ("fuse_gate_up", True),
        ("vision_quantize", "q8_0"),
        ("mmproj", "mmproj.gguf"),
    ],
)
def test_options_that_contradict_the_profile_are_usage_errors(option, value):
    check_options(PackageOptions(**{option: value}))
    with pytest.raises(UsageError, match="`profile` doppler contradicts"):
        check_options(PackageOptions(profile="doppler", **{option: value}))


def test_options_that_agree_with_the_profile_are_accepted_and_unknown_profiles_are_refused():
    goes = {"quality": "best", "tensor_types": {"o_proj": "F16", "v_proj": "Q6_K"}}
    check_options(PackageOptions(profile="doppler", **goes))
    with pytest.raises(UsageError, match="`profile` has no such value"):
        check_options(PackageOptions(profile="opossum"))
