"""What encoders share: attention to later tokens, norms of sums, and names of BERT's modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import (
    ATTENTION,
    MASKED,
    SEQUENCE,
    TOKEN,
    Block,
    HeadLayer,
    HeadRule,
    Keys,
    TensorRule,
)
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.tensors import layer_names


def _is_causal(config: Config) -> bool:
    """Rule: attention is never causal.

    Raises:
        SourceError: The configuration asks for the decoder of the family, which has another head.
    """
    for key in ("is_decoder", "causal"):
        if config.flag(key):
            raise config.fault(key, "false, as in an encoder", True)
    return False


def exported(config: Keys, manifest: Manifest, _names: Collection[str]) -> Keys:
    """Return the keys of an encoder: its attention is never causal, rows of padding count."""
    keys = {key: value for key, value in config.items() if key != "use_bidirectional_attention"}
    if before := manifest.inference.output.position_embedding_offset:
        keys["max_position_embeddings"] += before
        keys["pad_token_id"] = before - 1
    return keys


BIDIRECTIONAL: Block = {**ATTENTION, "causal": _is_causal}
NORMS_OF_SUMS: Block = {
    "rms_norm_eps": read.number("rms_norm_eps"),
    "post_attention_norm": True,
    "layer_norm": True,
    "norm_after_residual": True,
    "final_norm": False,
}
UNGATED: Block = {"activation": read.activation("hidden_act"), "gated_activation": False}

NAMES_OF_BERT: Mapping[str, str] = {
    "model.embed_tokens": "embeddings.word_embeddings",
    "model.embed_positions": "embeddings.position_embeddings",
    "model.embed_types": "embeddings.token_type_embeddings",
    "model.embed_norm": "embeddings.LayerNorm",
    **layer_names(
        "encoder.layer.{layer}",
        {
            "self_attn.q_proj": "attention.self.query",
            "self_attn.k_proj": "attention.self.key",
            "self_attn.v_proj": "attention.self.value",
            "self_attn.o_proj": "attention.output.dense",
            "input_layernorm": "attention.output.LayerNorm",
            "mlp.up_proj": "intermediate.dense",
            "mlp.down_proj": "output.dense",
            "post_attention_layernorm": "output.LayerNorm",
        },
    ),
}
"""The names of BERT's modules, without the prefix of the encoder."""

OTHER_PARTS = (r"((bert|roberta|mpnet|distilbert|nomic_bert)\.)?pooler\..*",)
"""Layers after the encoder that are not part of it; a head that uses some of them reads them."""

IGNORED = (r".*embeddings\.(position_ids|token_type_ids)",)

EMBED_TYPES = TensorRule("model.embed_types.weight", "position_embedding", ("types", "hidden"))
EMBED_NORM = (
    TensorRule("model.embed_norm.weight", "norm", ("hidden",)),
    TensorRule("model.embed_norm.bias", "bias", ("hidden",)),
)
LAYERS_OF_BERT = (
    *tensors.ATTENTION,
    *tensors.attention_biases(True),
    *tensors.TWO_BIASED_NORMS,
    *tensors.UNGATED_FEED_FORWARD,
    *tensors.ungated_biases(True),
)

CLASSIFIER = HeadLayer("classifier")
TOKENS = HeadRule(TOKEN, "none", (CLASSIFIER,))


def names_with(prefix: str, names: Mapping[str, str] = NAMES_OF_BERT) -> dict[str, str]:
    """Return the names of modules with the prefix of an encoder."""
    return {ours: f"{prefix}{theirs}" for ours, theirs in names.items()}


def heads_of_roberta() -> tuple[HeadRule, ...]:
    """Return the heads of RoBERTa and its relatives."""
    dense = HeadLayer("classifier.dense", "tanh")
    masked = (
        HeadLayer("lm_head.dense", "gelu_erf", "lm_head.layer_norm"),
        HeadLayer("lm_head.decoder", bias="lm_head.bias", is_tied=True),
    )
    return (
        HeadRule(SEQUENCE, "cls", (dense, HeadLayer("classifier.out_proj"))),
        TOKENS,
        HeadRule(MASKED, "none", masked, labels=False),
    )


def heads_of_bert(
    body: str, norm: str = "LayerNorm", stem: str = "cls.predictions"
) -> tuple[HeadRule, ...]:
    """Return the heads of BERT.

    Args:
        body: Prefix of the encoder.
        norm: Name of the norm before masked tokens are predicted.
        stem: Name of the head for masked tokens.
    """
    transform = f"{stem}.transform"
    activation = read.activation("hidden_act")
    masked = (
        HeadLayer(f"{transform}.dense", activation, f"{transform}.{norm}"),
        HeadLayer(f"{stem}.decoder", bias=f"{stem}.bias", is_tied=True),
    )
    return (
        HeadRule(SEQUENCE, "cls", (HeadLayer(f"{body}pooler.dense", "tanh"), CLASSIFIER)),
        TOKENS,
        HeadRule(MASKED, "none", masked, labels=False),
    )


def positions_after_padding(config: Config) -> int:
    """Return the row of position 0: rows up to that of padding are no positions of tokens.

    Raises:
        SourceError: `pad_token_id` is no token id.
    """
    token = config.get("pad_token_id")
    if type(token) is not int or token < 0:
        raise config.fault("pad_token_id", "a token id", token)
    return token + 1


def longest_after_padding(config: Config) -> int:
    """Return the number of positions after those up to the padding's."""
    return config.integer("max_position_embeddings") - positions_after_padding(config)
