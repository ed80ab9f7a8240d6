"""Importance matrices: which columns of a tensor matter more, by the tensor's canonical name.

A file may name an entry as llama.cpp names the tensor, or by its canonical name. Experts that
llama.cpp stacks into one tensor share an entry, which holds their values one after another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import F32Array
from rdrr_converter.gguf.architectures import GGUF_ARCHITECTURES
from rdrr_converter.gguf.imatrix import ROWS, read_imatrix

# Tensors of llama.cpp's layers that the table of GGUF architectures does not list.
_MORE_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "self_attn.qkv_proj": "attn_qkv",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
    }
)
_EXPERT_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "gate_proj": "ffn_gate_exps",
        "up_proj": "ffn_up_exps",
        "down_proj": "ffn_down_exps",
        "w1": "ffn_gate_exps",
        "w3": "ffn_up_exps",
        "w2": "ffn_down_exps",
    }
)
_EXPERT = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "output.weight"


LEAST = 1e-3
"""The least sensitivity of a row or column, as a fraction of the mean.

A short text says nothing of the columns that it does not reach, and a block must not be fitted to
the others alone.
"""


@dataclass(frozen=True, eq=False)
class Importance:
    """How much the errors of a matrix count.

    Attributes:
        columns: Importance of each column, float32 [K].
        rows: Importance of each row, float32 [N], so that an error counts
            rows[n] * columns[k] / sum(rows); None if only columns are known, and only among each
            other.
    """

    columns: F32Array
    rows: F32Array | None = None


@dataclass(frozen=True, eq=False)
class ImportanceMatrix:
    """An importance matrix as read from its file.

    Attributes:
        path: The file.
        entries: Mean squared activations of the input columns, by the names in the file.
    """

    path: Path
    entries: Mapping[str, F32Array]

    def of(self, name: str, shape: Sequence[int], *, tied: bool) -> Importance | None:
        """Return the importance of a tensor's rows and columns; None if there is no entry.

        Args:
            name: Canonical name.
            shape: Its shape, of which the first is the number of rows and the last of columns.
            tied: Whether the embedding is also the output head.

        Raises:
            SourceError: The entry has another number of columns or rows.
        """
        columns = self._entry(name, "", shape[-1], tied=tied)
        rows = self._entry(name, ROWS, shape[0], tied=tied)
        if columns is None:
            return None
        if rows is None:
            return Importance(columns)
        return Importance(_raised(columns), _raised(rows))

    @property
    def has_rows(self) -> bool:
        """Whether any entry has the importance of rows, which llama.cpp does not measure."""
        return any(name.endswith(ROWS) for name in self.entries)

    def _entry(self, name: str, suffix: str, size: int, *, tied: bool) -> F32Array | None:
        """Return `size` values of the entry of a tensor whose name there ends with a suffix."""
        for candidate, expert in _names(name, tied=tied):
            values = self.entries.get(candidate + suffix)
            if values is None:
                continue
            if values.size % size or (expert is None and values.size != size):
                raise SourceError(
                    "the importance matrix belongs to another model",
                    where=f"{self.path}, {candidate}{suffix}",
                    expected=f"{size} values" + (" for each expert" if expert is not None else ""),
                    found=values.size,
                )
            by_expert = values.reshape(-1, size)
            if (expert or 0) < len(by_expert):
                row: F32Array = by_expert[expert or 0]
                return row
        return None


def load_importance(path: Path) -> ImportanceMatrix:
    """Read an importance matrix.

    Raises:
        SourceError: The file is not an importance matrix.
    """
    return ImportanceMatrix(path, read_imatrix(path))


def _raised(values: F32Array) -> F32Array:
    """Return values of which none is too far below the mean; ones if all are zero."""
    mean = values.mean()
    raised: F32Array = np.maximum(values, np.float32(LEAST) * mean)
    return raised if mean > 0 else np.ones_like(values)


def llama_name(name: str) -> tuple[str | None, int | None]:
    """Return llama.cpp's name of a tensor and its index in a stack of experts.

    The name is None if llama.cpp has none; the index is None if the tensor is not an expert.
    """
    match = _EXPERT.fullmatch(name)
    if match is not None and match[3] in _EXPERT_PARTS:
        return f"blk.{match[1]}.{_EXPERT_PARTS[match[3]]}.weight", int(match[2])
    known = next(iter(GGUF_ARCHITECTURES.values())).llama_name(name)
    match = _LAYER.fullmatch(name)
    if known is None and match is not None and match[2] in _MORE_PARTS:
        return f"blk.{match[1]}.{_MORE_PARTS[match[2]]}.weight", None
    return known, None


def _names(name: str, *, tied: bool) -> Iterator[tuple[str, int | None]]:
    """Yield the names that an entry may have, each with the index of the expert in the entry."""
    yield name, None
    gguf_name, expert = llama_name(name)
    if gguf_name is not None:
        yield gguf_name, expert
    if tied and name == _EMBEDDING:
        yield _HEAD, None
