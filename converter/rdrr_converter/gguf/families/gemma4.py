"""Gemma 3n and Gemma 4 in GGUF files.

Global layers of Gemma 4 rotate a part of their pairs. llama.cpp writes that as divisors of the
frequencies which are 1 for these pairs and huge for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from rdrr_converter.checkpoint.outgoing import OutgoingTensor, Stack
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families.gemma import LOCAL_ROPE, LOCAL_THETA
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import (
    WRITTEN_WINDOW,
    Config,
    Entries,
    Setting,
    size,
    value,
)
from rdrr_converter.gguf.storage_types import storage_type

HUGE = 1e20
"""Divisors above this stop the rotation of a pair."""

_UNROTATED = 1e30
"""The divisor that is written for pairs that are not rotated."""

_SOFTCAP = 30.0

_STREAMS, _LAYERS_WITH_KEYS, _SPARSE_LAYERS, _SPARSITY = 4, 20, 10, 0.95
_PERIOD, _RANK, _LAYER_INPUT = 5, 64, 256
"""What llama.cpp fixes for Gemma 3n."""

_TABLE = "model.embed_tokens_per_layer.weight"

_GATE, _UP, _JOINED = ".experts.gate_proj.", ".experts.up_proj.", ".experts.gate_up_proj."

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **layer_names.FOUR_NORMS,
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_up_exps": "experts.gate_up_proj",
        **layer_names.experts("experts"),
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "altup_correct_coef": "altup.correction_coefs",
        "altup_correct_scale": "altup.correct_output_scale",
        "altup_predict_coef": "altup.prediction_coefs",
        "altup_router": "altup.modality_router",
        "altup_router_norm": "altup.router_norm",
        "laurel_l": "laurel.linear_left",
        "laurel_r": "laurel.linear_right",
        "laurel_post_norm": "laurel.post_laurel_norm",
    }
)


def rope_divisors(config: Mapping[str, Any]) -> npt.NDArray[np.float32] | None:
    """Return the divisors of the frequencies of Gemma 4's global layers; None for other models."""
    if "global_head_dim" not in config:
        return None
    rope, pairs = config["rope_parameters"][FULL], config["global_head_dim"] // 2
    rotated = int(pairs * (rope.get("partial_rotary_factor") or 1.0))
    divisors = np.full(pairs, _UNROTATED, np.float32)
    divisors[:rotated] = 1.0
    return divisors


def proportional(divisors: npt.NDArray[np.float64], where: object) -> float:
    """Return the part of the pairs that is rotated, given the divisors of the frequencies.

    Raises:
        ConversionError: The divisors are not 1 for the first pairs and huge for the others.
    """
    rotated = int((divisors < HUGE).sum())
    if not np.allclose(divisors[:rotated], 1.0) or (divisors[rotated:] < HUGE).any():
        raise ConversionError(
            "unknown divisors of the rope frequencies",
            where=where,
            expected="1 for the rotated pairs, and more than 1e20 for the others",
            found=np.array2string(divisors, precision=4, threshold=8),
        )
    return rotated / divisors.size


