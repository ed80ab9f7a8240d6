"""Q4_1: 32 weights as 4-bit codes with an f16 scale and an f16 minimum; 20 bytes.

d | m | 16 bytes of codes (see `_groups32`)        w = d * code + m
"""

from __future__ import annotations

from rdrr_format.codecs._minimums32 import codec_with_minimum
from rdrr_format.dtypes import DTYPES

Q4_1 = codec_with_minimum(DTYPES["Q4_1"], levels=16)
