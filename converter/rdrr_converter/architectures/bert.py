"""BERT: learned positions, types of tokens, and norms of the sums of the stream and a branch."""

from __future__ import annotations

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures.base import ArchitectureRule

BERT = ArchitectureRule(
    name="bert",
    classes=("BertModel", "BertForPreTraining"),
    defaults={
        "hidden_act": "gelu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "rms_norm_eps": 1e-12,
        "tie_word_embeddings": True,
        "type_vocab_size": 2,
        "vocab_size": 30522,
    },
    attention=encoders.BIDIRECTIONAL,
    normalization=encoders.NORMS_OF_SUMS,
    ffn=encoders.UNGATED,
    output={"position_embedding_offset": 0, "token_types": read.integer("type_vocab_size")},
    rope=no_rope,
    body="bert.",
    prefixes=("bert.", ""),
    keys={"rms_norm_eps": "layer_norm_eps"},
    dimensions={
        "positions": read.integer("max_position_embeddings"),
        "types": read.integer("type_vocab_size"),
    },
    names=encoders.names_with("bert."),
    ignored=encoders.IGNORED,
    other_parts=(*encoders.OTHER_PARTS, r"cls\..*"),
    row_tail="auto",
    exported=encoders.exported,
    heads=encoders.heads_of_bert("bert."),
    tensors=(
        tensors.EMBEDDING,
        tensors.POSITIONS,
        encoders.EMBED_TYPES,
        *encoders.EMBED_NORM,
        *encoders.LAYERS_OF_BERT,
    ),
)