def with_part(config: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Return the rope of Gemma 4 whose global layers rotate a part of their pairs."""
    ropes = config["rope_parameters"]
    full = {**ropes[FULL], "rope_type": "proportional", "partial_rotary_factor": part}
    return {"rope_parameters": {**ropes, FULL: full}}


def _check_gemma3n(package: Package) -> None:
    """Check what llama.cpp assumes of every Gemma 3n, whatever the file states.

    Raises:
        ConversionError: The model differs.
    """
    sizes, layers = package.manifest.architecture, package.manifest.architecture.num_layers
    windows = [op.window for op in package.graph.ops if isinstance(op, Attention)]
    sparsity = package.manifest.inference.ffn.activation_sparsity or (0.0,) * layers
    sparse = min(_SPARSE_LAYERS, layers)
    with_keys = layers - (sizes.num_kv_shared_layers or 0)
    assumed: Mapping[str, tuple[object, object]] = {
        "altupNumInputs": (sizes.altup_num_inputs, _STREAMS),
        "altupActiveIndex": (sizes.altup_active_index, 0),
        "laurelRank": (sizes.laurel_rank, _RANK),
        "hiddenSizePerLayerInput": (sizes.hidden_size_per_layer_input, _LAYER_INPUT),
        "layers with keys of their own": (with_keys, min(_LAYERS_WITH_KEYS, layers)),
        "layers with full attention": (
            [layer for layer, window in enumerate(windows) if window is None],
            list(range(_PERIOD - 1, layers, _PERIOD)),
        ),
        "activationSparsity": (
            list(sparsity),
            [_SPARSITY] * sparse + [0.0] * (layers - sparse),
        ),
    }
    for name, (actual, expected) in assumed.items():
        if actual != expected:
            raise ConversionError(
                "llama.cpp assumes another value for every Gemma 3n",
                where=name,
                expected=expected,
                found=actual,
                hint="export it `to` safetensors",
            )


def _unread_tensors(package: Package) -> dict[str, npt.NDArray[Any]]:
    """Return zeros for tensors that llama.cpp loads although layers with shared keys have none."""
    sizes = package.manifest.architecture
    rows, columns = sizes.num_key_value_heads * sizes.head_dim, sizes.hidden_size
    tensors: dict[str, npt.NDArray[Any]] = {}
    for layer in range(sizes.num_layers - (sizes.num_kv_shared_layers or 0), sizes.num_layers):
        for part in "kv":
            tensors[f"blk.{layer}.attn_{part}.weight"] = np.zeros((rows, columns), np.float16)
        tensors[f"blk.{layer}.attn_k_norm.weight"] = np.zeros(sizes.head_dim, np.float32)
    return tensors


def _with_joined_gates(stacks: Sequence[Stack]) -> list[Stack]:
    """Stack gate and up of the experts of each layer: those of the first expert, then the next."""
    by_name = dict(stacks)
    written: list[Stack] = []
    for name, parts in stacks:
        if _GATE in name:
            pairs = zip(parts, by_name[name.replace(_GATE, _UP)], strict=True)
            joined = tuple(part for pair in pairs for part in pair)
            written.append((name.replace(_GATE, _JOINED), joined))
        elif _UP not in name:
            written.append((name, parts))
    return written


def _plan(
    package: Package, name: str, gguf_name: str, parts: tuple[LogicalTensor, ...]
) -> OutgoingTensor | None:
    """Plan the stacks that only Gemma has, and the table of the layers' inputs.

    llama.cpp reads one row of the table for every token; the model reads the first for tokens
    without one.
    """
    first, padding = parts[0], 0
    if _JOINED in name:
        shape: tuple[int, ...] = (len(parts) // 2, 2 * first.rows, first.columns)
    elif name.startswith("model.altup_"):
        shape = (len(parts), *first.shape)
    elif name == _TABLE:
        padding = package.manifest.architecture.vocab_size - first.rows
        shape = (first.rows + padding, first.columns)
    else:
        return None
    dtype, why = storage_type(package, parts)
    return OutgoingTensor(gguf_name, parts, shape, dtype, why, padding=padding)


def without_padding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that padding changes."""
    key = "vocab_size_per_layer_input"
    return {key: config[key]} if key in config else {}


def _read_layer_inputs(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return which layers have a window, and the size of the table of the layers' inputs."""
    layers, slides = read.size("block_count"), read.get("attention.sliding_window_pattern")
    if not isinstance(slides, list) or len(slides) < layers:
        raise ConversionError(
            "the layers with a sliding window are not stated",
            expected=f"attention.sliding_window_pattern with {layers} flags",
            found=slides,
        )
    return {
        "layer_types": [SLIDING if is_sliding else FULL for is_sliding in slides[:layers]],
        "sliding_window": read.get("attention.sliding_window"),
        "vocab_size_per_layer_input": config["vocab_size"],
    }


def _write_layer_types(config: Config) -> Entries:
    return {"attention.sliding_window_pattern": [kind == SLIDING for kind in config["layer_types"]]}


_LAYER_INPUTS = (
    value("attention.shared_kv_layers", "num_kv_shared_layers", 0),
    Setting(_read_layer_inputs, _write_layer_types),
    value("embedding_length_per_layer_input", "hidden_size_per_layer_input", 0),
    WRITTEN_WINDOW,
)


def _read_gemma4(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the sizes of both kinds of layers."""
    types = _read_layer_inputs(read, config)["layer_types"]
    heads, inner = read.get("attention.head_count_kv"), read.get("feed_forward_length")
    local = read.number("rope.freq_base_swa") or LOCAL_THETA
    keys: dict[str, Any] = {
        "global_head_dim": read.size("attention.key_length"),
        "head_dim": read.size("attention.key_length_swa"),
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": config["rope_theta"]},
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
    }
    if isinstance(heads, list):
        by_type = dict(zip(types, heads, strict=False))
        keys["num_key_value_heads"] = by_type.get(SLIDING)
        keys["num_global_key_value_heads"] = by_type.get(FULL)
    if isinstance(inner, list):
        keys["intermediate_size"] = inner[0]
        keys["use_double_wide_mlp"] = len(set(inner)) > 1
    if read.get("expert_count"):
        keys["enable_moe_block"] = True
        keys["top_k_experts"] = config.get("num_experts_per_tok")
        keys["num_experts_per_tok"] = None
    return keys


def _write_gemma4(config: Config) -> Entries:
    ropes, types, inner = config["rope_parameters"], config["layer_types"], "intermediate_size"
    head, local, heads = config["global_head_dim"], config["head_dim"], "num_key_value_heads"
    of_full = config["num_global_key_value_heads"] or config[heads]
    with_keys = len(types) - config["num_kv_shared_layers"]
    entries: Entries = {
        "attention.head_count_kv": [of_full if kind == FULL else config[heads] for kind in types],
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
            config[inner] * (1 if layer < with_keys else 2) for layer in range(len(types))
        ]
    if config.get("top_k_experts"):
        entries["expert_used_count"] = config["top_k_experts"]
    return entries


GEMMA4 = GgufArchitecture(
    "gemma4",
    "Gemma4ForCausalLM",
    _NAMES,
    per_layer=("feed_forward_length", "attention.head_count_kv"),
    classes=("Gemma4UnifiedForCausalLM",),
    shares_values=True,
    dense_layers=True,
    join=_with_joined_gates,
    plan=_plan,
    settings=(*_LAYER_INPUTS, Setting(_read_gemma4, _write_gemma4)),
)


def _read_gemma3n(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the shares of zeros of each layer."""
    scales = read.get("activation_sparsity_scale") or []
    # Six digits undo the rounding to float32.
    shares = [float(f"{NormalDist().cdf(scale):.6g}") if scale > -1e30 else 0.0 for scale in scales]
    return {
        "activation_sparsity_pattern": shares or None,
        "final_logit_softcapping": config.get("final_logit_softcapping") or _SOFTCAP,
    }


def _write_gemma3n(config: Config) -> Entries:
    normal = NormalDist()
    shares = config["activation_sparsity_pattern"]
    scales = [normal.inv_cdf(share) if share else float("-inf") for share in shares]
    return {"activation_sparsity_scale": scales}


GEMMA3N = GgufArchitecture(
    "gemma3n",
    "Gemma3nForCausalLM",
    _NAMES,
    per_layer=("feed_forward_length",),
    check=_check_gemma3n,
    plan=_plan,
    further=_unread_tensors,
    settings=(
        *_LAYER_INPUTS,
        Setting(_read_gemma3n, _write_gemma3n),
        value("altup.active_idx", "altup_active_idx", 0),
        size("altup.num_inputs", "altup_num_inputs"),
        LOCAL_ROPE,
    ),
)
