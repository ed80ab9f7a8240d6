"""Writing layers with recurrent states as llama.cpp has them, the inverse of the reading module.

The tensors of linear attention are written in llama.cpp's order of value heads, and -exp(A_log) in
place of A_log. Blocks of the output projection that contain columns of several heads are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.models import Architecture
from rdrr_manifests.package import Package

from rdrr_converter.architectures.layers import FULL
from rdrr_converter.export._gguf_types import decoded_type, storage_type
from rdrr_converter.export._values import OutgoingTensor
from rdrr_converter.gguf.families.states import (
    LINEAR,
    RATE,
    Order,
    ValueHeads,
    moved_units,
    negative_exponential,
)

Entries = dict[str, Any]
Notes = tuple[str, ...]

_CONVOLUTIONS = (".conv1d.weight", ".conv.conv.weight")
_GATES = ".in_proj_ba.weight"
_PERIODS = range(1, 65)


def plan_state(
    package: Package,
    name: str,
    gguf_name: str,
    parts: tuple[LogicalTensor, ...],
    *,
    alternating: bool,
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
        change = negative_exponential if name.endswith(RATE) else None
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
    return np.concatenate([one.reshape(groups, -1, columns) for one in parts], axis=1).reshape(
        -1, columns
    )


def _linear(config: Mapping[str, Any]) -> Entries:
    heads = config["linear_num_value_heads"]
    recurrent = [kind == LINEAR for kind in config["layer_types"]]
    period = next(
        (
            one
            for one in _PERIODS
            if recurrent == [(layer + 1) % one != 0 for layer in range(len(recurrent))]
        ),
        None,
    )
    layers: Entries = (
        {"attention.recurrent_layers": recurrent}
        if period is None
        else {"full_attention_interval": period}
    )
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.time_step_rank": heads,
        **layers,
    }


def rope_sections(config: Mapping[str, Any]) -> list[int]:
    """Return how many rotated pairs belong to each of three positions, and 0 for the fourth.

    The three positions of a token of text are equal, so any division that covers all pairs will do.
    """
    rotated = int(config["head_dim"] * (config.get("partial_rotary_factor") or 1.0))
    return [*((rotated // 2 + 2 - axis) // 3 for axis in range(3)), 0]


def _qwen35(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    return {**_linear(config), "rope.dimension_sections": rope_sections(config)}, ()


def _qwen3next(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    return _linear(config), ()


def _lfm2(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the convolutions; a layer with one has no key-value heads."""
    head, count = config["hidden_size"] // config["num_attention_heads"], "num_key_value_heads"
    return {
        "attention.head_count_kv": [
            config[count] if kind == FULL else 0 for kind in config["layer_types"]
        ],
        "attention.key_length": head,
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "attention.value_length": head,
        "rope.dimension_count": head,
        "shortconv.l_cache": config["conv_L_cache"],
    }, ()


def _lfm2moe(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the experts, whose scores are sigmoids."""
    entries, notes = _lfm2(config)
    dense = config["num_dense_layers"]
    return {**entries, "expert_gating_func": 2, "leading_dense_block_count": dense}, notes


KEYS_OF: Mapping[str, Callable[[Mapping[str, Any]], tuple[Entries, Notes]]] = MappingProxyType(
    {
        "lfm2": _lfm2,
        "lfm2moe": _lfm2moe,
        "qwen35": _qwen35,
        "qwen35moe": _qwen35,
        "qwen3next": _qwen3next,
    }
)
"""Further metadata and notes, by `general.architecture`."""
