"""Advise the operating system which part of a mapped file will be read next.

Without this, a mapped file is read 128 KiB at a time, and the reader waits for a page fault each
time.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def read_ahead(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array unchanged; if it is contiguous in a mapped file, start reading it ahead."""
    mapped = getattr(part, "_mmap", None)
    advice = getattr(mmap, "MADV_WILLNEED", None)  # missing on some systems; it is only a hint
    if not isinstance(mapped, mmap.mmap) or advice is None or not part.flags.c_contiguous:
        return part
    begin = part.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    aligned = begin - begin % mmap.PAGESIZE
    if part.nbytes:
        mapped.madvise(advice, aligned, begin + part.nbytes - aligned)
    return part
