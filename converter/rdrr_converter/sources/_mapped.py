"""Telling the system which part of a mapped file is read next.

Without it a mapped file arrives 128 KiB at a time, each behind a page fault that stops the reader.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def read_ahead(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array; if it is one run of a mapped file, the system begins to read it."""
    mapped = getattr(part, "_mmap", None)
    advice = getattr(mmap, "MADV_WILLNEED", None)  # where there is none it is a hint the less
    if not isinstance(mapped, mmap.mmap) or advice is None or not part.flags.c_contiguous:
        return part
    begin = part.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    aligned = begin - begin % mmap.PAGESIZE
    if part.nbytes:
        mapped.madvise(advice, aligned, begin + part.nbytes - aligned)
    return part
