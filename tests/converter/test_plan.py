"""The plan: type, layout and position of each tensor with reasons, before any weight is written."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.architectures import find_architecture
from rdrr_converter.check_options import check_options
from rdrr_converter.checkpoint.magnitudes import Magnitudes
from rdrr_converter.options import PackageOptions
from rdrr_converter.planning import make_plan
from rdrr_converter.reading.model import read_model
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError, UsageError
from rdrr_format.layouts import Layout
from support.safetensor_files import llama_tensors, write_llama


def plan_of(folder, magnitude=1.0, **options):
    source = open_source(folder)
    model = read_model(source, find_architecture(source.config))
    chosen = PackageOptions(**options)
    check_options(chosen)
    largest = {tensor.source.name: 1.0 for tensor in model.tensors}
    if isinstance(magnitude, dict):
        largest.update(magnitude)
    magnitudes = {name: Magnitudes(value) for name, value in largest.items()}
    return make_plan(model, chosen, magnitudes)


@pytest.fixture
def folder(tmp_path, rng):
    return write_llama(tmp_path / "m", llama_tensors(rng))


@pytest.fixture
def tied(tmp_path, rng):
    tensors = llama_tensors(rng)
    del tensors["lm_head.weight"]
    return write_llama(tmp_path / "tied", tensors, tie_word_embeddings=True)


def layouts(plan, part):
    return {t.layout for t in plan.tensors if part in t.name}


@pytest.mark.parametrize("quantize", ["q4_k_m", "q8_0", "f16", "f32"])
def test_transposition_applies_to_matmuls_and_an_untied_head_but_not_to_the_embedding(
    folder, tied, quantize
):
    plan = plan_of(folder, quantize=quantize, transpose_weights=True)
    assert layouts(plan, "_proj") == layouts(plan, "lm_head") == {Layout.COLUMN}
    assert layouts(plan, "embed_tokens") == layouts(plan, "norm") == {Layout.ROW}
    assert plan.weights_transposed
    plan = plan_of(tied, quantize=quantize, transpose_weights=True)
    assert layouts(plan, "embed_tokens") == {Layout.ROW}
    assert not plan_of(folder, quantize=quantize).weights_transposed


def test_the_column_layout_alone_applies_to_block_types_only(folder):
    plan = plan_of(folder, q4k_layout="column")
    assert layouts(plan, "_proj") == {Layout.COLUMN}
    assert layouts(plan, "embed_tokens") == {Layout.ROW}
    assert layouts(plan_of(folder, quantize="f16", q4k_layout="column"), "") == {Layout.ROW}


@pytest.mark.parametrize("layout", ["row", "flat"])
def test_transposition_with_another_layout_is_a_usage_error(layout):
    with pytest.raises(UsageError, match="transpose_weights"):
        check_options(PackageOptions(transpose_weights=True, q4k_layout=layout))
    check_options(PackageOptions(transpose_weights=True, q4k_layout="column"))
    check_options(PackageOptions(q4k_layout=layout))


@pytest.mark.parametrize(
    "wrong",
    [
        {"quantize": "q3"},
        {"q4k_layout": "diagonal"},
        {"k_tail": "cut"},
        {"shard_size": 10},
        {"model_id": "My Model"},
        {"model_id": "x" * 65},
        {"model_id": ""},
        {"kernel_hints": {"q4kMatmul": "fast"}},
        {"kernel_hints": {"speed": "auto"}},
    ],
)
def test_an_option_out_of_range_is_a_usage_error(wrong):
    check_options(PackageOptions())
    with pytest.raises(UsageError):
        check_options(PackageOptions(**wrong))


def test_fusion_joins_gate_and_up_in_every_layer(folder):
    plain, fused = plan_of(folder), plan_of(folder, fuse_gate_up=True)
    names = {tensor.name: tensor for tensor in fused.tensors}
    assert len(fused.tensors) == len(plain.tensors) - 2
    for layer in range(2):
        joined = names[f"model.layers.{layer}.mlp.gate_up_proj.weight"]
        assert joined.shape == (1024, 256)
        assert [part.name for part in joined.sources] == [
            f"model.layers.{layer}.mlp.{part}_proj.weight" for part in ("gate", "up")
        ]
        assert not any(f"layers.{layer}.mlp.gate_proj" in name for name in names)


def test_flat_fusion_with_a_block_across_both_matrices_is_refused(tmp_path, rng):
    whole = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 2}
    cut = {**whole, "intermediate_size": 100}
    options = {"q4k_layout": "flat", "fuse_gate_up": True}
    plan_of(write_llama(tmp_path / "a", llama_tensors(rng, **whole), **whole), **options)
    folder = write_llama(tmp_path / "b", llama_tensors(rng, **cut), **cut)
    with pytest.raises(UsageError, match="flat"):
        plan_of(folder, **options)
    plan_of(folder, q4k_layout="row", fuse_gate_up=True)


@pytest.mark.parametrize(
    ("quantize", "largest", "dtype"),
    [
        ("f16", 65504.0, "F16"),
        ("f16", 65519.0, "F16"),
        ("f16", 65520.0, "F32"),
        ("f16", 1e30, "F32"),
        ("q8_0", 65520.0, "Q8_0"),
        ("q8_0", 1e7, "F32"),
        ("q4_k_m", 1e7, "F32"),
        ("f32", 1e30, "F32"),
        ("f16", 1e-9, "F32"),
        ("f16", 1e-4, "F16"),
        ("q8_0", 1e-9, "F32"),
        ("q8_0", 1e-4, "Q8_0"),
        ("q4_k_m", 1e-9, "F32"),
        ("q4_k_m", 1e-5, "F32"),
        ("q4_k_m", 1e-3, "Q4_K"),
        ("f16", 0.0, "F16"),
    ],
)
def test_a_tensor_that_float16_cannot_hold_is_kept_in_f32(folder, quantize, largest, dtype):
    name = "model.layers.0.mlp.up_proj.weight"
    plan = plan_of(folder, {name: largest}, quantize=quantize)
    planned = {tensor.name: tensor for tensor in plan.tensors}[name]
    assert planned.dtype.name == dtype
    assert planned.overflowed == (dtype == "F32" and quantize != "f32")
    others = {tensor.dtype.name for tensor in plan.tensors if tensor.role == "matmul"} - {dtype}
    assert quantize == "f32" or others | {dtype} != {"F32"}


def test_overflow_in_half_of_a_fused_tensor_keeps_both_in_f32(folder):
    name = "model.layers.0.mlp.up_proj.weight"
    options = {"fuse_gate_up": True, "transpose_weights": True, "quantize": "f16"}
    plan = plan_of(folder, {name: 1e6}, **options)
    by_name = {tensor.name: tensor for tensor in plan.tensors}
    joined = by_name["model.layers.0.mlp.gate_up_proj.weight"]
    assert (joined.dtype.name, joined.layout) == ("F32", Layout.COLUMN)
    assert by_name["model.layers.1.mlp.gate_up_proj.weight"].dtype.name == "F16"


@pytest.mark.parametrize("quantize", ["f16", "q8_0", "q4_k_m"])
def test_tiny_values_in_half_of_a_fused_tensor_keep_both_in_f32(folder, quantize):
    name = "model.layers.0.mlp.up_proj.weight"
    by_name = {
        tensor.name: tensor
        for tensor in plan_of(folder, {name: 1e-9}, fuse_gate_up=True, quantize=quantize).tensors
    }
    joined = by_name["model.layers.0.mlp.gate_up_proj.weight"]
    assert joined.dtype.name == "F32"
    assert "1e-09 does not fit" in joined.why
    assert by_name["model.layers.1.mlp.gate_up_proj.weight"].dtype.name != "F32"


@pytest.mark.parametrize("shard_size", [2**16, 10**5, 2**26])
def test_tensors_follow_each_other_at_aligned_offsets(folder, shard_size):
    plan = plan_of(folder, shard_size=shard_size)
    end = 0
    for tensor in plan.tensors:
        first = tensor.spans[0]
        start = first.shard_index * shard_size + first.offset
        assert start % 256 == 0
        assert 0 <= start - end < 256
        assert sum(span.size for span in tensor.spans) == tensor.size
        end = start + tensor.size
    assert plan.total_size == end
    assert set(plan.shard_sizes[:-1]) <= {shard_size}


def test_every_row_of_the_description_has_a_reason(folder):
    rows = list(plan_of(folder).describe())
    assert len(rows) == len(plan_of(folder).tensors)
    assert all(row["why"] for row in rows)
    assert sum(np.array([row["size"] for row in rows])) <= plan_of(folder).total_size


def test_gate_and_up_with_biases_cannot_be_fused(tmp_path, rng):
    tensors = llama_tensors(rng)
    for layer in range(2):
        for part, size in (("gate", 512), ("up", 512), ("down", 256)):
            name = f"model.layers.{layer}.mlp.{part}_proj.bias"
            tensors[name] = np.zeros(size, "<f4")
    folder = write_llama(tmp_path / "m", tensors, mlp_bias=True)
    assert plan_of(folder).tensors
    with pytest.raises(ConversionError, match="biases"):
        plan_of(folder, fuse_gate_up=True)
