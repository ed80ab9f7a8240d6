"""Q5_0: 32 weights as 5-bit codes with one f16 scale; 22 bytes.

d | 4 bytes of fifth bits | 16 bytes of codes (see `_groups32`)        w = d * (code - 16)
"""

from __future__ import annotations

from rdrr_format.codecs._groups32 import signed_codec
from rdrr_format.dtypes import DTYPES

Q5_0 = signed_codec(DTYPES["Q5_0"], levels=32, fractions=(1.0, 0.94))
