"""What the compiled searches share: how they are compiled, and ggml's rounding.

Importing this module imports numba, so codecs import it inside their quantizers: decoding and
validating never pay for it.

fastmath stays off and nothing is fused, so every sum keeps the order of ggml's loops and every
product its rounding. Speed comes from working across groups: `LANES` groups lie transposed in a
tile, and each compiled inner loop does the same step for all of them. A tile is one flat array
with its rows at constant offsets, because only then does the compiler see that they do not
overlap and use vector instructions without run-time checks.

numba does not notice in its cache when a function of another file changes: after an edit here,
delete the `__pycache__` folders.
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

# Groups worked on together: some vectors of every width, and the tile stays in the first cache.
LANES = 64
# Weights of a lane that the inner loops take in one go, to save loads and stores of its sums.
UNROLL = 2

ZERO = np.float32(0)
ONE = np.float32(1)
TINY = np.float32(1e-15)  # ggml's bound below which a group counts as zeros

# Added to a float32 of magnitude below 2^22, it leaves the nearest integer (ties to even) in the
# low mantissa bits.
MAGIC = np.float32(12582912.0)
IN_RANGE = np.float32(4194303.0)


class _CompilationLog(event.Listener):
    """Logs each function of this project that numba compiles; those in its cache are not compiled.

    The first conversion after an installation spends most of its first seconds so.
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
    """Compile on first use, without the GIL; keep the code where a cache can be written."""
    try:
        made = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder that it may write its cache to
        return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[return-value]
    _cache_if_possible(made)
    return made  # type: ignore[return-value]


def _cache_if_possible(made: Any) -> None:
    """Let the code be used that was compiled, also where it cannot be kept, as on a full disk."""
    cache = getattr(made, "_cache", None)
    save = getattr(cache, "save_overload", None)
    if cache is None or save is None:  # a numba that is made otherwise
        return

    def try_to_save(*given: Any) -> None:
        with suppress(OSError):
            save(*given)

    cache.save_overload = try_to_save


def inlined(function: _Function) -> _Function:
    """Compile into each caller, so that constant arguments become constants of the code."""
    return numba.njit(forceinline=True, error_model="numpy")(function)  # type: ignore[return-value]


@inlined
def nearest(value: Any) -> Any:
    """Nearest integer as ggml takes it: from the mantissa, so anything where out of range."""
    return (np.float32(value + MAGIC).view(np.int32) & 0x007FFFFF) - 0x00400000


@inlined
def clipped_code(value: Any, low: Any, high: Any, in_range: bool) -> Any:
    """Nearest integer from low to high as float32; `in_range` promises |value| < IN_RANGE.

    The promise saves a third of the instructions.
    """
    if in_range:
        shifted = np.float32(value + MAGIC)
        return min(max(shifted, MAGIC + np.float32(low)), MAGIC + np.float32(high)) - MAGIC
    return np.float32(min(max(nearest(value), np.int32(low)), np.int32(high)))
