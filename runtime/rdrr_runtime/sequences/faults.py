"""Errors for ids, logits and hidden states from the GPU that are not finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_device.device import Device
from rdrr_format.errors import GenerationError

from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.cache.range_check import beyond_range
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.sampling.finite import check_ids

F32 = npt.NDArray[np.float32]


class Faults:
    """The checks of what the passes of some sequences return.

    Args:
        device: The device.
        state: The inputs of the passes.
        cache: The keys and values of the sequences.
    """

    def __init__(self, device: Device, state: State, cache: KvCache) -> None:
        self._of_cache = device, state, cache

    def check_ids(self, ids: npt.NDArray[np.uint32] | Sequence[int]) -> None:
        """Raise an error if an id is marked.

        Raises:
            GenerationError: The logits that the id was chosen from are not finite; it says so if
                keys or values are beyond the range of the cache.
        """
        try:
            check_ids(ids)
        except GenerationError as error:
            raise beyond_range(*self._of_cache) or error from None

    def check_rows(self, rows: F32) -> F32:
        """Return logits or hidden states, unless the cache makes them NaN.

        If one of the first elements is finite, all elements that depend on the cache are.

        Args:
            rows: f32 [rows, width].

        Raises:
            GenerationError: Keys or values are beyond the range of the cache.
        """
        if np.isnan(rows[:, :1]).any() and (error := beyond_range(*self._of_cache)):
            raise error
        return rows
