"""Tensors of linear attention and of short convolutions in GGUF files: Qwen 3.5, Qwen 3 Next, LFM2.

llama.cpp stores -exp(A_log), and convolutions without the dimension of size 1. For Qwen 3.5 it
also orders the value heads of linear attention so that the heads of different key heads alternate:
value head v of key head k is stored as head v * key_heads + k, while Hugging Face has the value
heads of one key head after the other. Reading restores the order of Hugging Face. That moves rows,
except in the output projection, where it moves columns: blocks that contain columns of several
heads cannot be moved and are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.models import Architecture
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.checkpoint.source import F32Array, SourceTensor
from rdrr_converter.gguf.draft_head import further_name
from rdrr_converter.gguf.storage_types import decoded_type, storage_type

Order = npt.NDArray[np.intp]
"""For each stored row or column, its index in the order of Hugging Face."""

PLAIN_NORM = "linear_attn.norm"
"""A norm whose weights llama.cpp stores as Hugging Face does, unlike all others of its models."""

_RATE = "linear_attn.A_log"
"""The logarithms of the rates of decay."""

_CONVOLUTIONS = (".conv1d.weight", ".conv.conv.weight")
_GATES = ".in_proj_ba.weight"


@dataclass(frozen=True)
class ValueHeads:
    """The heads of linear attention, and the order in which llama.cpp stores the value heads.

    Attributes:
        key_heads: Number of key heads.
        heads: Number of value heads, a multiple of `key_heads`.
        key_dim: Elements of a key.
        value_dim: Elements of a value.
    """

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int

    def rows(self, name: str) -> Order | None:
        """Return the order of the rows of a tensor, or of the elements of a vector.

        Args:
            name: Hugging Face's name of the tensor.

        Returns:
            The order; None if the tensor is stored in the order of Hugging Face.
        """
        part = _part(name)
        if part == "in_proj_z.weight":
            return self._values(self.value_dim)
        if part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            return self._values(1)
        if part not in ("in_proj_qkv.weight", "conv1d.weight") or self._is_in_order:
            return None
        keys = 2 * self.key_heads * self.key_dim
        values = self._values(self.value_dim)
        assert values is not None, "the heads are not in order"
        return np.concatenate([np.arange(keys, dtype=np.intp), keys + values])

    def columns(self, name: str) -> Order | None:
        """Return the order of the columns of a tensor, like `rows`."""
        return self._values(self.value_dim) if _part(name) == "out_proj.weight" else None

    @property
    def _is_in_order(self) -> bool:
        return 1 in (self.key_heads, self.heads // self.key_heads)

    def _values(self, width: int) -> Order | None:
        if self._is_in_order:
            return None
        heads = np.arange(self.heads, dtype=np.intp).reshape(self.key_heads, -1).T.reshape(-1)
        return (heads[:, None] * width + np.arange(width, dtype=np.intp)).reshape(-1)


def _part(name: str) -> str:
    """Return the part of a name after `linear_attn`; nothing for other tensors."""
    return name.rpartition(".linear_attn.")[2] if ".linear_attn." in name else ""


def value_heads(sizes: Mapping[str, Any]) -> ValueHeads:
    """Return the heads that a configuration states."""
    keys = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    return ValueHeads(*(sizes[f"linear_{key}"] for key in keys))


def in_hf_form(
    tensors: Iterable[SourceTensor], config: Mapping[str, Any], *, alternating: bool = False
) -> Iterator[SourceTensor]:
    """Yield the tensors of a model whose layers have states in the form of Hugging Face.

    Args:
        tensors: The tensors, with the names that Hugging Face uses.
        config: The configuration.
        alternating: Whether llama.cpp lets the value heads alternate between key heads.
    """
    heads = value_heads(config) if alternating else None
    for tensor in tensors:
        changed = tensor_in_hf_form(tensor, heads)
        yield replace(changed, name=further_name(tensor.name, config["num_hidden_layers"]))


def tensor_in_hf_form(tensor: SourceTensor, heads: ValueHeads | None) -> SourceTensor:
    """Return a tensor of a layer with a state with the shape, values and order of Hugging Face.

    Args:
        tensor: A tensor of any layer, with the name that Hugging Face uses.
        heads: The heads of linear attention if llama.cpp changes their order for the architecture.
    """
    if tensor.name.endswith(_CONVOLUTIONS) and len(tensor.shape) == 2:
        tensor = replace(tensor, shape=(tensor.rows, 1, tensor.columns))
    if heads is not None:
        tensor = _in_hf_order(tensor, heads)
    if tensor.name.endswith(".A_log"):
        tensor = replace(tensor, decode=_Logarithm(tensor))
    return tensor


def _in_hf_order(tensor: SourceTensor, heads: ValueHeads) -> SourceTensor:
    rows, columns = heads.rows(tensor.name), heads.columns(tensor.name)
    if rows is not None and len(tensor.shape) == 1:
        rows, columns = None, rows
    if rows is not None and len(rows) == tensor.rows:
        back = np.argsort(rows)
        native = partial(_taken, tensor.native, back)
        decode = None if tensor.decode is None else _MovedRows(tensor, back)
        return replace(tensor, native=native, decode=decode)
    if columns is None or len(columns) != tensor.columns:  # the shape is reported later
        return tensor
    back = np.argsort(columns)
    units = moved_units(back, DTYPES[tensor.dtype].block_elements) if tensor.is_block else back
    if units is None or tensor.decode is not None:
        return replace(tensor, decode=_MovedColumns(tensor, back))
    size = DTYPES[tensor.dtype].block_bytes if tensor.is_block else 1
    return replace(tensor, native=partial(_taken_columns, tensor.native, units, size))


def moved_units(order: Order, elements: int) -> Order | None:
    """Return the order of whole blocks of some elements; None if the order divides blocks."""
    if len(order) % elements:
        return None
    blocks = order.reshape(-1, elements)
    is_whole = (np.diff(blocks, axis=1) == 1).all() and not (blocks[:, 0] % elements).any()
    return blocks[:, 0] // elements if is_whole else None


def _taken(native: Callable[[], npt.NDArray[Any]], rows: Order) -> npt.NDArray[Any]:
    return native()[rows]


def _taken_columns(
    native: Callable[[], npt.NDArray[Any]], units: Order, size: int
) -> npt.NDArray[Any]:
    stored = native()
    moved = stored.reshape(stored.shape[0], -1, size)[:, units]
    return moved.reshape(stored.shape)


@dataclass(frozen=True)
class _MovedRows:
    tensor: SourceTensor
    order: Order

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        return self.tensor.read(columns=columns)[self.order[rows]]


@dataclass(frozen=True)
class _MovedColumns:
    tensor: SourceTensor
    order: Order

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        return self.tensor.read(rows)[:, self.order[columns]]


@dataclass(frozen=True)
class _Logarithm:
    """Reads log(-x) of the values x of a tensor."""

    tensor: SourceTensor

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        with np.errstate(all="ignore"):  # what is not finite is refused like any such weight
            values = np.log(-self.tensor.read(rows, columns).astype(np.float64))
        return values.astype(np.float32)


def negative_exponential(logarithms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what llama.cpp stores for the logarithms of rates of decay."""
    return -np.exp(logarithms)


