"""Synthesized checkpoints: their content, and that a seed always gives the same bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import rdrr
import synthesize
from configured_shapes import ALL_SHAPES, CONFIGURED
from rdrr_converter.sources import open_source
from safetensors import safe_open
from shapes import SHAPES, Shape

TINY = [name for name in ALL_SHAPES if name.startswith("tiny")]


def _digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_seed_gives_the_same_bytes_whatever_the_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesize, "PIECE", 10_000)  # several pieces per tensor
    for name, seed, workers in (("a", 7, 1), ("b", 7, 3), ("c", 8, 3)):
        synthesize.synthesize(SHAPES["tiny"], tmp_path / name, seed=seed, workers=workers)
    first, second, other = (_digests(tmp_path / name) for name in "abc")
    assert first == second
    weights = [name for name in first if name.endswith(".safetensors")]
    assert all(first[name] != other[name] for name in weights)


def test_weights_are_normal_norms_lie_around_one_and_no_two_tensors_are_alike(tmp_path):
    synthesize.synthesize(SHAPES["tiny"], tmp_path / "out")
    tensors = {}
    with safe_open(next((tmp_path / "out").glob("*.safetensors")), framework="pt") as file:
        tensors = {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict(
        SHAPES["tiny"].tensors()
    )
    for name, tensor in tensors.items():
        assert tensor.mean() == pytest.approx(1.0 if tensor.ndim == 1 else 0.0, abs=0.01), name
        assert tensor.std() == pytest.approx(synthesize.DEVIATION, rel=0.2), name
    gate, up = (tensors[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up"))
    assert abs(np.corrcoef(gate.ravel(), up.ravel())[0, 1]) < 0.02


def test_large_checkpoints_are_split_into_shards_that_belong_together(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesize, "SHARD_BYTES", 1 << 20)
    total = synthesize.synthesize(SHAPES["tiny"], tmp_path / "out")
    files = list((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    source = open_source(tmp_path / "out")
    assert {name: tensor.shape for name, tensor in source.tensors.items()} == dict(
        SHAPES["tiny"].tensors()
    )
    assert sum(file.stat().st_size for file in files) > total


@pytest.mark.thorough
@pytest.mark.parametrize("name", TINY)
def test_the_converter_takes_every_kind_of_checkpoint_and_the_package_runs(name, tmp_path):
    synthesize.synthesize(ALL_SHAPES[name], tmp_path / "source")
    rdrr.convert(tmp_path / "source", tmp_path / "package", quantize="q8_0")
    assert rdrr.validate(tmp_path / "package", deep=True).ok
    with rdrr.load(tmp_path / "package", backend="cpu", context=16) as model:
        if name == "tiny-bert":  # an encoder, which predicts no tokens
            results, width = model.embed(["a", "b", "c"]), 64
        else:
            results, width = model.logits(model.encode("abc")), ALL_SHAPES[name].vocab
    assert results.shape == (3, width)
    assert np.isfinite(results).all()
    assert results.std() > 0


@pytest.mark.parametrize(
    ("name", "millions"),
    # Parameters as their makers state them; the 1B shape has an untied head here.
    [("smollm-135m", 135), ("llama-1b", 1236 + 263), ("llama-3b", 3213), ("llama-8b", 8030),
     ("gemma3-1b", 1000), ("qwen3-0.6b", 596)],
)  # fmt: skip
def test_shapes_have_the_parameters_of_the_models_they_are_named_after(name, millions):
    shape: Shape = SHAPES[name]
    count = sum(int(np.prod(dims)) for _, dims in shape.tensors())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


def test_norms_of_configured_shapes_scale_by_about_one():
    """Norms with an offset have a mean of 0, except that of linear attention, which has none."""
    hybrid, plain = CONFIGURED["tiny-qwen3.5"], CONFIGURED["tiny-gpt-oss"]
    layer = "model.layers.0"
    for shape, name, centre in (
        (hybrid, f"{layer}.input_layernorm.weight", 0.0),
        (hybrid, f"{layer}.linear_attn.norm.weight", 1.0),
        (hybrid, f"{layer}.linear_attn.in_proj_z.weight", 0.0),
        (plain, f"{layer}.input_layernorm.weight", 1.0),
        (plain, f"{layer}.self_attn.sinks", 0.0),
        (plain, "lm_head.weight", 0.0),
    ):
        assert shape.centre(name, dict(shape.tensors())[name]) == centre, name


def test_keys_are_scaled_where_attention_does_not_scale_its_scores():
    shape = CONFIGURED["tiny-gemma4"]
    sizes = dict(shape.tensors())
    for layer, head_dim in ((0, 256), (4, 512)):
        name = f"model.layers.{layer}.self_attn.k_norm.weight"
        assert sizes[name] == (head_dim,)
        assert shape.centre(name, sizes[name]) == head_dim**-0.5
        assert shape.centre(name.replace("k_norm", "q_norm"), sizes[name]) == 1.0


@pytest.mark.parametrize(
    ("name", "millions"),
    # Qwen3-VL with towers, Qwen3.5-0.8B without its one, and per layer of gpt-oss-20b (20,915
    # million in 24 layers with 1,158 million in the embedding and the head).
    [
        ("qwen3-vl-2b", 2127),
        ("qwen3-vl-8b", 8767),
        ("qwen3.5-0.8b", 752),
        ("gpt-oss-20b-4-layers", 1158 + 4 * 823),
    ],
)
def test_configured_shapes_have_the_parameters_of_the_models(name, millions):
    count = sum(int(np.prod(dims)) for _, dims in CONFIGURED[name].tensors())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)
