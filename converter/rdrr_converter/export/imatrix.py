"""Writing an importance matrix as the GGUF of llama.cpp, which its tools and ours read.

Entries get llama.cpp's names. Experts become rows of one entry, and a fused matrix an entry for
each of the matrices that it may have been fused from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import UsageError
from rdrr_format.stores import store_errors

from rdrr_converter.export._gguf import complete_file
from rdrr_converter.importance import llama_name
from rdrr_converter.sources.imatrix import COUNTS, SUMS, TYPE

_F64 = npt.NDArray[np.float64]

_FUSED: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
}


@dataclass(frozen=True, eq=False)
class Activations:
    """What a tensor was multiplied with.

    Attributes:
        sums: Sum of the squares of each input, float64 [K].
        count: Rows that were summed.
    """

    sums: _F64
    count: int


@dataclass(frozen=True)
class Origin:
    """The text that activations come from.

    Attributes:
        text: Name of its file.
        windows: Pieces it was cut into.
        window: Tokens of a piece.
    """

    text: str
    windows: int
    window: int


def check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file unasked.

    Raises:
        UsageError: There is a file already.
    """
    if path.exists() and not overwrite:
        raise UsageError(
            "the file is there already", where=path, hint="use `overwrite` to replace it"
        )


def write_imatrix(path: Path, seen: Mapping[str, Activations], origin: Origin) -> int:
    """Write an importance matrix; the file appears when it is complete.

    Args:
        path: File to make.
        seen: By canonical names.
        origin: Where it comes from.

    Returns:
        Number of entries.

    Raises:
        StoreError: It cannot be written.
    """
    from gguf import GGUFWriter

    entries = _entries(seen)
    with complete_file(path) as partial, store_errors(path):
        writer = GGUFWriter(partial, "")
        # What the container says of models does not fit here: a matrix has no architecture.
        writer.kv_data[0].clear()
        writer.add_type(TYPE)
        writer.add_array("imatrix.datasets", [origin.text])
        writer.add_uint32("imatrix.chunk_count", origin.windows)
        writer.add_uint32("imatrix.chunk_size", origin.window)
        for name, experts in entries.items():
            sums = np.stack([one.sums for one in experts]).astype(np.float32)
            counts = np.array([[one.count] for one in experts], np.float32)
            writer.add_tensor(name + SUMS, sums)
            writer.add_tensor(name + COUNTS, counts)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return len(entries)


def _entries(seen: Mapping[str, Activations]) -> dict[str, list[Activations]]:
    """Entries by name, sorted, each with its experts in order."""
    places: dict[str, dict[int, Activations]] = {}
    for name, one in seen.items():
        for known in _unfused(name):
            theirs, expert = llama_name(known)
            places.setdefault(theirs or known, {})[expert or 0] = one
    return {name: _stack(experts) for name, experts in sorted(places.items())}


def _stack(experts: Mapping[int, Activations]) -> list[Activations]:
    """All experts up to the last; those that no token reached have a count of 0."""
    silent = Activations(np.zeros_like(next(iter(experts.values())).sums), 0)
    return [experts.get(number, silent) for number in range(max(experts) + 1)]


def _unfused(name: str) -> Iterator[str]:
    yield name
    for fused, parts in _FUSED.items():
        if f".{fused}." in name:
            yield from (name.replace(fused, part) for part in parts)
