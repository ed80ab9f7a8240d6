"""Parts of a stack are read as its rows, however the stack is stored."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from rdrr_converter.architectures.base import Arrangement
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.convert import convert
from rdrr_converter.reading.interleaved import arrange, stacked_shape, take_apart
from rdrr_converter.reading.stacks import unstack
from rdrr_format.codecs import CODECS
from rdrr_format.errors import SourceError
from rdrr_manifests.package import open_package
from safetensors.numpy import load_file
from support.checkpoints import make_checkpoint
from support.tiny_models import MORE_MODELS

SHAPES = [(96, 64), (32, 64), (64, 64)]
ENDS = [96, 128]


def hold(values: np.ndarray) -> np.ndarray:
    return values


def stack_of(kind: str, values: np.ndarray) -> SourceTensor:
    """Return a stack of three matrices, stored as `kind`."""

    def decode(rows: slice, columns: slice) -> np.ndarray:
        return values[rows, columns]

    if kind == "decoded":
        return SourceTensor("s", values.shape, "F8_E4M3", "f", partial(hold, values), decode=decode)
    stored = CODECS[kind].quantize(values) if kind == "Q8_0" else values
    return SourceTensor("s", values.shape, kind, "f", partial(hold, stored))


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "decoded"])
def test_the_parts_of_a_stack_are_its_rows(rng, kind):
    values = rng.standard_normal((192, 64)).astype(np.float32)
    whole = stack_of(kind, values)
    parts = list(unstack(whole, SHAPES))
    assert [part.shape for part in parts] == SHAPES
    assert len({part.name for part in parts}) == 3
    expected = np.split(whole.read(), ENDS)
    for part, rows in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part.read(), rows)
        np.testing.assert_array_equal(part.read(slice(8, 24), slice(5, 40)), rows[8:24, 5:40])
        np.testing.assert_array_equal(part.read_transposed(slice(32, 64)), rows[:, 32:64].T)
        assert measure(part).largest == np.abs(rows).max()
        assert part.is_block == whole.is_block


ARRANGEMENTS = {
    "alternating": Arrangement(alternating=True),
    "transposed": Arrangement(transposed=True),
    "alternating and transposed": Arrangement(alternating=True, transposed=True),
    "columns": Arrangement(columns=True),
    "alternating columns": Arrangement(alternating=True, columns=True),
}


@pytest.mark.parametrize("kind", ["F32", "decoded"])
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_the_parts_of_an_arranged_stack_are_those_it_was_made_of(rng, name, kind):
    how, shape, experts = ARRANGEMENTS[name], (48, 32), 3
    parts = rng.standard_normal((experts, 2, *shape)).astype(np.float32)
    values = np.concatenate([arrange(list(group), how) for group in parts])
    whole = stack_of(kind, values)
    assert stacked_shape(how, [shape] * 2, experts) == (
        experts,
        *values[: len(values) // 3].shape,
    )
    taken = list(take_apart(whole, [shape] * 2, how, experts))
    for part, expected in zip(taken, parts.reshape(-1, *shape), strict=True):
        assert part.shape == shape
        np.testing.assert_array_equal(part.read(), expected)
        np.testing.assert_array_equal(part.read(slice(8, 24), slice(5, 30)), expected[8:24, 5:30])
        np.testing.assert_array_equal(part.read_transposed(slice(7, 20)), expected[:, 7:20].T)
        assert measure(part).largest == np.abs(expected).max()


def test_alternating_rows_keep_their_blocks_and_other_arrangements_cannot(rng):
    values = rng.standard_normal((192, 64)).astype(np.float32)
    whole = stack_of("Q8_0", values)
    first, second = take_apart(whole, [(96, 64)] * 2, ARRANGEMENTS["alternating"])
    assert first.is_block
    np.testing.assert_array_equal(second.stored(), whole.stored()[1::2])
    with pytest.raises(SourceError, match="cannot be split"):
        next(take_apart(whole, [(64, 96)] * 2, ARRANGEMENTS["transposed"]))


def test_the_experts_of_a_three_dimensional_tensor_are_matrices(rng):
    values = rng.standard_normal((3, 4, 8)).astype(np.float32)
    whole = SourceTensor("e", values.shape, "F32", "f", partial(hold, values.reshape(12, 8)))
    for part, expected in zip(unstack(whole, [(4, 8)] * 3), values, strict=True):
        np.testing.assert_array_equal(part.read(), expected)


def test_gate_and_up_from_one_stack_can_be_fused_again(tmp_path, rng):
    tiny = next(model for model in MORE_MODELS if model.model_type == "phi3")
    folder = make_checkpoint(tiny, tmp_path / "model", rng, dtype="float32", num_hidden_layers=1)
    convert(folder, tmp_path / "out", quantize="f32", fuse_gate_up=True)
    name = "model.layers.0.mlp.gate_up_proj.weight"
    with open_package(tmp_path / "out") as package:
        values = package.dequantize(name)
    np.testing.assert_array_equal(values, load_file(folder / "model.safetensors")[name])
