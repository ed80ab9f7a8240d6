"""Q4_0: 32 weights as 4-bit codes with one f16 scale; 18 bytes.

d | 16 bytes of codes (see `_groups32`)        w = d * (code - 8)
"""

from __future__ import annotations

from rdrr_format.codecs._groups32 import signed_codec
from rdrr_format.dtypes import DTYPES

Q4_0 = signed_codec(DTYPES["Q4_0"], levels=16, fractions=(1.0, 0.9, 0.8))
