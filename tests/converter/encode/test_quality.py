"""`--quality best`: the smaller error of a conversion, and what does not change."""

from __future__ import annotations

import pytest
from rdrr_converter.convert import convert
from rdrr_format.errors import UsageError
from rdrr_manifests.package import open_package, validate
from support.safetensor_files import llama_tensors, write_llama


@pytest.fixture
def source(tmp_path, rng):
    # With K of 192, a quarter of the last block of every row is padding.
    sizes = {
        "num_hidden_layers": 1,
        "hidden_size": 192,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return write_llama(tmp_path / "source", llama_tensors(rng, **sizes), **sizes)


@pytest.mark.parametrize("layout", ["row", "column", "flat"])
def test_every_quantized_tensor_has_less_error_in_the_same_bytes(tmp_path, source, layout):
    ref = convert(source, tmp_path / "ref", q4k_layout=layout)
    best = convert(source, tmp_path / "best", q4k_layout=layout, quality="best")
    assert validate(tmp_path / "best", deep=True).errors == ()
    assert best.total_size == ref.total_size
    for before, after in zip(ref.tensors, best.tensors, strict=True):
        if before.dtype != "F32":
            assert 0 < after.relative_rmse < before.relative_rmse, before.name
    assert any(tensor.dtype != "F32" for tensor in ref.tensors)


@pytest.mark.parametrize("layout", ["row", "column"])
def test_matrices_are_as_large_as_their_source(tmp_path, source, layout):
    """Blocks of least squared error are smaller than their weights."""
    convert(source, tmp_path / "f32", quantize="f32")
    options = {"quantize": "q4_k_m", "k_tail": "pad", "q4k_layout": layout, "quality": "best"}
    result = convert(source, tmp_path / "best", **options)
    before, after = open_package(tmp_path / "f32"), open_package(tmp_path / "best")
    names = [tensor.name for tensor in result.tensors if tensor.dtype.startswith("Q4_K")]
    assert names
    for name in names:
        weights, values = before.dequantize(name), after.dequantize(name)
        assert abs((weights * values).sum() / (weights * weights).sum() - 1) < 1e-3, name


def test_the_manifest_records_it_and_the_default_is_ggml(tmp_path, source):
    def options(name, **given):
        convert(source, tmp_path / name, **given)
        return open_package(tmp_path / name).manifest.conversion.options

    assert options("best", quality="best")["quality"] == "best"
    assert options("plain") == options("ref", quality="ref")
    shard = "shard_00000.bin"
    assert (tmp_path / "plain" / shard).read_bytes() == (tmp_path / "ref" / shard).read_bytes()


def test_an_unknown_quality_is_a_usage_error(tmp_path, source):
    for quality in ("good", "best,good", "ref,best"):
        with pytest.raises(UsageError, match="`quality`"):
            convert(source, tmp_path / "out", quality=quality)
