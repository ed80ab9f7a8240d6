"""Keys and values beyond the range of a cache, which the kernels store as NaN.

Every logit that depends on one is NaN then, and the id chosen from it is marked
(`rdrr_runtime.sampling.finite`), so nothing more is read back with the ids. Only where logits are
NaN, the cache is read for the cause. The NaN has the exponent of the number, see
snippets/range_mark.wgsl.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from rdrr_device.device import Device
from rdrr_format.errors import GenerationError

from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.generation_state import HEADER_WORDS, ROW_WORDS, State
from rdrr_runtime.records import NO_SLOT

LIMITS: Mapping[str, int] = MappingProxyType({"f16": 65504, "q8_0": 127 * 65504})
"""The largest number that a cache with f16 numbers holds, by its type."""

_EXPONENT_BITS = 0xFF
_BIAS = 127


def beyond_range(device: Device, state: State, cache: KvCache) -> GenerationError | None:
    """Return an error if the sequences of the last pass have keys or values beyond the range.

    Args:
        device: The device.
        state: Names the sequences, and the slots up to which each is looked at.
        cache: Their keys and values.
    """
    if cache.dtype not in LIMITS:
        return None
    limit = LIMITS[cache.dtype]
    for sequence, slots in _sequences(device, state, cache.context).items():
        for kind, layer, numbers in cache.halves(device, slots, sequence):
            largest = _largest(numbers)
            if largest is not None:
                return GenerationError(
                    f"the {kind} are beyond the range of a key-value cache in {cache.dtype}",
                    where=f"layer {layer}",
                    expected=f"at most {limit:,}",
                    found=_at_least(max(limit, largest)),
                    hint="load the model with `kv_dtype` f32 (`--kv-dtype f32`)",
                )
    return None


def _at_least(number: float) -> str:
    return f"{number:{',.0f' if number < 1e9 else '.1e'}} or more"


def _sequences(device: Device, state: State, context: int) -> dict[int, int]:
    """Return how many slots each sequence of the last pass has used, by sequence."""
    words = device.read(state.step).view(np.uint32)
    rows = words[HEADER_WORDS:].reshape(-1, ROW_WORDS)[: words[0]].tolist()
    slots: dict[int, int] = {}
    for *_, sequence, slot in rows:
        if slot != NO_SLOT:
            slots[sequence] = max(slots.get(sequence, 0), min(slot + 1, context))
    return slots


def _largest(numbers: npt.NDArray[np.uint16]) -> float | None:
    """Return a power of 2 that the largest number beyond the range reaches; None without one."""
    exponents = numbers[np.isnan(numbers.view(np.float16))] & _EXPONENT_BITS
    finite = exponents[exponents < _EXPONENT_BITS]
    return 2.0 ** (int(finite.max()) - _BIAS) if finite.size else None
