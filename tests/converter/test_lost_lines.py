"""Rows and columns far smaller than the others keep a type that holds them, where they count.

They count where something is as large as they are small: the model computes the same with the rows
of one matrix divided by what the columns of the next are multiplied by.
"""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.architectures import find_architecture
from rdrr_converter.check_options import check_options
from rdrr_converter.checkpoint.magnitudes import Magnitudes, measure
from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.lost_lines import LineCheck
from rdrr_converter.options import PackageOptions
from rdrr_converter.planning import make_plan
from rdrr_converter.progress import Progress
from rdrr_converter.reading.matching import ModelTensor
from rdrr_converter.reading.model import read_model
from rdrr_converter.reading.scan import scan
from rdrr_converter.sources import open_source
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from support.safetensor_files import from_stored, llama_tensors, to_stored, write_llama

MLP, ATTENTION = "model.layers.0.mlp.", "model.layers.0.self_attn."
UP, DOWN = f"{MLP}up_proj.weight", f"{MLP}down_proj.weight"
VALUES, OUT = f"{ATTENTION}v_proj.weight", f"{ATTENTION}o_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
SIZES = {"num_hidden_layers": 1, "vocab_size": 32}

TYPES = {
    "f16": {"quantize": "f16"},
    "f16, columns": {"quantize": "f16", "transpose_weights": True},
    "q8_0": {"quantize": "q8_0"},
    "q8_0, flat": {"quantize": "q8_0", "q4k_layout": "flat"},
    "q4_k_m": {"quantize": "q4_k_m"},
    "q4_k_m, columns": {"quantize": "q4_k_m", "transpose_weights": True},
    "by name": {"quantize": "f16", "tensor_types": {"_proj": "Q5_K"}},
}


def scaled(tensors, name, lines, factor):
    """Multiply some rows ("r") or columns ("c") of a tensor, or elements of a vector."""
    values = from_stored(tensors[name]).copy()
    part = values.T if lines == "c" else values
    part[::2] *= np.float32(factor)
    tensors[name] = to_stored(values, "F32")


def write(folder, tensors):
    return write_llama(folder, tensors, **SIZES)


def kept_in_f32(folder, **options):
    source = open_source(folder)
    model = read_model(source, find_architecture(source.config))
    chosen = PackageOptions(**options)
    check_options(chosen)
    plan = make_plan(model, chosen, scan(model, 1, Progress(None)))
    return {tensor.name: tensor.why for tensor in plan.tensors if tensor.overflowed}


def small(rng):
    """Return the tensors of a model with weights of a usual size."""
    tensors = llama_tensors(rng, "F32", **SIZES)
    return {
        name: np.abs(x) + 0.5 if x.ndim == 1 else x * np.float32(0.05)
        for name, x in tensors.items()
    }


