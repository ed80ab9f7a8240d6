"""`--tensor-type`: to which tensors a pattern applies, and what is refused."""

from __future__ import annotations

import pytest
from rdrr_converter.convert import convert
from rdrr_converter.options import split_overrides
from rdrr_format.errors import UsageError
from rdrr_manifests.package import open_package, validate
from support.safetensor_files import llama_tensors, write_llama


@pytest.fixture
def source(tmp_path, rng):
    return write_llama(tmp_path / "source", llama_tensors(rng))


def types_of(source, types, **options):
    result = convert(source, "nowhere", tensor_types=types, dry_run=True, **options)
    return {tensor.name: tensor.dtype.name for tensor in result.plan.tensors}


def test_a_pattern_sets_the_type_of_matching_tensors_and_of_no_others(source):
    plain, overridden = types_of(source, {}), types_of(source, {r"layers\.0\..*o_proj": "q8_0"})
    changed = {name for name in plain if plain[name] != overridden[name]}
    assert changed == {"model.layers.0.self_attn.o_proj.weight"}
    assert overridden[changed.pop()] == "Q8_0"


def test_the_last_pattern_that_matches_wins(source):
    name = "model.layers.1.mlp.up_proj.weight"
    assert types_of(source, {"up_proj": "Q6_K", "layers": "Q5_K"})[name] == "Q5_K"
    assert types_of(source, {"layers": "Q5_K", "up_proj": "Q6_K"})[name] == "Q6_K"
    repeated = split_overrides(["up_proj=Q6_K", "layers=Q5_K", "up_proj=Q6_K"])
    assert types_of(source, repeated)[name] == "Q6_K"


def test_block_types_apply_to_matrices_and_norms_accept_scalar_types_only(source):
    types = types_of(source, {"": "Q8_0"})
    assert {dtype for name, dtype in types.items() if "norm" in name} == {"F32"}
    assert {dtype for name, dtype in types.items() if "norm" not in name} == {"Q8_0"}
    assert set(types_of(source, {"norm": "F16"}).values()) == {"F16", "Q4_K", "Q6_K"}


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"o_prog": "Q8_0"}, "matches no tensor"),
        ({"norm": "Q8_0"}, "can be stored in blocks"),
        ({"o_proj": "Q3_K"}, "unknown storage type"),
        ({"o_proj": "I64"}, "unknown storage type"),
        ({"o_proj(": "Q8_0"}, "regular expression"),
    ],
)
def test_an_invalid_pattern_or_type_is_a_usage_error(source, types, message):
    with pytest.raises(UsageError, match=message):
        types_of(source, types)
    assert types_of(source, {"o_proj": "Q8_0"})


def test_an_argument_is_split_at_its_last_equals_sign():
    assert split_overrides(["a=b=Q8_0"]) == {"a=b": "Q8_0"}
    for wrong in ("o_proj", "=Q8_0", "o_proj="):
        with pytest.raises(UsageError, match="cannot be read"):
            split_overrides([wrong])


def test_the_package_has_the_types_and_the_manifest_the_patterns(tmp_path, source):
    types = {"layers": "Q5_K", "o_proj": "bf16"}
    convert(source, tmp_path / "out", tensor_types=types)
    assert validate(tmp_path / "out", deep=True).errors == ()
    manifest = open_package(tmp_path / "out").manifest
    assert manifest.tensors["model.layers.0.self_attn.o_proj.weight"].dtype == "BF16"
    assert manifest.tensors["model.layers.0.mlp.up_proj.weight"].dtype == "Q5_K"
    assert manifest.conversion.options["tensorTypes"] == ["layers=Q5_K", "o_proj=BF16"]
