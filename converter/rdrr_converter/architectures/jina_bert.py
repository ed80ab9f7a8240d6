"""Jina BERT v2: BERT with ALiBi in place of positions, and gated feed-forwards.

The weights name it `bert` as their `model_type`; the class tells them apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule, Keys, StackRule
from rdrr_converter.architectures.bert import BERT
from rdrr_converter.architectures.config import Config

_ACTIVATIONS = {"geglu": "gelu_erf", "reglu": "relu"}
_LAYER = "bert.encoder.layer.{layer}"


def _activation(config: Config) -> str:
    """Rule: the activation of the gates, which has the name of the gated feed-forward.

    Raises:
        SourceError: The feed-forward is not gated, or has other gates.
    """
    stated = config.get("feed_forward_type")
    if stated not in _ACTIVATIONS:
        raise config.fault("feed_forward_type", " or ".join(_ACTIVATIONS), stated)
    return _ACTIVATIONS[stated]


def _alibi(config: Config) -> float:
    """Rule: the exponent of ALiBi's smallest slope.

    Raises:
        SourceError: Positions are embedded in another way.
    """
    stated = config.get("position_embedding_type")
    if stated != "alibi":
        raise config.fault("position_embedding_type", "alibi", stated)
    return config.number("max_alibi_bias")


def _exported(config: Keys, manifest: Manifest, names: Collection[str]) -> Keys:
    """Return the keys of an encoder, and those of ALiBi and of the gates.

    Manifests of other models are tried too: what they lack is None, which the rule refuses.
    """
    kinds = {activation: kind for kind, activation in _ACTIVATIONS.items()}
    return {
        **encoders.exported(config, manifest, names),
        "feed_forward_type": kinds.get(manifest.inference.ffn.activation),
        "max_alibi_bias": manifest.inference.attention.max_alibi_bias,
        "position_embedding_type": "alibi",
    }


JINA_BERT: ArchitectureRule = replace(
    BERT,
    name="jina_bert",
    classes=("JinaBertModel",),
    text_type="bert",
    defaults={**BERT.defaults, "feed_forward_type": "original", "max_alibi_bias": 8.0},
    attention={**encoders.BIDIRECTIONAL, "max_alibi_bias": _alibi},
    ffn={"activation": _activation},
    output={"token_types": read.integer("type_vocab_size")},
    dimensions={"types": read.integer("type_vocab_size")},
    names={
        **encoders.names_with("bert."),
        **tensors.layer_names(
            _LAYER,
            {"mlp.down_proj": "mlp.wo", "post_attention_layernorm": "mlp.layernorm"},
        ),
    },
    stacks=(
        StackRule(f"{_LAYER}.mlp.gated_layers.weight", tensors.STACKED_GATE_UP.parts),
        replace(tensors.STACKED_GATE_UP, is_published=False),
    ),
    exported=_exported,
    tensors=(
        tensors.EMBEDDING,
        encoders.EMBED_TYPES,
        *encoders.EMBED_NORM,
        *tensors.ATTENTION,
        *tensors.attention_biases(True),
        *tensors.TWO_BIASED_NORMS,
        *tensors.FEED_FORWARD,
        tensors.bias("mlp.down_proj", "hidden", required=True),
    ),
)
