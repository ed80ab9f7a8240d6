"""LFM2 and 2.5: short convolutions with gates in most layers, attention in the others."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule, Keys, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL

CONV = "conv"
CONV_BIAS = read.flag("conv_bias")
LAYER = "model.layers.{layer}"
LayerTypes = Callable[[Config], tuple[str, ...]]
Layers = Callable[[Config], Collection[int]]


def convolutions_and_full(config: Config) -> tuple[str, ...]:
    """Rule: `layer_types`, else the layers in `full_attn_idxs` have attention.

    Raises:
        SourceError: Either is invalid.
    """
    stated, full = config.get("layer_types"), config.get("full_attn_idxs")
    if stated is None:
        if full is not None and not isinstance(full, list):
            raise config.fault("full_attn_idxs", "a list of layers", full)
        full_layers = range(config.layers) if full is None else full
        return tuple(FULL if layer in full_layers else CONV for layer in range(config.layers))
    known = isinstance(stated, list) and all(kind in (FULL, CONV) for kind in stated)
    if not known or len(stated) < config.layers:
        raise config.fault("layer_types", f"{config.layers} of {FULL} or {CONV}", stated)
    return tuple(stated[: config.layers])


def layers_of(types: LayerTypes, *kinds: str) -> Layers:
    """Return the rule for the layers of some types, of those that the rule `types` gives."""
    return lambda config: [at for at, kind in enumerate(types(config)) if kind in kinds]


def inner_size(config: Config) -> int:
    """Rule: the width of the feed-forward, of which the configuration may state 3/2.

    transformers takes two thirds of it, then a factor, rounded up to a multiple.

    Raises:
        SourceError: A number is invalid.
    """
    key = "block_ff_dim" if config.get("block_ff_dim") is not None else "intermediate_size"
    config.get("intermediate_size")  # `block_ff_dim` takes precedence over it
    stated, factor = config.integer(key), config.optional_number("block_ffn_dim_multiplier")
    multiple = config.integer("block_multiple_of")
    if not config.flag("block_auto_adjust_ff_dim"):
        return stated
    width = int(2 * stated / 3)
    return width if factor is None else -(-int(factor * width) // multiple) * multiple


def convolutions(layers: Layers) -> tuple[TensorRule, ...]:
    """Return the rules for the tensors of layers with a convolution."""
    return tensors.in_layers(
        layers,
        tensors.projection("conv.in_proj", "three_hidden", "hidden"),
        tensors.bias("conv.in_proj", "three_hidden", CONV_BIAS),
        TensorRule(f"{LAYER}.conv.conv.weight", "conv", ("hidden", "one", "taps")),
        tensors.bias("conv.conv", "hidden", CONV_BIAS),
        tensors.projection("conv.out_proj", "hidden", "hidden"),
        tensors.bias("conv.out_proj", "hidden", CONV_BIAS),
    )


GATED_BRANCHES = (
    *tensors.in_layers(
        layers_of(convolutions_and_full, FULL), *tensors.ATTENTION, *tensors.QUERY_KEY_NORMS
    ),
    *convolutions(layers_of(convolutions_and_full, CONV)),
)


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the types of layers and the size of convolutions."""
    types = manifest.inference.layer_pattern.layer_types
    if types is None:
        return config
    lacking = ("rms_norm_eps", "hidden_act", "head_dim")
    keys = config | {"layer_types": list(types)}
    return {key: value for key, value in keys.items() if key not in lacking} | {
        "norm_eps": keys["rms_norm_eps"],
        "conv_L_cache": manifest.architecture.linear_conv_kernel_dim,
    }


def exported_dense(config: Keys, manifest: Manifest, names: Collection[str]) -> Keys:
    """Return the same for a model without experts, whose stated width is the width."""
    keys = exported(config, manifest, names)
    return keys if keys is config else keys | {"block_auto_adjust_ff_dim": False}


LFM2 = ArchitectureRule(
    name="lfm2",
    classes=("Lfm2ForCausalLM", "Lfm2Model"),
    defaults={
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "conv_L_cache": 3,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "vocab_size": 65536,
    },
    sizes={
        "intermediate_size": inner_size,
        "linear_conv_kernel_dim": read.integer("conv_L_cache"),
    },
    normalization={"rms_norm_eps": read.number("norm_eps"), "post_attention_norm": True},
    ffn={"activation": "silu"},
    exported=exported_dense,
    layer_types=convolutions_and_full,
    stated_by_tensors=("tie_embedding",),
    dimensions={
        "taps": read.integer("conv_L_cache"),
        "three_hidden": lambda config: 3 * config.integer("hidden_size"),
    },
    names={
        "model.norm": "model.embedding_norm",
        **tensors.layer_names(
            LAYER,
            {
                "input_layernorm": "operator_norm",
                "post_attention_layernorm": "ffn_norm",
                "mlp.gate_proj": "feed_forward.w1",
                "mlp.up_proj": "feed_forward.w3",
                "mlp.down_proj": "feed_forward.w2",
                "self_attn.o_proj": "self_attn.out_proj",
                "self_attn.q_norm": "self_attn.q_layernorm",
                "self_attn.k_norm": "self_attn.k_layernorm",
            },
        ),
    },
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *GATED_BRANCHES,
        *tensors.FEED_FORWARD,
    ),
)
