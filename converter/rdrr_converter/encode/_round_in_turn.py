"""The inner loop of compensation. Importing this module imports numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs.compiled import compiled

_F32 = npt.NDArray[np.float32]

_TINY = np.float32(1e-30)
_ZERO = np.float32(0)


@compiled
def round_in_turn(
    left: _F32, factor: _F32, lowest: _F32, step: _F32, highest: np.float32, errors: _F32
) -> None:
    """Round the weights of each output one by one to their grids, moving the later ones.

    Args:
        left: Weights [outputs, inputs], which become the rounded values.
        factor: Upper triangular matrix [inputs, inputs], see `compensate`.
        lowest: Value of code 0 of each weight, [outputs, inputs].
        step: Difference of two codes of each weight, [outputs, inputs].
        highest: The highest code.
        errors: Receives the error of each weight in units of the factor, [outputs, inputs].
    """
    inputs = left.shape[1]
    for row in range(left.shape[0]):
        for at in range(inputs):
            low, width, weight = lowest[row, at], step[row, at], left[row, at]
            # The value of a group without a step is the same whatever its codes are.
            code = _ZERO if abs(width) < _TINY else np.rint((weight - low) / width)
            value = low + min(max(code, _ZERO), highest) * width
            error = (weight - value) / factor[at, at]
            left[row, at] = value
            errors[row, at] = error
            for later in range(at + 1, inputs):
                left[row, later] -= error * factor[at, later]
