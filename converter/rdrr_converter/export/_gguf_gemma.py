"""Writing Gemma 4 and Gemma 3n as llama.cpp has them, the inverse of the reading module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError
from rdrr_manifests.graph.ops import Attention
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.package import Package

from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.export._stacks import Stack

Entries = dict[str, Any]
Notes = tuple[str, ...]

UNROTATED = 1e30
"""Divisor of the frequencies of pairs that are not rotated."""

TABLE = "model.embed_tokens_per_layer.weight"

_STREAMS, _LAYERS_WITH_KEYS, _SPARSE_LAYERS, _SPARSITY = 4, 20, 10, 0.95
_PERIOD, _RANK, _LAYER_INPUT = 5, 64, 256
"""What llama.cpp fixes for Gemma 3n."""

_GATE, _UP, _JOINED = ".experts.gate_proj.", ".experts.up_proj.", ".experts.gate_up_proj."


def check_gemma3n(package: Package) -> None:
    """Check what llama.cpp assumes of every Gemma 3n, whatever the file states.

    Raises:
        ConversionError: The model differs.
    """
    sizes, layers = package.manifest.architecture, package.manifest.architecture.num_layers
    windows = [op.window for op in package.graph.ops if isinstance(op, Attention)]
    sparsity = package.manifest.inference.ffn.activation_sparsity or (0.0,) * layers
    sparse = min(_SPARSE_LAYERS, layers)
    own = layers - (sizes.num_kv_shared_layers or 0)
    assumed: Mapping[str, tuple[object, object]] = {
        "altupNumInputs": (sizes.altup_num_inputs, _STREAMS),
        "altupActiveIndex": (sizes.altup_active_index, 0),
        "laurelRank": (sizes.laurel_rank, _RANK),
        "hiddenSizePerLayerInput": (sizes.hidden_size_per_layer_input, _LAYER_INPUT),
        "layers with keys of their own": (own, min(_LAYERS_WITH_KEYS, layers)),
        "layers with full attention": (
            [layer for layer, window in enumerate(windows) if window is None],
            list(range(_PERIOD - 1, layers, _PERIOD)),
        ),
        "activationSparsity": (
            list(sparsity),
            [_SPARSITY] * sparse + [0.0] * (layers - sparse),
        ),
    }
    for name, (found, expected) in assumed.items():
        if found != expected:
            raise ConversionError(
                "llama.cpp assumes another value for every Gemma 3n",
                where=name,
                expected=expected,
                found=found,
                hint="export it `to` safetensors",
            )


def unread_tensors(package: Package) -> dict[str, npt.NDArray[Any]]:
    """Return zeros for tensors that llama.cpp loads although layers with shared keys have none."""
    sizes = package.manifest.architecture
    rows, columns = sizes.num_key_value_heads * sizes.head_dim, sizes.hidden_size
    found: dict[str, npt.NDArray[Any]] = {}
    for layer in range(sizes.num_layers - (sizes.num_kv_shared_layers or 0), sizes.num_layers):
        for part in "kv":
            found[f"blk.{layer}.attn_{part}.weight"] = np.zeros((rows, columns), np.float16)
        found[f"blk.{layer}.attn_k_norm.weight"] = np.zeros(sizes.head_dim, np.float32)
    return found


def with_joined_gates(stacks: Sequence[Stack]) -> list[Stack]:
    """Stack gate and up of the experts of each layer: those of the first expert, then the next."""
    by_name = dict(stacks)
    found: list[Stack] = []
    for name, parts in stacks:
        if _GATE in name:
            pairs = zip(parts, by_name[name.replace(_GATE, _UP)], strict=True)
            joined = tuple(one for pair in pairs for one in pair)
            found.append((name.replace(_GATE, _JOINED), joined))
        elif _UP not in name:
            found.append((name, parts))
    return found


def stacked_shape(name: str, parts: Sequence[LogicalTensor]) -> tuple[int, ...] | None:
    """Return the shape of a stack that only Gemma has; None for other tensors."""
    first = parts[0]
    if _JOINED in name:
        return (len(parts) // 2, 2 * first.rows, first.columns)
    return (len(parts), *first.shape) if name.startswith("model.altup_") else None


def padded_rows(name: str, parts: Sequence[LogicalTensor], vocab_size: int) -> int:
    """Return the rows to add to the table of the layers' inputs.

    llama.cpp reads one row for every token; the model reads the first for tokens without one.
    """
    return vocab_size - parts[0].rows if name == TABLE else 0


def without_padding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that padding changes."""
    key = "vocab_size_per_layer_input"
    return {key: config[key]} if key in config else {}


def rope_divisors(config: Mapping[str, Any]) -> npt.NDArray[np.float32] | None:
    """Return the divisors of the frequencies of Gemma 4's global layers; None for other models."""
    if "global_head_dim" not in config:
        return None
    rope, pairs = config["rope_parameters"][FULL], config["global_head_dim"] // 2
    rotated = int(pairs * (rope.get("partial_rotary_factor") or 1.0))
    found = np.full(pairs, UNROTATED, np.float32)
    found[:rotated] = 1.0
    return found


def _layer_inputs(config: Mapping[str, Any]) -> Entries:
    entries = {
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "attention.sliding_window_pattern": [kind == SLIDING for kind in config["layer_types"]],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
    }
    window = config.get("sliding_window")
    return {**entries, "attention.sliding_window": window} if window else entries


def _gemma4(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the sizes of both kinds of layers, and the inputs of the layers."""
    ropes, types, inner = config["rope_parameters"], config["layer_types"], "intermediate_size"
    head, local, heads = config["global_head_dim"], config["head_dim"], "num_key_value_heads"
    of_full = config["num_global_key_value_heads"] or config[heads]
    own = len(types) - config["num_kv_shared_layers"]
    entries: Entries = {
        **_layer_inputs(config),
        "attention.head_count_kv": [of_full if one == FULL else config[heads] for one in types],
        "attention.key_length": head,
        "attention.key_length_swa": local,
        "attention.value_length": head,
        "attention.value_length_swa": local,
        "rope.dimension_count": head,
        "rope.dimension_count_swa": local,
        "rope.freq_base": float(ropes[FULL]["rope_theta"]),
    }
    theta = ropes[SLIDING]["rope_theta"]
    if theta is not None:
        entries["rope.freq_base_swa"] = float(theta)
    if config["use_double_wide_mlp"]:
        entries["feed_forward_length"] = [
            config[inner] * (1 if layer < own else 2) for layer in range(len(types))
        ]
    if config.get("top_k_experts"):
        entries["expert_used_count"] = config["top_k_experts"]
    return entries, ()


def _gemma3n(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the streams, the shares of zeros, and the inputs of the layers."""
    normal = NormalDist()
    shares = config["activation_sparsity_pattern"]
    return {
        **_layer_inputs(config),
        "activation_sparsity_scale": [
            normal.inv_cdf(one) if one else float("-inf") for one in shares
        ],
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "rope.freq_base_swa": float(config["rope_local_base_freq"]),
    }, ()


KEYS_OF: Mapping[str, Callable[[Mapping[str, Any]], tuple[Entries, Notes]]] = MappingProxyType(
    {"gemma3n": _gemma3n, "gemma4": _gemma4}
)
"""Further metadata and notes, by `general.architecture`."""
