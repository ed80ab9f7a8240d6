"""Compensated errors: less error of the products, at the same size, whatever type and layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_converter.encode.compensate import compensate, inverse_factor, is_compensable
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES
from rdrr_format.encoding import decode_tensor, encode_tensor
from rdrr_format.layouts import Layout

N, K = 256, 300  # with a padded block at the end of each row
TYPES = ["Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def correlated(rng, count):
    """Activations of which each depends on a few others, as those of a model do."""
    hidden = rng.standard_normal((count, K // 4))
    mixed = hidden @ np.random.default_rng(0).standard_normal((K // 4, K))
    return torch.from_numpy((mixed + rng.standard_normal((count, K))).astype(np.float32))


def decoded(stored, dtype, layout):
    return torch.from_numpy(decode_tensor(stored.reshape(-1), dtype, (N, K), layout))


@pytest.mark.cover
@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
@pytest.mark.parametrize("name", TYPES)
def test_products_with_other_inputs_of_the_kind_have_less_error(name, layout, rng):
    dtype = DTYPES[name]
    weight = torch.from_numpy(rng.standard_normal((N, K)).astype(np.float32))
    seen, other = correlated(rng, 2000), correlated(rng, 500)
    factor = inverse_factor((seen.T @ seen / len(seen)).double())
    plain = decoded(encode_tensor(weight.numpy(), dtype, layout), dtype, layout)
    stored = compensate(weight, factor, dtype, layout)
    assert stored.size == encode_tensor(weight.numpy(), dtype, layout).size

    def error(values):
        return float((other @ (weight - values).T).square().mean())

    assert error(decoded(stored, dtype, layout)) < 0.8 * error(plain)


@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
def test_inputs_that_do_not_depend_on_each_other_get_the_nearest_codes(layout, rng):
    dtype = DTYPES["Q4_K"]
    weight = rng.standard_normal((N, K)).astype(np.float32)
    stored = compensate(
        torch.from_numpy(weight), inverse_factor(torch.eye(K).double()), dtype, layout
    )
    plain = encode_tensor(weight, dtype, layout)
    nearest = CODECS["Q4_K"].requantize(
        plain.reshape(stored.shape), weight if layout is Layout.ROW else weight.T
    )
    # A value in the middle between two codes may get either.
    assert np.mean(stored != nearest) < 1e-3


def test_inputs_that_are_always_zero_are_quantized_alone():
    hessian = torch.zeros(K, K, dtype=torch.float64)
    factor = inverse_factor(hessian)
    assert torch.equal(factor, factor.diagonal().diag())
    assert (factor.diagonal() > 0).all()


def test_what_has_no_codes_or_no_rows_is_left_alone():
    assert is_compensable(DTYPES["Q4_K"], Layout.COLUMN)
    assert not is_compensable(DTYPES["Q4_K"], Layout.FLAT)
    assert not is_compensable(DTYPES["MXFP4"], Layout.ROW)
    assert not is_compensable(DTYPES["F16"], Layout.ROW)
