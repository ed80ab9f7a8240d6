"""MPNet: RoBERTa with a bias on attention scores by distance, which all layers share."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule, TensorRule
from rdrr_converter.architectures.roberta import ROBERTA

DISTANCE = 128
"""Distance from which all tokens are in the last bucket; transformers has no key for it."""

MPNET: ArchitectureRule = replace(
    ROBERTA,
    name="mpnet",
    classes=("MPNetModel",),
    model_types=(),
    defaults={**ROBERTA.defaults, "relative_attention_num_buckets": 32, "vocab_size": 30527},
    attention={
        **encoders.BIDIRECTIONAL,
        "relative_bias_buckets": read.integer("relative_attention_num_buckets"),
        "relative_bias_distance": DISTANCE,
    },
    output={"position_embedding_offset": encoders.positions_after_padding},
    body="mpnet.",
    prefixes=("mpnet.", ""),
    dimensions={
        **ROBERTA.dimensions,
        "buckets": read.integer("relative_attention_num_buckets"),
    },
    names={
        **encoders.names_with("mpnet."),
        "model.relative_attention_bias": "mpnet.encoder.relative_attention_bias",
        **tensors.layer_names(
            "mpnet.encoder.layer.{layer}",
            {
                "self_attn.q_proj": "attention.attn.q",
                "self_attn.k_proj": "attention.attn.k",
                "self_attn.v_proj": "attention.attn.v",
                "self_attn.o_proj": "attention.attn.o",
                "input_layernorm": "attention.LayerNorm",
            },
        ),
    },
    tensors=(
        tensors.EMBEDDING,
        tensors.POSITIONS,
        *encoders.EMBED_NORM,
        TensorRule("model.relative_attention_bias.weight", "other", ("buckets", "heads")),
        *encoders.LAYERS_OF_BERT,
    ),
)
