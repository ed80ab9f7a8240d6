"""Whole tensors are encoded and decoded in every type and layout."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES, parse_dtype
from rdrr_format.encoding import decode_rows, decode_tensor, encode_tensor
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout, geometry

SHAPES = {
    Layout.ROW: [(), (5,), (3, 256), (7, 300), (2, 3, 64), (0, 256), (3, 0)],
    Layout.FLAT: [(), (5,), (3, 256), (7, 300), (2, 3, 64), (0, 256)],
    Layout.COLUMN: [(256, 3), (300, 7), (3, 5), (0, 4), (4, 0)],
}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    ("layout", "shape"), [(layout, shape) for layout, shapes in SHAPES.items() for shape in shapes]
)
def test_a_tensor_has_the_size_of_its_geometry_and_is_decoded_to_its_shape(
    name, layout, shape, rng
):
    dtype = DTYPES[name]
    array = rng.standard_normal(shape).astype(np.float32)
    raw = encode_tensor(array, dtype, layout)
    assert raw.dtype == np.uint8
    assert raw.shape == (geometry(dtype, shape, layout).size,)
    back = decode_tensor(raw, dtype, shape, layout)
    assert back.shape == shape
    # The largest weights of MXFP4 are up to a quarter off, by twice the step below them.
    atol = 0.25 * np.abs(array).max(initial=0.0) if name == "MXFP4" else 0.6
    np.testing.assert_allclose(back, array, atol=atol)


def test_layout_row_is_the_codec_applied_to_the_rows(rng):
    array = rng.standard_normal((4, 300)).astype(np.float32)
    expected = CODECS["Q4_K"].quantize(array).reshape(-1)
    assert np.array_equal(encode_tensor(array, DTYPES["Q4_K"]), expected)


def test_layout_column_is_the_transposed_matrix_in_layout_row(rng):
    array = rng.standard_normal((300, 4)).astype(np.float32)
    for name in ("Q4_K", "F16", "F32"):
        column = encode_tensor(array, DTYPES[name], Layout.COLUMN)
        assert np.array_equal(column, encode_tensor(array.T, DTYPES[name]))


def test_layout_flat_equals_row_only_if_the_row_length_is_a_multiple_of_the_block_size(rng):
    whole = rng.standard_normal((3, 512)).astype(np.float32)
    ragged = rng.standard_normal((4, 384)).astype(np.float32)
    q4_k = DTYPES["Q4_K"]
    assert np.array_equal(encode_tensor(whole, q4_k, Layout.FLAT), encode_tensor(whole, q4_k))
    assert encode_tensor(ragged, q4_k, Layout.FLAT).size == 6 * 144
    assert encode_tensor(ragged, q4_k).size == 8 * 144


@pytest.mark.parametrize("layout", Layout)
def test_some_rows_decode_as_in_the_whole_tensor(layout, rng):
    array = rng.standard_normal((40, 300)).astype(np.float32)
    dtype = DTYPES["Q6_K"]
    geo = geometry(dtype, array.shape, layout)
    raw = encode_tensor(array, dtype, layout)
    whole = decode_rows(raw, dtype, geo, 0, geo.rows)
    middle = geo.rows // 2
    assert np.array_equal(decode_rows(raw, dtype, geo, middle, 1), whole[middle : middle + 1])
    assert decode_rows(raw, dtype, geo, 0, 0).shape == (0, geo.row_elements)


def test_rows_outside_the_tensor_are_refused(rng):
    dtype = DTYPES["Q8_0"]
    raw = encode_tensor(rng.standard_normal((4, 32)), dtype)
    geo = geometry(dtype, (4, 32))
    assert decode_rows(raw, dtype, geo, 3, 1).shape == (1, 32)  # control
    with pytest.raises(FormatError, match="within 0 to 4"):
        decode_rows(raw, dtype, geo, 3, 2)
    with pytest.raises(FormatError, match="too short"):
        decode_rows(raw[:-1], dtype, geo, 3, 1)


def test_a_tensor_of_another_size_is_refused(rng):
    dtype = DTYPES["Q4_K"]
    raw = encode_tensor(rng.standard_normal((2, 256)), dtype)
    assert decode_tensor(raw, dtype, (2, 256)).shape == (2, 256)  # control
    with pytest.raises(FormatError, match="expected 288, found 287"):
        decode_tensor(raw[:-1], dtype, (2, 256))


def test_layout_column_needs_a_matrix(rng):
    with pytest.raises(FormatError, match="matrix"):
        encode_tensor(rng.standard_normal((2, 3, 4)), DTYPES["F16"], Layout.COLUMN)


def test_importance_is_allowed_for_layout_row_only(rng):
    array = rng.standard_normal((256, 256)).astype(np.float32)
    importance = np.ones(256, np.float32)
    assert encode_tensor(array, DTYPES["Q4_K"], Layout.ROW, importance).size  # control
    for layout in (Layout.COLUMN, Layout.FLAT):
        with pytest.raises(FormatError, match="layout row"):
            encode_tensor(array, DTYPES["Q4_K"], layout, importance)


def test_integers_have_no_codec():
    with pytest.raises(FormatError, match="I64"):
        encode_tensor(np.zeros(4), DTYPES["I64"])


@pytest.mark.parametrize(
    ("text", "name"), [("Q4_K_M", "Q4_K"), ("q4_k", "Q4_K"), ("bfloat16", "BF16"), ("f16", "F16")]
)
def test_spellings_of_a_type_mean_the_same(text, name):
    assert parse_dtype(text) is DTYPES[name]


def test_an_unknown_type_is_named():
    with pytest.raises(FormatError, match="Q9_K"):
        parse_dtype("Q9_K")
