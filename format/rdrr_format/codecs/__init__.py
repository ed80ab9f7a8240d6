"""The table of codecs: how every storage type quantizes and dequantizes.

Use `CODECS["Q4_K"].quantize(rows)` and `CODECS["Q4_K"].dequantize(blocks, K)`. Sizes and names of
the types are in `rdrr_format.dtypes`. Quantizing to block types equals ggml bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.codecs.bf16 import BF16, bf16_to_f32, f32_to_bf16
from rdrr_format.codecs.f16 import F16, f16_overflow_count
from rdrr_format.codecs.f32 import F32
from rdrr_format.codecs.mxfp4 import MXFP4
from rdrr_format.codecs.q4_0 import Q4_0
from rdrr_format.codecs.q4_1 import Q4_1
from rdrr_format.codecs.q4_k import Q4_K
from rdrr_format.codecs.q5_0 import Q5_0
from rdrr_format.codecs.q5_1 import Q5_1
from rdrr_format.codecs.q5_k import Q5_K
from rdrr_format.codecs.q6_k import Q6_K
from rdrr_format.codecs.q8_0 import Q8_0

__all__ = [
    "CODECS",
    "Bytes",
    "Codec",
    "Floats",
    "bf16_to_f32",
    "f16_overflow_count",
    "f32_to_bf16",
]

_TABLE = (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4)

CODECS: Mapping[str, Codec] = MappingProxyType({codec.dtype.name: codec for codec in _TABLE})