def plan_state(
    package: Package,
    name: str,
    gguf_name: str,
    parts: tuple[LogicalTensor, ...],
    *,
    alternating: bool = False,
) -> OutgoingTensor | None:
    """Plan a tensor of a layer with a state; return None for other tensors.

    Args:
        package: The package.
        name: Hugging Face's name of the tensor.
        gguf_name: llama.cpp's name.
        parts: The tensors of the package that it consists of.
        alternating: Whether llama.cpp lets the value heads alternate between key heads.
    """
    first = parts[0]
    if name.endswith(".conv.conv.weight"):
        return _convolution(gguf_name, parts, None)
    if ".linear_attn." not in name:
        return None
    heads = _value_heads(package.manifest.architecture)
    if name.endswith(_GATES):
        dtype, why = storage_type(package, parts)
        joined = (2 * heads.heads, first.columns)
        order = partial(_by_key_head, groups=heads.key_heads)
        return OutgoingTensor(gguf_name, parts, joined, dtype, why, arrange=order)
    rows = heads.rows(name) if alternating else None
    columns = heads.columns(name) if alternating else None
    if name.endswith(_CONVOLUTIONS):
        return _convolution(gguf_name, parts, rows)
    if first.rows == 1:
        change = negative_exponential if name.endswith(_RATE) else None
        return OutgoingTensor(
            gguf_name, parts, (first.columns,), "F32", vector_order=rows, transform=change
        )
    if columns is not None:
        return _with_columns(package, gguf_name, parts, columns)
    if rows is None:
        return None
    dtype, why = storage_type(package, parts)
    return OutgoingTensor(
        gguf_name, parts, first.shape, dtype, why, arrange=partial(_in_order, rows=rows)
    )


