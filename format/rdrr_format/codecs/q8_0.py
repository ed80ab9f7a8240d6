"""Q8_0: 32 weights as int8 with one f16 scale; 34 bytes.

    d | q[32]        w = d * q        d = max|w| / 127

Bytes equal those of ggml's reference: the codes come from the unrounded scale, and halves round
away from zero.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._base import Bytes, Codec, Floats, f16_bytes, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q8_0"]


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    del importance
    groups = rows.reshape(-1, 32)
    # The absolute value also makes zero of minus zero.
    scale = np.abs(np.maximum(groups.max(axis=1), -groups.min(axis=1))) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
        scaled = groups * inverse[:, None]
        scaled[~np.isfinite(scaled)] = 0
    whole = np.trunc(scaled)
    # The fraction is exact, so the comparison is: adding 0.5 first would round 0.49999997 up.
    away = np.abs(scaled - whole) >= np.float32(0.5)
    codes = whole + np.where(away, np.copysign(np.float32(1), scaled), np.float32(0))
    out = np.empty((len(groups), 34), np.uint8)
    out[:, :2] = f16_bytes(scale, _DTYPE)
    out[:, 2:] = codes.astype(np.int8).view(np.uint8)
    return out.reshape(len(rows), -1)


def _dequantize(blocks: Bytes) -> Floats:
    return f16_floats(blocks[:, :2])[:, None] * blocks[:, 2:].view(np.int8).astype(np.float32)


Q8_0 = Codec(_DTYPE, _quantize, _dequantize)
