"""How llama.cpp writes Apertus, Hunyuan with experts, Llama 4, and the text models of Qwen VL.

The parameters of Apertus's activation are metadata in a GGUF, and tensors in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.gguf.metadata import GgufMetadata, Settings

CHUNK, TEMPERATURE_LENGTH, TEMPERATURE_SCALE, NO_ROPE_INTERVAL = 8192, 8192, 0.1, 4
"""What llama.cpp fixes for Llama 4."""

WITHOUT_QUERY_NORM = 128
"""Number of experts of the Llama 4 whose queries and keys llama.cpp does not normalize."""

ACTIVATION = ".mlp.act_fn."
"""A part of the names of the parameters of an activation."""

XIELU: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"alpha_n": (1,), "alpha_p": (1,), "beta": (), "eps": ()}
)
"""Shapes of the parameters of xIELU, which the metadata `xielu.NAME` lists for all layers."""

APERTUS: Mapping[str, str] = MappingProxyType(
    {"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"}
)
"""Hugging Face's names of the norms of Apertus, by llama.cpp's."""

_EXPERTS = ("gate", "up", "down")
LLAMA4: Mapping[str, str] = MappingProxyType(
    {
        "ffn_gate_inp": "mlp.router",
        **{f"ffn_{one}_exps": f"mlp.experts.{one}_proj" for one in _EXPERTS},
        **{f"ffn_{one}_shexp": f"mlp.shared_expert.{one}_proj" for one in _EXPERTS},
    }
)
"""The same for the experts of Llama 4."""

HUNYUAN_EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        "ffn_gate_inp": "mlp.gate.wg",
        **{f"ffn_{one}_exps": f"mlp.experts.{one}_proj" for one in _EXPERTS},
        **{f"ffn_{one}_shexp": f"mlp.shared_mlp.{one}_proj" for one in _EXPERTS},
    }
)
"""The same for the experts of Hunyuan."""


def stated_tensors(metadata: Mapping[str, Any], layers: int, where: str) -> Iterator[SourceTensor]:
    """Yield the parameters of xIELU, if the metadata states them.

    Args:
        metadata: GgufMetadata of the file.
        layers: Number of layers.
        where: Name of the file.

    Raises:
        SourceError: A parameter is not stated for every layer.
    """
    if f"xielu.{next(iter(XIELU))}" not in metadata:
        return
    for name, shape in XIELU.items():
        values = metadata.get(f"xielu.{name}")
        by_layer = values if isinstance(values, list) else [values] * layers
        if len(by_layer) < layers or not all(type(one) in (int, float) for one in by_layer):
            raise SourceError(
                "impossible parameters of an activation",
                where=f"{where}, xielu.{name}",
                expected=f"{layers} numbers",
                found=values,
            )
        for layer, value in enumerate(by_layer[:layers]):
            native = partial(np.full, (1, 1), value, np.float32)
            full = f"model.layers.{layer}{ACTIVATION}{name}"
            yield SourceTensor(full, shape, "F32", where, native)


def _without_biases(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return no biases; those that exist are used in any case."""
    del read, config
    return {"attention_bias": False}


def hunyuan_moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experts of Hunyuan, all of whose layers have the same and a shared one."""
    del config
    return {
        "attention_bias": False,
        "moe_topk": read.size("expert_used_count"),
        "num_experts_per_tok": None,
        "num_shared_expert": read.get("expert_shared_count") or 1,
        "shared_expert_intermediate_size": None,
    }


def llama4(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experts of Llama 4, and what llama.cpp fixes for its attention."""
    experts = read.size("expert_count")
    return {
        "attention_bias": False,
        "attention_chunk_size": CHUNK,
        "attn_scale": TEMPERATURE_SCALE,
        "attn_temperature_tuning": True,
        "floor_scale": TEMPERATURE_LENGTH,
        "interleave_moe_layer_step": read.size("interleave_moe_layer_step"),
        "intermediate_size": read.size("expert_feed_forward_length"),
        "intermediate_size_mlp": config["intermediate_size"],
        "moe_intermediate_size": None,
        "no_rope_layer_interval": NO_ROPE_INTERVAL,
        "num_experts": None,
        "num_local_experts": experts,
        "shared_expert_intermediate_size": None,
        "use_qk_norm": experts != WITHOUT_QUERY_NORM,
    }


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "apertus": _without_biases,
        "gemma": _without_biases,
        "hunyuan-moe": hunyuan_moe,
        "llama4": llama4,
        "qwen3vl": _without_biases,
    }
)
"""The keys of the configuration, by `general.architecture`."""
