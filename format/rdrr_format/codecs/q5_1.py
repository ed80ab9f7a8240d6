"""Q5_1: 32 weights as 5-bit codes with an f16 scale and an f16 minimum; 24 bytes.

d | m | 4 bytes of fifth bits | 16 bytes of codes (see `_groups32`)        w = d * code + m
"""

from __future__ import annotations

from rdrr_format.codecs._minimums32 import codec_with_minimum
from rdrr_format.dtypes import DTYPES

Q5_1 = codec_with_minimum(DTYPES["Q5_1"], levels=32)