PAIRS = {
    "up": ((UP, "r"), (DOWN, "c")),
    "down": ((DOWN, "c"), (UP, "r")),
    "values": ((VALUES, "r"), (OUT, "c")),
    "norm": ((VALUES, "c"), (NORM, "")),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", TYPES)
def test_lines_that_others_make_up_for_are_kept_in_f32(tmp_path, rng, pair, kind):
    tensors = small(rng)
    (name, lines), (other, other_lines) = PAIRS[pair]
    scaled(tensors, name, lines, 1e-6)
    folder = write(tmp_path / "lone", tensors)  # such rows add nothing that could be lost
    assert kept_in_f32(folder, **TYPES[kind]) == {}
    scaled(tensors, other, other_lines, 1e6)
    reasons = kept_in_f32(write(tmp_path / "both", tensors), **TYPES[kind])
    assert set(reasons) <= {name, other}
    assert reasons[name].startswith(f"{from_stored(tensors[name]).shape[lines == 'c'] // 2:,} of ")
    assert {"r": " rows, of at most ", "c": " columns, of at most "}[lines] in reasons[name]


def test_one_block_of_small_columns_is_kept_too(tmp_path, rng):
    tensors = small(rng)
    tensors[DOWN][:, :256] *= 1e-5
    tensors[UP][:256] *= 1e5
    reasons = kept_in_f32(write(tmp_path / "m", tensors), quantize="q4_k_m")
    assert reasons[DOWN].startswith("256 of 512 columns, of at most ")


def test_both_halves_of_a_fused_tensor_are_judged(tmp_path, rng):
    tensors = small(rng)
    scaled(tensors, UP, "r", 1e-6)
    scaled(tensors, DOWN, "c", 1e6)
    folder = write(tmp_path / "m", tensors)
    for layout in ({}, {"transpose_weights": True}):
        reasons = kept_in_f32(folder, quantize="q8_0", fuse_gate_up=True, **layout)
        assert "256 of 512 rows" in reasons[f"{MLP}gate_up_proj.weight"]


def test_an_outlier_beside_dead_rows_changes_no_type(tmp_path, rng):
    tensors = small(rng)
    tensors[UP][::7] = 0.0
    tensors[UP][1::7] *= 1e-4
    tensors[DOWN][:, 3] *= 60.0
    tensors[NORM][5] = 80.0
    folder = write(tmp_path / "m", tensors)
    assert [kept_in_f32(folder, **options) for options in TYPES.values()] == [{}] * len(TYPES)


def alternating(size, factor=1e-7):
    return np.where(np.arange(size) % 2, np.float32(1), np.float32(factor))


def made(name, shape, *, expert=None, rows=None, columns=None):
    """Return a tensor of layer 0, and what was measured of it."""
    source = SourceTensor(name, shape, "F32", "model.safetensors", lambda: np.zeros(shape))
    tensor = ModelTensor(f"model.layers.0.{name}.weight", source, "matmul", 0, expert)
    return tensor, Magnitudes(1.0, rows, columns)


def found(*pairs, head_dim=8):
    magnitudes = {tensor.source.name: measured for tensor, measured in pairs}
    check = LineCheck(magnitudes, {0: [tensor for tensor, _ in pairs]}, head_dim)
    return check.find(pairs[0][0], DTYPES["F16"], Layout.ROW)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((("mlp.gate_up_proj", (64, 16)), "rows"), (("mlp.down_proj", (16, 32)), "columns")),
        ((("mlp.down_proj", (16, 32)), "columns"), (("mlp.gate_up_proj", (64, 16)), "rows")),
        ((("self_attn.qkv_proj", (64, 24)), "rows"), (("self_attn.o_proj", (24, 32)), "columns")),
        ((("self_attn.o_proj", (24, 32)), "columns"), (("self_attn.qkv_proj", (64, 24)), "rows")),
        ((("self_attn.q_proj", (32, 24)), "rows"), (("self_attn.k_proj", (8, 24)), "rows")),
        ((("self_attn.k_proj", (8, 24)), "rows"), (("self_attn.q_proj", (32, 24)), "rows")),
    ],
)
def test_matrices_that_are_stored_as_one_and_shared_heads_face_their_partners(first, second):
    def part(made_of, factor):
        (name, shape), kind = made_of
        size = shape[kind == "columns"]
        return made(name, shape, **{kind: alternating(size, factor)})

    assert found(part(first, 1e-7), part(second, 1e7)) is not None
    assert found(part(first, 1e-7), part(second, 1.0)) is None


def test_a_line_of_one_expert_is_not_made_up_for_by_another():
    up = made("experts.0.up_proj", (32, 16), expert=0, rows=alternating(32))
    down = [
        made(f"experts.{i}.down_proj", (16, 32), expert=i, columns=alternating(32, 1e7))
        for i in (0, 1)
    ]
    assert found(up, down[0]) is not None
    assert found(up, down[1]) is None


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", [(64, 3), (6, 400), (70000, 4), (1, 9)])
def test_lines_are_measured_in_the_order_of_the_tensor(rng, dtype, shape):
    values = rng.standard_normal(shape, np.float32) * 10 ** rng.uniform(-3, 3, (shape[0], 1))
    stored = to_stored(values.astype(np.float32), dtype)
    for interleaved in (0, 2) if shape[0] % 2 == 0 else (0,):
        tensor = SourceTensor("w", shape, dtype, "f", lambda: stored, interleaved=interleaved)
        measured, whole = measure(tensor), np.abs(tensor.read())
        assert measured.largest == whole.max()
        if measured.rows is not None:
            np.testing.assert_array_equal(measured.rows, whole.max(axis=1))
        if measured.columns is not None:
            np.testing.assert_array_equal(measured.columns, whole.max(axis=0))
    assert shape[0] == 1 or measured.rows is not None
