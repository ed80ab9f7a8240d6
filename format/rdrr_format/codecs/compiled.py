"""What the numba-compiled searches share: how they are compiled, and ggml's rounding.

Importing this module imports numba, so codecs import it inside their quantizers: decoding and
validating never need numba.

fastmath is off and no operations are fused, so every sum is added in the order of ggml's loops and
every product is rounded as in ggml. Speed comes from vectorizing across groups: `LANES` groups lie
transposed in a tile, and each inner loop does the same step for all of them. A tile is one flat
array with its rows at constant offsets, because only then can the compiler prove that the rows do
not overlap, and use vector instructions without run-time checks.

numba's cache does not notice when a function in another file changes: after an edit here, delete
the `__pycache__` folders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import event

_LOG = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Groups in a tile: a multiple of every vector width, and few enough for the L1 cache.
LANES = 64
# Weights of a lane per step of the inner loops; more than one saves loads and stores of its sums.
UNROLL = 2

ZERO = np.float32(0)
ONE = np.float32(1)
TINY = np.float32(1e-15)  # ggml treats a group with smaller magnitudes as all zeros

# Adding MAGIC to a float32 of magnitude below 2^22 leaves the nearest integer (ties to even) in the
# low bits of the mantissa.
MAGIC = np.float32(12582912.0)
IN_RANGE = np.float32(4194303.0)


class _CompilationLog(event.Listener):
    """Logs each function of this project that numba compiles, at level INFO.

    Functions that come from the cache are not compiled. The first conversion after an installation
    spends most of its first seconds compiling.
    """

    def on_start(self, event: Any) -> None:
        """Log the name of the function."""
        function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
        if function is not None and function.__module__.startswith("rdrr_"):
            _LOG.info("compiling codecs (%s)", function.__qualname__)

    def on_end(self, event: Any) -> None:
        """Log nothing."""


event.register("numba:compile", _CompilationLog())  # type: ignore[no-untyped-call]


def compiled(function: _Function) -> _Function:
    """Compile on first use, without the GIL, and cache the machine code on disk.

    numba picks the first folder that can be written: `NUMBA_CACHE_DIR`, `__pycache__` beside the
    module, the user's cache folder. Where there is none, each process compiles anew.
    """
    try:
        dispatcher = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder that it may write its cache to
        dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    _tolerate_a_full_disk(dispatcher)
    return dispatcher  # type: ignore[return-value]


def _tolerate_a_full_disk(dispatcher: Any) -> None:
    """Ignore that the cache cannot be written; each process then compiles anew."""
    cache = getattr(dispatcher, "_cache", None)
    save = getattr(cache, "save_overload", None)
    if cache is None or save is None:
        # Another version of numba may lack these private attributes.
        return

    def try_to_save(*given: Any) -> None:
        with suppress(OSError):
            save(*given)

    cache.save_overload = try_to_save


def inlined(function: _Function) -> _Function:
    """Compile a function inline into each caller, which makes constant arguments constants."""
    return numba.njit(forceinline=True, error_model="numpy")(function)  # type: ignore[return-value]


@inlined
def nearest(value: Any) -> Any:
    """Return the nearest integer as ggml computes it, from the mantissa.

    The result is arbitrary for magnitudes of 2^22 and more.
    """
    return (np.float32(value + MAGIC).view(np.int32) & 0x007FFFFF) - 0x00400000


@inlined
def clipped_code(value: Any, low: Any, high: Any, in_range: bool) -> Any:
    """Return the nearest integer from `low` to `high`, as float32.

    `in_range` promises that |value| < IN_RANGE, which saves a third of the instructions.
    """
    if in_range:
        shifted = np.float32(value + MAGIC)
        return min(max(shifted, MAGIC + np.float32(low)), MAGIC + np.float32(high)) - MAGIC
    return np.float32(min(max(nearest(value), np.int32(low)), np.int32(high)))
