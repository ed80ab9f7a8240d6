"""NomicBERT: BERT with rope, a gated feed-forward and no biases.

transformers and the publisher name the same keys of the configuration differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule, StackRule
from rdrr_converter.architectures.config import Config


def _published(key: str, default: float) -> Callable[[Config], Any]:
    """Return the default of a key: its value under the publisher's name, else a number."""
    return lambda config: default if config.get(key) is None else config.get(key)


def _activation(config: Config) -> str:
    """Return the activation of the gates, which the publisher names together with the product."""
    stated = config.get("activation_function") or "swiglu"
    return {"swiglu": "silu", "geglu": "gelu"}.get(stated, stated)


NOMIC_BERT = ArchitectureRule(
    name="nomic_bert",
    classes=("NomicBertModel",),
    defaults={
        "hidden_act": _activation,
        "hidden_size": _published("n_embd", 768),
        "intermediate_size": _published("n_inner", 3072),
        "max_position_embeddings": _published("n_positions", 2048),
        "num_attention_heads": _published("n_head", 12),
        "num_hidden_layers": _published("n_layer", 12),
        "rms_norm_eps": _published("layer_norm_epsilon", 1e-12),
        "rope_theta": _published("rotary_emb_base", 1000.0),
        "tie_word_embeddings": True,
        "type_vocab_size": 2,
        "vocab_size": 30528,
    },
    attention=encoders.BIDIRECTIONAL,
    normalization=encoders.NORMS_OF_SUMS,
    output={"token_types": read.integer("type_vocab_size")},
    body="nomic_bert.",
    prefixes=("nomic_bert.", ""),
    keys={"rms_norm_eps": "layer_norm_eps"},
    dimensions={"types": read.integer("type_vocab_size")},
    names={
        "model.embed_tokens": "nomic_bert.embeddings.word_embeddings",
        "model.embed_types": "nomic_bert.embeddings.token_type_embeddings",
        "model.embed_norm": "nomic_bert.emb_ln",
        **tensors.layer_names(
            "nomic_bert.encoder.layers.{layer}",
            {
                "self_attn.o_proj": "attn.out_proj",
                "input_layernorm": "norm1",
                "mlp.up_proj": "mlp.fc11",
                "mlp.gate_proj": "mlp.fc12",
                "mlp.down_proj": "mlp.fc2",
                "post_attention_layernorm": "norm2",
            },
        ),
    },
    stacks=(
        StackRule(
            "nomic_bert.encoder.layers.{layer}.attn.Wqkv.weight", tensors.STACKED_ATTENTION.parts
        ),
        *tensors.GGUF_STACKS,
    ),
    ignored=encoders.IGNORED,
    other_parts=(*encoders.OTHER_PARTS, r"cls\..*"),
    row_tail="auto",
    exported=encoders.exported,
    heads=encoders.heads_of_bert("nomic_bert.", norm="layer_norm"),
    tensors=(
        tensors.EMBEDDING,
        encoders.EMBED_TYPES,
        *encoders.EMBED_NORM,
        *tensors.ATTENTION,
        *tensors.TWO_NORMS,
        *tensors.norm_biases("input_layernorm", "post_attention_layernorm"),
        *tensors.FEED_FORWARD,
    ),
)
