"""The 12 bytes in which Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minimums.

bytes 0-3    low 6 bits: scale 0-3      top 2 bits: high bits of scale 4-7
bytes 4-7    low 6 bits: minimum 0-3    top 2 bits: high bits of minimum 4-7
bytes 8-11   low nibble: low 4 bits of scale 4-7, high nibble: low 4 bits of minimum 4-7
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs.base import Bytes


def pack_scales(scales: Bytes, mins: Bytes) -> Bytes:
    """Pack scales and minimums [n, 8], each 0 to 63, to bytes [n, 12]."""
    out = np.empty((len(scales), 12), np.uint8)
    out[:, 0:4] = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    out[:, 4:8] = mins[:, :4] | (mins[:, 4:] >> 4) << 6
    out[:, 8:12] = (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4
    return out


def unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack bytes [n, 12] to scales and minimums, [n, 8] each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=1)
    mins = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=1)
    return scales, mins
