"""How llama.cpp writes layers with recurrent states: Qwen 3.5, Qwen 3 Next and LFM2.

llama.cpp stores -exp(A_log), and convolutions without the dimension of size 1. For Qwen 3.5 it
also orders the value heads of linear attention so that the heads of different key heads alternate:
value head v of key head k is stored as head v * key_heads + k, while Hugging Face has the value
heads of one key head after the other. Reading restores the order of Hugging Face. That moves rows,
except in the output projection, where it moves columns: blocks that contain columns of several
heads cannot be moved and are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DTYPES

from rdrr_converter.architectures.layers import FULL
from rdrr_converter.checkpoint.source import F32Array, SourceTensor
from rdrr_converter.gguf.metadata import GgufMetadata, Settings

Order = npt.NDArray[np.intp]
"""For each stored row or column, its index in the order of Hugging Face."""

LINEAR, CONVOLUTION = "linear_attention", "conv"

LINEAR_ATTENTION: Mapping[str, str] = MappingProxyType(
    {
        "post_attention_norm": "post_attention_layernorm",
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
    }
)
"""Hugging Face's names of the modules of Qwen 3.5, by llama.cpp's."""

JOINED_GATES: Mapping[str, str] = MappingProxyType(
    {
        **{
            theirs: ours
            for theirs, ours in LINEAR_ATTENTION.items()
            if theirs not in ("ssm_alpha", "ssm_beta")
        },
        "ssm_ba": "linear_attn.in_proj_ba",
    }
)
"""The same for Qwen 3 Next."""

SHORT_CONVOLUTION: Mapping[str, str] = MappingProxyType(
    {f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")}
)
"""The same for LFM2."""

RATE = "linear_attn.A_log"
"""The logarithms of the rates of decay."""

PLAIN_NORM = "linear_attn.norm"
"""A norm whose weights llama.cpp stores as Hugging Face does, unlike all others of its models."""

_FURTHER = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
    "shared_head.head": "lm_head",
    "embed_tokens": "embed_tokens",
}
"""Modules of a layer that predicts further tokens, under `mtp.` in checkpoints of Qwen 3.5."""


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


def in_hf_form(tensor: SourceTensor, heads: ValueHeads | None) -> SourceTensor:
    """Return a tensor of a layer with a state with the shape, values and order of Hugging Face.

    Args:
        tensor: A tensor of any layer, with the name that Hugging Face uses.
        heads: The heads of linear attention if llama.cpp changes their order for the architecture.
    """
    if tensor.name.endswith((".conv1d.weight", ".conv.conv.weight")) and len(tensor.shape) == 2:
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


def further_name(name: str, layers: int) -> str:
    """Return the name in checkpoints of Qwen 3.5 of a tensor in a layer after the last one.

    Args:
        name: Name with the index of the layer.
        layers: Number of layers of the model; tensors of these keep their names.
    """
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(\w+)", name)
    if match is None or int(match[1]) < layers:
        return name
    module = _FURTHER.get(match[2])
    if module is not None:
        return f"mtp.{module}.{match[3]}"
    return f"mtp.layers.{int(match[1]) - layers}.{match[2]}.{match[3]}"


def qwen35(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of linear attention and the types of the layers of Qwen 3.5."""
    layers = read.size("block_count") - (read.get("nextn_predict_layers") or 0)
    heads = read.size("ssm.time_step_rank")
    return {
        "attention_bias": False,
        "layer_types": _types(read, layers),
        "linear_conv_kernel_dim": read.size("ssm.conv_kernel"),
        "linear_key_head_dim": read.size("ssm.state_size"),
        "linear_num_key_heads": read.size("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": read.size("ssm.inner_size") // heads,
        "num_hidden_layers": layers,
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
    }


def qwen3next(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for Qwen 3 Next, all of whose layers have experts in llama.cpp."""
    return {**qwen35(read, config), "decoder_sparse_step": 1, "norm_topk_prob": True}


def _types(read: GgufMetadata, layers: int) -> list[str]:
    recurrent = read.get("attention.recurrent_layers")
    if not isinstance(recurrent, list) or len(recurrent) < layers:
        period = read.size("full_attention_interval") if read.get("full_attention_interval") else 4
        recurrent = [(layer + 1) % period != 0 for layer in range(layers)]
    return [LINEAR if one else FULL for one in recurrent[:layers]]


def lfm2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of the layers of LFM2: those without key-value heads have a convolution."""
    heads, layers = read.get("attention.head_count_kv"), read.size("block_count")
    by_layer = heads if isinstance(heads, list) else [heads] * layers
    return {
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": read.size("shortconv.l_cache"),
        "conv_bias": False,
        "layer_types": [FULL if count else CONVOLUTION for count in by_layer],
        "norm_eps": config.get("rms_norm_eps"),
        "num_key_value_heads": max((count or 0 for count in by_layer), default=0),
        "rms_norm_eps": None,
    }


def lfm2moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for LFM2 with experts, whose first layers are dense."""
    return {
        **lfm2(read, config),
        "block_auto_adjust_ff_dim": None,
        "norm_topk_prob": True,
        "num_dense_layers": read.get("leading_dense_block_count") or 0,
        "routed_scaling_factor": read.get("expert_weights_scale") or 1.0,
    }


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "lfm2": lfm2,
        "lfm2moe": lfm2moe,
        "qwen35": qwen35,
        "qwen35moe": qwen35,
        "qwen3next": qwen3next,
    }
)
"""The keys of the configuration, by `general.architecture`."""
