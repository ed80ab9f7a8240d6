"""The roundings of llama.cpp in the torch reference, checked without llama.cpp."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import rdrr
import torch
from _llama_cpp_rounding import (
    RoundedModel,
    gelu_of_table,
    round_to_f16,
    round_to_q8_0,
    round_to_q8_k,
)
from configured_shapes import CONFIGURED
from rdrr_runtime.reference.activations import gelu_tanh
from shapes import SHAPES
from synthesize import synthesize

IDS = [5, 99, 700, 12]


def _rows(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def test_rounding_to_q8_0_is_that_of_gguf_py(rng):
    rows = _rows(rng, 5, 96)
    rows[2] = 0
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = gguf.dequantize(gguf.quantize(rows.numpy(), kind), kind)
    np.testing.assert_array_equal(round_to_q8_0(rows).numpy(), expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_to_q8_k_scales_256_values_by_the_largest(rng, sign):
    rows = _rows(rng, 3, 512)
    rows[1, 256:] = 0
    rows[0, 7] = sign * 20
    rounded = round_to_q8_k(rows)
    steps = rows.unflatten(-1, (2, 256)).abs().amax(-1, keepdim=True) / 127
    assert ((rounded - rows).abs().unflatten(-1, (2, 256)) <= steps * 0.501).all()
    assert (rounded != rows).any(), "the control: something was rounded"
    assert rounded[0, 7] == pytest.approx(sign * 20, rel=1e-6)
    assert (rounded[1, 256:] == 0).all()


def test_the_gelu_of_the_table_is_the_gelu_rounded_to_f16(rng):
    x = (_rows(rng, 4, 64) * 3).clamp(-9, 9)
    x[0, :2] = torch.tensor([-11.0, 11.0])
    activated = gelu_of_table(x)
    assert activated[0, :2].tolist() == [0.0, 11.0]
    torch.testing.assert_close(activated, gelu_tanh(x), rtol=2e-3, atol=2e-3)
    assert torch.equal(activated[1:], round_to_f16(activated[1:]))


@pytest.fixture(
    scope="module",
    params=[
        "tiny",
        *(
            pytest.param(f"tiny-{name}", marks=pytest.mark.thorough)
            for name in ("gpt-oss", "gemma4")
        ),
    ],
)
def packages(request, tmp_path_factory):
    """Return the folders of packages of one shape by their quantization."""
    folder = tmp_path_factory.mktemp("rounding")
    shapes = {**SHAPES, **CONFIGURED}
    synthesize(shapes[request.param], folder / "source")
    for name in ("f32", "q8_0"):
        rdrr.convert(folder / "source", folder / name, quantize=name)
    return {name: folder / name for name in ("f32", "q8_0")}


def test_without_roundings_the_logits_are_those_of_the_reference(packages):
    with rdrr.load(packages["q8_0"], backend="cpu", context=16) as model:
        expected = model.logits(IDS)
    logits = RoundedModel(rdrr.open_package(packages["q8_0"]), rounds=False).logits(IDS)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_activations_are_rounded_where_weights_are_quantized(packages):
    for name, rounds in (("q8_0", True), ("f32", False)):
        package = rdrr.open_package(packages[name])
        usual = RoundedModel(package, rounds=False).logits(IDS)
        distance = np.abs(RoundedModel(package).logits(IDS) - usual).max()
        error = distance / np.abs(usual).max()
        # Weights in f32 leave the gelu in f16, which only Gemma has here.
        assert (error > 2e-3) == rounds, (name, error)
