"""DistilBERT: BERT without types of tokens, with half of the layers."""

from __future__ import annotations

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures.base import (
    MASKED,
    SEQUENCE,
    ArchitectureRule,
    HeadLayer,
    HeadRule,
)

DISTILBERT = ArchitectureRule(
    name="distilbert",
    classes=("DistilBertModel",),
    defaults={
        "hidden_act": "gelu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
        "rms_norm_eps": 1e-12,
        "tie_word_embeddings": True,
        "vocab_size": 30522,
    },
    attention=encoders.BIDIRECTIONAL,
    normalization=encoders.NORMS_OF_SUMS,
    ffn=encoders.UNGATED,
    output={"position_embedding_offset": 0},
    rope=no_rope,
    body="distilbert.",
    prefixes=("distilbert.", ""),
    keys={
        "hidden_act": "activation",
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "num_key_value_heads": "n_heads",
    },
    dimensions={"positions": lambda config: config.integer("max_position_embeddings")},
    names={
        "model.embed_tokens": "distilbert.embeddings.word_embeddings",
        "model.embed_positions": "distilbert.embeddings.position_embeddings",
        "model.embed_norm": "distilbert.embeddings.LayerNorm",
        **tensors.layer_names(
            "distilbert.transformer.layer.{layer}",
            {
                "self_attn.q_proj": "attention.q_lin",
                "self_attn.k_proj": "attention.k_lin",
                "self_attn.v_proj": "attention.v_lin",
                "self_attn.o_proj": "attention.out_lin",
                "input_layernorm": "sa_layer_norm",
                "mlp.up_proj": "ffn.lin1",
                "mlp.down_proj": "ffn.lin2",
                "post_attention_layernorm": "output_layer_norm",
            },
        ),
    },
    ignored=encoders.IGNORED,
    other_parts=(r"vocab_(transform|layer_norm|projector)\..*",),
    row_tail="auto",
    exported=encoders.exported,
    heads=(
        HeadRule(SEQUENCE, "cls", (HeadLayer("pre_classifier", "relu"), encoders.CLASSIFIER)),
        encoders.TOKENS,
        HeadRule(
            MASKED,
            "none",
            (
                HeadLayer("vocab_transform", read.activation("hidden_act"), "vocab_layer_norm"),
                HeadLayer("vocab_projector", is_tied=True),
            ),
            labels=False,
        ),
    ),
    tensors=(
        tensors.EMBEDDING,
        tensors.POSITIONS,
        *encoders.EMBED_NORM,
        *encoders.LAYERS_OF_BERT,
    ),
)