def _value_heads(sizes: Architecture) -> ValueHeads:
    """Return the heads of linear attention, whose keys and values have one size in llama.cpp.

    Raises:
        ConversionError: They have different sizes.
    """
    key, value = sizes.linear_key_head_dim or 0, sizes.linear_value_head_dim or 0
    if key != value:
        raise ConversionError(
            "llama.cpp needs keys and values of the same size in linear attention",
            where="architecture.linearValueHeadDim",
            expected=key,
            found=value,
        )
    return ValueHeads(
        sizes.linear_num_key_heads or 0, sizes.linear_num_value_heads or 0, key, value
    )


def _convolution(
    gguf_name: str, parts: tuple[LogicalTensor, ...], rows: Order | None
) -> OutgoingTensor:
    first = parts[0]
    order = None if rows is None else partial(_in_order, rows=rows)
    return OutgoingTensor(gguf_name, parts, (first.rows, first.columns), "F32", arrange=order)


def _with_columns(
    package: Package, gguf_name: str, parts: tuple[LogicalTensor, ...], columns: Order
) -> OutgoingTensor:
    """Plan a matrix whose columns are moved, as whole blocks if they can be."""
    first = parts[0]
    dtype, why = storage_type(package, parts)
    if first.dtype.is_block and not why:
        blocks = moved_units(columns, first.dtype.block_elements)
        if blocks is not None:
            order = partial(_moved, units=blocks, size=first.dtype.block_bytes)
            return OutgoingTensor(gguf_name, parts, first.shape, dtype, arrange=order)
        dtype = decoded_type(package, parts)
        why = f"{first.dtype} blocks contain columns of several heads, which llama.cpp reorders"
    order = partial(_moved, units=columns, size=1)
    return OutgoingTensor(gguf_name, parts, first.shape, dtype, why, arrange=order)


def _in_order(parts: Sequence[npt.NDArray[Any]], rows: Order) -> npt.NDArray[Any]:
    return np.concatenate(parts)[rows]


def _moved(parts: Sequence[npt.NDArray[Any]], units: Order, size: int) -> npt.NDArray[Any]:
    stored = np.concatenate(parts)
    return stored.reshape(stored.shape[0], -1, size)[:, units].reshape(stored.shape)


def _by_key_head(parts: Sequence[npt.NDArray[Any]], groups: int) -> npt.NDArray[Any]:
    """Return the rows of all parts that belong to the first key head, then those of the next."""
    columns = parts[0].shape[1]
    return np.concatenate([part.reshape(groups, -1, columns) for part in parts], axis=1).reshape(
        -1, columns
    )
