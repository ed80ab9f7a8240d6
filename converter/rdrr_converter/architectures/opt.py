"""OPT: LayerNorm, learned positions from row 2 on, and ReLU.

OPT-350M projects its embeddings and normalises after each branch, which no op here computes.
"""

from __future__ import annotations

import json

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import all_full
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FINAL_NORM,
    FINAL_NORM_BIAS,
    HEAD,
    POSITIONS,
    TWO_NORMS,
    UNGATED_FEED_FORWARD,
    attention_biases,
    layer_names,
    norm_biases,
    ungated_biases,
)

OFFSET = 2
BIAS = read.flag("enable_bias")


def _rope(config: Config) -> dict[str, object]:
    """Rule: no rope; refuse OPT-350M, whose parts no op computes, before its tensors are read."""
    hidden = config.integer("hidden_size")
    computed = {
        "word_embed_proj_dim": (None, hidden),
        "do_layer_norm_before": (None, True),
        "_remove_final_layer_norm": (None, False),
    }
    for key, values in computed.items():
        found = config.get(key)
        if found not in values:
            raise ConversionError(
                "OPT with projected embeddings, or with norms elsewhere than before each branch, "
                "cannot be converted",
                where=config.where,
                expected=f"{key}: {json.dumps(values[1])}",
                found=json.dumps(found),
            )
    return no_rope(config)


OPT = ArchitectureRule(
    name="opt",
    classes=("OPTForCausalLM", "OPTModel"),
    defaults={
        "enable_bias": True,
        "hidden_act": "relu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "tie_word_embeddings": True,
        "vocab_size": 50272,
    },
    attention={"query_pre_attn_scalar": read.head_dim},
    normalization={"rms_norm_eps": 1e-5, "post_attention_norm": True, "layer_norm": True},
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    output={"position_embedding_offset": OFFSET},
    rope=_rope,
    layer_types=all_full,
    body="model.decoder.",
    prefixes=("model.decoder.", "decoder."),
    keys={
        "hidden_act": "activation_function",
        "intermediate_size": "ffn_dim",
        "num_key_value_heads": "num_attention_heads",
    },
    dimensions={"positions": lambda config: config.integer("max_position_embeddings") + OFFSET},
    names={
        "model.embed_tokens": "model.decoder.embed_tokens",
        "model.embed_positions": "model.decoder.embed_positions",
        "model.norm": "model.decoder.final_layer_norm",
        **layer_names(
            "model.decoder.layers.{layer}",
            {
                "input_layernorm": "self_attn_layer_norm",
                "post_attention_layernorm": "final_layer_norm",
                "self_attn.q_proj": "self_attn.q_proj",
                "self_attn.k_proj": "self_attn.k_proj",
                "self_attn.v_proj": "self_attn.v_proj",
                "self_attn.o_proj": "self_attn.out_proj",
                "mlp.up_proj": "fc1",
                "mlp.down_proj": "fc2",
            },
        ),
    },
    tensors=(
        EMBEDDING,
        POSITIONS,
        *TWO_NORMS,
        *norm_biases("input_layernorm", "post_attention_layernorm"),
        *ATTENTION,
        *attention_biases(*[BIAS] * 4),
        *UNGATED_FEED_FORWARD,
        *ungated_biases(BIAS),
        FINAL_NORM,
        FINAL_NORM_BIAS,
        HEAD,
    ),
)
