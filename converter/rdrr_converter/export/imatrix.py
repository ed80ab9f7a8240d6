"""Writing an importance matrix as a GGUF that llama.cpp and rdrr read.

Entries have llama.cpp's names. Experts are rows of one entry. A fused matrix gets an additional
entry for each matrix that it may have been fused from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import UsageError
from rdrr_format.stores import store_errors

from rdrr_converter.export._gguf_container import atomic_file
from rdrr_converter.gguf.imatrix import COUNTS, ROWS, SUMS, TYPE
from rdrr_converter.importance import llama_name

_F64 = npt.NDArray[np.float64]

_FUSED: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
}


@dataclass(frozen=True, eq=False)
class Activations:
    """Statistics of the activations that a weight was multiplied with.

    Attributes:
        sums: Sum of the squares of each input column, float64 [K].
        count: Number of activation rows that were summed.
        rows: How much the errors of each row count, summed likewise, float64 [N]; None if unknown.
    """

    sums: _F64
    count: int
    rows: _F64 | None = None


@dataclass(frozen=True)
class Origin:
    """The calibration text of an importance matrix.

    Attributes:
        text: Name of its file.
        windows: Number of chunks that the text was split into.
        window: Number of tokens in a chunk.
    """

    text: str
    windows: int
    window: int


def check_free(path: Path, *, overwrite: bool) -> None:
    """Check that the file does not exist, or may be replaced.

    Raises:
        UsageError: The file exists and `overwrite` is not set.
    """
    if path.exists() and not overwrite:
        raise UsageError(
            "the file is there already", where=path, hint="use `overwrite` to replace it"
        )


def write_imatrix(path: Path, seen: Mapping[str, Activations], origin: Origin) -> int:
    """Write an importance matrix; the file appears only when it is complete.

    Args:
        path: The file to create.
        seen: Statistics of the activations by canonical names of weights.
        origin: The calibration text.

    Returns:
        Number of entries.

    Raises:
        StoreError: The file cannot be written.
    """
    from gguf import GGUFWriter

    entries = _entries(seen)
    with atomic_file(path) as partial, store_errors(path):
        writer = GGUFWriter(partial, "")
        # gguf-py states an architecture, which an importance matrix does not have.
        writer.kv_data[0].clear()
        writer.add_type(TYPE)
        writer.add_array("imatrix.datasets", [origin.text])
        writer.add_uint32("imatrix.chunk_count", origin.windows)
        writer.add_uint32("imatrix.chunk_size", origin.window)
        for name, experts in entries.items():
            sums = np.stack([expert.sums for expert in experts]).astype(np.float32)
            counts = np.array([[expert.count] for expert in experts], np.float32)
            writer.add_tensor(name + SUMS, sums)
            writer.add_tensor(name + COUNTS, counts)
            rows = [expert.rows for expert in experts if expert.rows is not None]
            if len(rows) == len(experts):
                writer.add_tensor(name + ROWS, np.stack(rows).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return len(entries)


def _entries(seen: Mapping[str, Activations]) -> dict[str, list[Activations]]:
    """Return the entries sorted by name, each with one item per expert."""
    by_name: dict[str, dict[int, Activations]] = {}
    for name, activations in seen.items():
        for known in _unfused(name):
            gguf_name, expert = llama_name(known)
            by_name.setdefault(gguf_name or known, {})[expert or 0] = activations
    return {name: _stack(experts) for name, experts in sorted(by_name.items())}


def _stack(experts: Mapping[int, Activations]) -> list[Activations]:
    """Return the experts up to the last one; those without any token have a count of 0."""
    without_tokens = Activations(np.zeros_like(next(iter(experts.values())).sums), 0)
    return [experts.get(number, without_tokens) for number in range(max(experts) + 1)]


def _unfused(name: str) -> Iterator[str]:
    yield name
    for fused, parts in _FUSED.items():
        if f".{fused}." in name:
            yield from (name.replace(fused, part) for part in parts)
