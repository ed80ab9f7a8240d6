"""ModernBERT: rope, gated feed-forwards, and windows in all layers but every third.

The norm of the embedding is that of the first layer, too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_dual_rope
from rdrr_converter.architectures.base import (
    MASKED,
    SEQUENCE,
    TOKEN,
    ArchitectureRule,
    HeadLayer,
    HeadRule,
    Keys,
    StackRule,
)
from rdrr_converter.architectures.config import STATED_ACTIVATIONS, Config
from rdrr_converter.architectures.layers import FULL, SLIDING, stated_types

ATTENTION_BIAS, MLP_BIAS, NORM_BIAS = map(read.flag, ("attention_bias", "mlp_bias", "norm_bias"))
_LAYER = "model.layers.{layer}"
_HIDDEN = HeadLayer("head.dense", read.activation("classifier_activation"), "head.norm")


def _layer_types(config: Config) -> tuple[str, ...]:
    """Rule: the stated layer types, else full attention in every n-th layer, from the first on."""
    period = config.integer("global_attn_every_n_layers")
    return stated_types(config) or tuple(
        SLIDING if layer % period else FULL for layer in range(config.layers)
    )


def _later_layers(config: Config) -> tuple[int, ...]:
    """Rule: the layers whose attention has a norm of its own."""
    return tuple(range(1, config.layers))


def _pooling(config: Config) -> str:
    """Rule: what the head of a classifier reads.

    Raises:
        SourceError: It is neither the first token nor the mean.
    """
    stated = config.get("classifier_pooling")
    if stated not in ("cls", "mean"):
        raise config.fault("classifier_pooling", "cls or mean", stated)
    return str(stated)


def _exported(config: Keys, manifest: Manifest, names: Collection[str]) -> Keys:
    """Return the keys of an encoder, and those of the head of a classifier."""
    keys = encoders.exported(config, manifest, names)
    output = manifest.inference.output
    block = output.embedding_postprocessor
    if block is None or output.classifier is None:
        return keys
    first = block.projections[0]
    if block.pooling_mode != "none":
        keys["classifier_pooling"] = block.pooling_mode
    activation = STATED_ACTIVATIONS.get(first.activation, first.activation)
    return {
        **keys,
        "classifier_activation": activation,
        "classifier_bias": first.bias_tensor is not None,
    }


MODERNBERT = ArchitectureRule(
    name="modernbert",
    classes=("ModernBertModel",),
    defaults={
        "classifier_activation": "gelu",
        "classifier_pooling": "cls",
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "hidden_activation": "gelu",
        "hidden_size": 768,
        "intermediate_size": 1152,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "num_attention_heads": 12,
        "num_hidden_layers": 22,
        "rms_norm_eps": 1e-5,
        "rope_local_base_freq": lambda config: config.get("local_rope_theta"),
        "rope_theta": lambda config: config.get("global_rope_theta"),
        "sliding_window": 128,
        "tie_word_embeddings": True,
        "vocab_size": 50368,
    },
    attention={
        **encoders.BIDIRECTIONAL,
        "sliding_window": read.optional_integer("sliding_window"),
    },
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
        "layer_norm": True,
    },
    ffn={"activation": read.activation("hidden_activation")},
    rope=read_dual_rope,
    layer_types=_layer_types,
    keys={"rms_norm_eps": "norm_eps", "sliding_window": "local_attention"},
    names={
        "model.embed_tokens": "model.embeddings.tok_embeddings",
        "model.embed_norm": "model.embeddings.norm",
        "model.norm": "model.final_norm",
        **tensors.layer_names(
            _LAYER,
            {
                "input_layernorm": "attn_norm",
                "self_attn.o_proj": "attn.Wo",
                "post_attention_layernorm": "mlp_norm",
                "mlp.down_proj": "mlp.Wo",
            },
        ),
    },
    stacks=(
        StackRule(f"{_LAYER}.attn.Wqkv.weight", tensors.STACKED_ATTENTION.parts),
        StackRule(f"{_LAYER}.attn.Wqkv.bias", tensors.STACKED_BIASES.parts),
        StackRule(f"{_LAYER}.mlp.Wi.weight", tensors.STACKED_GATE_UP.parts),
        StackRule(
            f"{_LAYER}.mlp.Wi.bias",
            tuple(part.replace(".weight", ".bias") for part in tensors.STACKED_GATE_UP.parts),
        ),
        *tensors.GGUF_STACKS,
        replace(tensors.STACKED_GATE_UP, is_published=False),
    ),
    # Keys of the head of a classifier, which other models state too.
    stated_by_tensors=("classifier_activation", "classifier_pooling"),
    other_parts=(r"(head|decoder|classifier)\..*",),
    row_tail="auto",
    exported=_exported,
    heads=(
        HeadRule(SEQUENCE, _pooling, (_HIDDEN, encoders.CLASSIFIER)),
        HeadRule(TOKEN, "none", (_HIDDEN, encoders.CLASSIFIER)),
        HeadRule(MASKED, "none", (_HIDDEN, HeadLayer("decoder", is_tied=True)), labels=False),
    ),
    tensors=(
        tensors.EMBEDDING,
        encoders.EMBED_NORM[0],
        replace(encoders.EMBED_NORM[1], required=NORM_BIAS),
        *tensors.in_layers(_later_layers, tensors.norm("input_layernorm")),
        *tensors.in_layers(
            _later_layers, *tensors.norm_biases("input_layernorm", required=NORM_BIAS)
        ),
        *tensors.ATTENTION,
        *tensors.attention_biases(ATTENTION_BIAS),
        tensors.norm("post_attention_layernorm"),
        *tensors.norm_biases("post_attention_layernorm", required=NORM_BIAS),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(MLP_BIAS),
        tensors.FINAL_NORM,
        replace(tensors.FINAL_NORM_BIAS, required=NORM_BIAS),
    ),
)
