"""The error that is shown as usual for a type is that of normally distributed weights."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr._usual_errors import usual_error
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES


@pytest.mark.parametrize("dtype", [name for name in CODECS if DTYPES[name].usual_error])
def test_the_usual_error_is_that_of_normally_distributed_weights(dtype, rng):
    weights = rng.standard_normal((32, 2048), np.float32)
    codec = CODECS[dtype]
    decoded = codec.dequantize(codec.quantize(weights), weights.shape[1])
    error = np.sqrt(np.mean((decoded - weights) ** 2) / np.mean(weights**2))
    assert error == pytest.approx(DTYPES[dtype].usual_error, rel=0.05)


def test_it_is_a_percentage_or_a_dash_for_types_that_are_exact():
    assert usual_error("Q4_K") == "7.1 %"
    assert usual_error("Q8_0") == "0.54 %"
    assert usual_error("F32") == "-"
