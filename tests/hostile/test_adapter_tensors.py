"""Tensors of a LoRA adapter that are not what they should be: one line names file and tensor."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.lora import merge_adapter
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from support.adapters import PREFIX, adapter_tensors, write_adapter
from support.safetensor_files import llama_tensors, write_llama

MODULE, EMBEDDING = "model.layers.0.mlp.down_proj", "model.embed_tokens"
A, B = f"{MODULE}.lora_A.weight", f"{MODULE}.lora_B.weight"
BIAS, MAGNITUDES = f"{MODULE}.lora_B.bias", f"{MODULE}.lora_magnitude_vector"
FILE = "adapter_model.safetensors"


@pytest.fixture
def base(tmp_path, rng):
    return open_source(write_llama(tmp_path / "base", llama_tensors(rng)))


def merge(base, folder, rng, shapes, fill=None, **config):
    """Merge a sound adapter of one module, some of whose tensors have other shapes or values."""
    tensors = adapter_tensors(rng, MODULE, (256, 512))
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) if fill is None else np.full(shape, fill)
        tensors[PREFIX + name] = values.astype(np.float32)
    return merge_adapter(base, write_adapter(folder, tensors, **config))


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        (A, (), r"expected \[rank, inputs\], found \[\]"),
        (A, (512,), r"expected \[rank, inputs\], found \[512\]"),
        (A, (4, 512, 1, 1), r"expected \[rank, inputs\], found \[4, 512, 1, 1\]"),
        (A, (0, 512), r"expected 4, found 0 in \[0, 512\]"),
        (A, (5, 512), r"expected 4, found 5 in \[5, 512\]"),
        (B, (), r"expected \[outputs, rank\], found \[\]"),
        (B, (1, 256, 4), r"expected \[outputs, rank\], found \[1, 256, 4\]"),
        (B, (256, 0), r"expected 4, found 0 in \[256, 0\]"),
        (B, (0, 4), r"expected a product of shape \[256, 512\]"),
        (BIAS, (), r"expected \[outputs\], found \[\]"),
        (MAGNITUDES, (256, 1), r"expected \[outputs\], found \[256, 1\]"),
        (f"{EMBEDDING}.lora_embedding_A", (), r"expected \[rank, vocabulary\], found \[\]"),
        (f"{EMBEDDING}.lora_embedding_B", (256,), r"expected \[hidden size, rank\], found"),
        (f"{EMBEDDING}.weight", (), r"expected \[320, 256\], found \[\]"),
        (f"{EMBEDDING}.weight", (2, 3, 256), r"expected \[2, 256\], found \[2, 3, 256\]"),
        ("model.norm.weight", (), r"expected \[256\], found \[\]"),
    ],
)
def test_a_tensor_of_a_wrong_shape_is_named_with_its_file(base, tmp_path, rng, name, shape, words):
    assert merge(base, tmp_path / "good", rng, {})
    with pytest.raises(SourceError, match=rf"{FILE}, tensor {PREFIX}{name}: .*{words}"):
        merge(base, tmp_path / "bad", rng, {name: shape})


def test_matrices_that_agree_on_another_rank_than_the_configuration_are_refused(
    base, tmp_path, rng
):
    shapes = {A: (5, 512), B: (256, 5)}
    assert merge(base, tmp_path / "good", rng, shapes, r=5)
    with pytest.raises(SourceError, match=rf"{FILE}, tensor .*{A}: .*expected 4, found 5"):
        merge(base, tmp_path / "bad", rng, shapes)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"lora_alpha": float("nan")}, "impossible lora_alpha .*found nan"),
        ({"lora_alpha": float("-inf")}, "impossible lora_alpha .*found -inf"),
        ({"lora_alpha": 10**90}, "impossible lora_alpha .*found 1000"),
        (
            {"alpha_pattern": {"x_proj": float("inf")}},
            "impossible alpha_pattern.x_proj .*found inf",
        ),
        ({"r": float("inf")}, "impossible r .*found inf"),
        ({"rank_pattern": {"x_proj": float("nan")}}, "impossible rank_pattern.x_proj .*found nan"),
    ],
)
def test_numbers_of_a_configuration_are_finite(base, tmp_path, rng, config, words):
    assert merge(base, tmp_path / "good", rng, {}, lora_alpha=-3.5)
    with pytest.raises(SourceError, match=rf"adapter_config\.json: {words}"):
        merge(base, tmp_path / "bad", rng, {}, **config)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_the_adapter_s_fault(base, tmp_path, rng, value):
    assert merge(base, tmp_path / "good", rng, {A: (4, 512)}, fill=1)
    with pytest.raises(SourceError, match=rf"{FILE}, tensor .*{A}: .*not finite .*found {value}"):
        merge(base, tmp_path / "bad", rng, {A: (4, 512)}, fill=value)


def test_a_product_beyond_float32_says_that_an_adapter_is_in_it(base, tmp_path, rng):
    tensors = adapter_tensors(rng, MODULE, (256, 512))
    folder = write_adapter(tmp_path / "a", {name: t * 1e30 for name, t in tensors.items()})
    with pytest.raises(SourceError, match=r"down_proj\.weight \(LoRA merged\): .* not finite"):
        convert(base.path, tmp_path / "out", lora=folder, dry_run=True)


def test_two_tensors_of_one_meaning_are_refused(base, tmp_path, rng):
    twice = {f"{MODULE}.lora_A.default.weight": (4, 512)}
    with pytest.raises(SourceError, match=rf"mean the same one .*found {PREFIX}{A}"):
        merge(base, tmp_path / "a", rng, twice)
    norms = {"model.norm.weight": (256,), "model.norm.modules_to_save.weight": (256,)}
    with pytest.raises(SourceError, match=r"mean the same one .*found .*model\.norm\.weight"):
        merge(base, tmp_path / "b", rng, norms)


def test_rows_without_columns_cost_no_time(base, tmp_path, rng):
    with pytest.raises(SourceError, match=rf"{FILE}, tensor .*: .*\[{1 << 57}, 0\]"):
        merge(base, tmp_path / "a", rng, {B: (1 << 57, 0)})
