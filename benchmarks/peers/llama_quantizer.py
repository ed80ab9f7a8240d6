"""llama.cpp's quantizer, a reference for rdrr's: it quantizes a GGUF file to one of its mixes."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from peers.llama_cpp import LlamaCpp, UnavailableError

FILE_TYPES: Mapping[str, int] = MappingProxyType(
    {"q4_0": 2, "q8_0": 7, "q5_0": 8, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17,
     "q6_k": 18, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "iq4_xs": 30}
)  # fmt: skip
"""Values of llama.cpp's public enum `llama_ftype`, by rdrr's name of the mix, where it has one."""

_NO_TYPE = 43  # GGML_TYPE_COUNT of the release, which means "as the mix says"


class _ImportanceEntry(c.Structure):
    """`llama_model_imatrix_data`; arrays of it end with an empty entry."""

    _fields_ = (("name", c.c_char_p), ("data", c.c_void_p), ("size", c.c_size_t))


class _Params(c.Structure):
    """`llama_model_quantize_params`; `rest` covers its last fields, which keep their defaults."""

    _fields_ = (
        ("nthread", c.c_int32),
        ("ftype", c.c_int),
        ("output_tensor_type", c.c_int),
        ("token_embedding_type", c.c_int),
        ("allow_requantize", c.c_bool),
        ("quantize_output_tensor", c.c_bool),
        ("only_copy", c.c_bool),
        ("pure", c.c_bool),
        ("keep_split", c.c_bool),
        ("dry_run", c.c_bool),
        ("imatrix", c.POINTER(_ImportanceEntry)),
        ("rest", c.c_uint8 * 128),
    )


def quantize(
    library: LlamaCpp,
    source: Path,
    out: Path,
    recipe: str,
    importance: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> None:
    """Quantize a GGUF file.

    Args:
        library: The loaded libraries.
        source: GGUF file in F32 or F16.
        out: GGUF file to write.
        recipe: Name of the mix, a key of `FILE_TYPES`.
        importance: Importance matrix: mean squared activations by GGUF tensor name.

    Raises:
        UnavailableError: This is another release, or llama.cpp refuses the file.
    """
    params = _Params()
    defaults = library.llama.llama_model_quantize_default_params
    # By the calling convention, a struct this large is returned through a hidden first pointer.
    defaults.restype, defaults.argtypes = None, [c.c_void_p]
    defaults(c.byref(params))
    stated = (params.nthread, params.output_tensor_type, params.token_embedding_type)
    if stated != (0, _NO_TYPE, _NO_TYPE) or not params.quantize_output_tensor or params.imatrix:
        raise UnavailableError(
            "this is another release of llama.cpp: its quantizer has other default parameters"
        )
    params.ftype = FILE_TYPES[recipe]
    if importance is not None:
        arrays = {name: np.ascontiguousarray(array) for name, array in importance.items()}
        entries = [
            _ImportanceEntry(name.encode(), array.ctypes.data, array.size)
            for name, array in arrays.items()
        ]
        params.imatrix = (_ImportanceEntry * (len(entries) + 1))(*entries)
    function = library.llama.llama_model_quantize
    function.restype, function.argtypes = c.c_uint32, [c.c_char_p, c.c_char_p, c.c_void_p]
    if function(str(source).encode(), str(out).encode(), c.byref(params)) != 0:
        raise UnavailableError("; ".join(library.messages[-3:]) or "llama.cpp refuses the file")
