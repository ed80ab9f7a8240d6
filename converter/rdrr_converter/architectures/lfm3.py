"""LFM3: short convolutions, attention with a window and full attention, with a gate for each head.

Norms stand before and behind every branch. Layers with full attention rotate the first half of the
pairs of a head. Published configurations call that rotation `default`, as the code that they come
with reads it; `proportional` is transformers' name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_proportional_rope
from rdrr_converter.architectures.base import Keys
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.architectures.lfm2 import CONV, LAYER, LFM2, convolutions, layers_of

_ROPE = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_NOT_STATED = (
    "hidden_act",
    "partial_rotary_factor",
    "rms_norm_eps",
    "rope_local_base_freq",
    "rope_theta",
)
_ALWAYS = ("use_attention_gate", "use_sandwich_norm")


def layer_types(config: Config) -> tuple[str, ...]:
    """Rule: `layer_types`, else convolutions with the two kinds of attention in turn between them.

    Raises:
        SourceError: A type is unknown, or the layers have no gates or no norms behind branches.
    """
    for key in _ALWAYS:
        if config.get(key) is not True:
            raise config.fault(key, "true", config.get(key))
    stated = config.get("layer_types")
    if stated is None:
        period = (SLIDING, CONV, FULL, CONV)
        return (CONV, *(period[layer % 4] for layer in range(1, config.layers)))
    known = isinstance(stated, list) and all(kind in (FULL, SLIDING, CONV) for kind in stated)
    if not known or len(stated) < config.layers:
        expected = f"{config.layers} of {FULL}, {SLIDING} or {CONV}"
        raise config.fault("layer_types", expected, stated)
    return tuple(stated[: config.layers])


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the types of layers, the size of convolutions and the embedding of each type."""
    types, rope = manifest.inference.layer_pattern.layer_types, manifest.inference.rope
    if types is None:
        return config
    parameters = {kind: dict(values) for kind, values in _ROPE.items()}
    parameters[FULL]["rope_theta"] = rope.rope_theta
    parameters[FULL]["partial_rotary_factor"] = rope.partial_rotary_factor or 1.0
    parameters[SLIDING]["rope_theta"] = rope.rope_local_theta or rope.rope_theta
    return {key: value for key, value in config.items() if key not in _NOT_STATED} | {
        "layer_types": list(types),
        "norm_eps": config["rms_norm_eps"],
        "conv_L_cache": manifest.architecture.linear_conv_kernel_dim,
        "rope_parameters": parameters,
        "sliding_window": manifest.inference.attention.sliding_window,
    }


LFM3 = replace(
    LFM2,
    name="lfm3",
    classes=("Lfm3ForCausalLM", "Lfm3Model"),
    defaults={
        "conv_L_cache": 7,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "rope_parameters": _ROPE,
        "sliding_window": 256,
        "tie_word_embeddings": True,
        "use_attention_gate": True,
        "use_sandwich_norm": True,
        "vocab_size": 128000,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "sliding_window": read.optional_integer("sliding_window"),
        "attention_output_gate": True,
    },
    normalization={
        **LFM2.normalization,
        "pre_feedforward_norm": True,
        "post_feedforward_norm": True,
    },
    sizes={"linear_conv_kernel_dim": read.integer("conv_L_cache")},
    exported=exported,
    layer_types=layer_types,
    rope=read_proportional_rope(read.head_dim, ("proportional", "default")),
    head_gates={"self_attn.q_proj": "self_attn.gate_proj"},
    names={
        "model.norm": "model.embedding_norm",
        **tensors.layer_names(
            LAYER,
            {
                "input_layernorm": "operator_norm",
                "post_attention_layernorm": "post_operator_norm",
                "pre_feedforward_layernorm": "ffn_norm",
                "post_feedforward_layernorm": "post_ffn_norm",
                "mlp.gate_proj": "feed_forward.w1",
                "mlp.up_proj": "feed_forward.w3",
                "mlp.down_proj": "feed_forward.w2",
            },
        ),
    },
    tensors=tensors.of_model(
        *tensors.FOUR_NORMS,
        *tensors.in_layers(
            layers_of(layer_types, FULL, SLIDING),
            tensors.projection("self_attn.q_proj", "gated_q", "hidden"),
            *tensors.ATTENTION[1:],
            *tensors.QUERY_KEY_NORMS,
        ),
        *convolutions(layers_of(layer_types, CONV)),
        *tensors.FEED_FORWARD,
    ),
)
