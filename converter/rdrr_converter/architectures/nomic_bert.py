"""NomicBERT: BERT with rope, and with gated feed-forwards and no biases, or with experts.

In models with experts (nomic-embed-text-v2-moe) every second layer has some; no feed-forward is
gated, projections have biases, and one bias is added to the sum of the experts. transformers and
the publisher name the same keys of the configuration differently; transformers reads such a
checkpoint without its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from rdrr_manifests.graph.names import SUM_BIAS, TensorNames
from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures.base import (
    ArchitectureRule,
    Arrangement,
    Keys,
    StackRule,
    TensorRule,
)
from rdrr_converter.architectures.config import Config


def _published(key: str, default: float) -> Callable[[Config], Any]:
    """Return the default of a key: its value under the publisher's name, else a number."""
    return lambda config: default if config.get(key) is None else config.get(key)


def _activation(config: Config) -> str:
    """Return the activation of the gates, which the publisher names together with the product."""
    stated = config.get("activation_function") or "swiglu"
    return {"swiglu": "silu", "geglu": "gelu"}.get(stated, stated)


def _is_gated(config: Config) -> bool:
    """Rule: feed-forwards are gated unless the publisher's key names an activation alone."""
    stated = config.get("activation_function")
    return stated is None or str(stated).endswith("glu")


def _is_ungated(config: Config) -> bool:
    return not _is_gated(config)


def _has_sum_bias(config: Config) -> bool:
    """Rule: a bias is added to the sum of experts, but in a GGUF, which is read with this key."""
    return config.get("moe_sum_bias") is not False


def _has_experts(config: Config) -> bool:
    """Rule: experts are in every n-th layer, and in none without n."""
    return bool(config.get("moe_every_n_layers"))


def _layers(*, sparse: bool) -> Callable[[Config], tuple[int, ...]]:
    """Return the rule for the layers with experts, or for those without."""

    def rule(config: Config) -> tuple[int, ...]:
        period = config.get("moe_every_n_layers") or 0
        return tuple(
            layer
            for layer in range(config.layers)
            if (period > 0 and layer % period == 1) is sparse
        )

    return rule


def _names(config: Config) -> dict[str, str]:
    """Rule: the up projection has another name where there is no gate."""
    if _is_gated(config):
        return {}
    return tensors.layer_names(_LAYER, {"mlp.up_proj": "mlp.fc1"})


def _exported(config: Keys, manifest: Manifest, names: Collection[str]) -> Keys:
    """Return the keys of an encoder, and those that say that feed-forwards have no gates."""
    keys = encoders.exported(config, manifest, names)
    if manifest.inference.ffn.gated_activation:
        return keys
    layers = manifest.architecture.num_layers
    tensor_names = TensorNames(names)
    sparse = [layer for layer in range(layers) if tensor_names.experts(layer) is not None]
    period = sparse[1] - sparse[0] if len(sparse) > 1 else layers
    return {
        **keys,
        "activation_function": keys["hidden_act"],
        "moe_every_n_layers": period if sparse else 0,
        "moe_sum_bias": any(name.endswith(SUM_BIAS) for name in names),
    }


_LAYER = "nomic_bert.encoder.layers.{layer}"
_EXPERT = "model.layers.{layer}.mlp.experts.{expert}"
_EXPERTS = (
    TensorRule(f"{_EXPERT}.up_proj.weight", "expert", ("width", "hidden")),
    TensorRule(f"{_EXPERT}.down_proj.weight", "expert", ("hidden", "width")),
)

NOMIC_BERT = ArchitectureRule(
    name="nomic_bert",
    classes=("NomicBertModel",),
    defaults={
        "hidden_act": _activation,
        "hidden_size": _published("n_embd", 768),
        "intermediate_size": _published("n_inner", 3072),
        "max_position_embeddings": _published("n_positions", 2048),
        "norm_topk_prob": False,
        "num_attention_heads": _published("n_head", 12),
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": _published("n_layer", 12),
        "rms_norm_eps": _published("layer_norm_epsilon", 1e-12),
        "rope_theta": _published("rotary_emb_base", 1000.0),
        "tie_word_embeddings": True,
        "type_vocab_size": 2,
        "vocab_size": 30528,
    },
    attention=encoders.BIDIRECTIONAL,
    normalization=encoders.NORMS_OF_SUMS,
    ffn={"activation": read.activation("hidden_act"), "gated_activation": _is_gated},
    experts={
        **MIXTURE_KEYS,
        "num_experts": read.integer("num_experts"),
        "normalize_weights": read.flag("norm_topk_prob"),
    },
    has_experts=_has_experts,
    stated_by_tensors=("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias"),
    output={"token_types": read.integer("type_vocab_size")},
    body="nomic_bert.",
    prefixes=("nomic_bert.", ""),
    keys={
        "rms_norm_eps": "layer_norm_eps",
        "num_experts_per_tok": "moe_top_k",
        "norm_topk_prob": "moe_normalize_expert_weights",
    },
    dimensions={"types": read.integer("type_vocab_size")},
    names={
        "model.embed_tokens": "nomic_bert.embeddings.word_embeddings",
        "model.embed_types": "nomic_bert.embeddings.token_type_embeddings",
        "model.embed_norm": "nomic_bert.emb_ln",
        **tensors.layer_names(
            _LAYER,
            {
                "self_attn.o_proj": "attn.out_proj",
                "input_layernorm": "norm1",
                "mlp.up_proj": "mlp.fc11",
                "mlp.gate_proj": "mlp.fc12",
                "mlp.down_proj": "mlp.fc2",
                "post_attention_layernorm": "norm2",
                "mlp.gate": "mlp.router.layer",
            },
        ),
        "model.layers.{layer}.mlp.experts.bias": f"{_LAYER}.mlp.experts.bias",
    },
    names_in=_names,
    stacks=(
        StackRule(f"{_LAYER}.attn.Wqkv.weight", tensors.STACKED_ATTENTION.parts),
        StackRule(f"{_LAYER}.attn.Wqkv.bias", tensors.STACKED_BIASES.parts),
        StackRule(f"{_LAYER}.mlp.experts.mlp.w1", (_EXPERTS[0].name,)),
        StackRule(
            f"{_LAYER}.mlp.experts.mlp.w2",
            (_EXPERTS[1].name,),
            arrangement=Arrangement(transposed=True),
        ),
        *tensors.GGUF_STACKS,
        *tensors.gguf_experts(_EXPERTS),
    ),
    ignored=encoders.IGNORED,
    other_parts=(*encoders.OTHER_PARTS, r"cls\..*"),
    row_tail="auto",
    exported=_exported,
    heads=encoders.heads_of_bert("nomic_bert.", norm="layer_norm"),
    tensors=(
        tensors.EMBEDDING,
        encoders.EMBED_TYPES,
        *encoders.EMBED_NORM,
        *tensors.ATTENTION,
        *tensors.attention_biases(_is_ungated),
        *tensors.TWO_BIASED_NORMS,
        *tensors.in_layers(
            _layers(sparse=False),
            replace(tensors.FEED_FORWARD[0], required=_is_gated),
            *tensors.UNGATED_FEED_FORWARD,
            *tensors.ungated_biases(_is_ungated),
        ),
        *tensors.in_layers(
            _layers(sparse=True),
            tensors.router("mlp.gate"),
            *_EXPERTS,
            tensors.bias("mlp.experts", "hidden", _has_sum_bias),
        ),
    ),
)
