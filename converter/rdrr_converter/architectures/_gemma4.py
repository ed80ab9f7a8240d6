"""Rules of Gemma 4 and Gemma 3n: sizes that differ between layers, and keys that layers share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures.base import Arrangement, Keys, StackRule, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL, SLIDING, one_full_of, stated_types
from rdrr_converter.architectures.tensors import gguf_experts, norm, projection

LAYER_TABLE = TensorRule(
    "model.embed_tokens_per_layer.weight", "embedding", ("layer_vocab", "layer_inputs")
)
LAYER_PROJECTION = TensorRule(
    "model.per_layer_model_projection.weight", "matmul", ("layer_inputs", "hidden")
)
LAYER_PROJECTION_NORM = TensorRule(
    "model.per_layer_projection_norm.weight", "norm", ("layer_input",)
)
LAYER_INPUTS = (
    projection("per_layer_input_gate", "layer_input", "hidden"),
    projection("per_layer_projection", "hidden", "layer_input"),
    norm("post_per_layer_input_norm"),
)
"""The tensors of each layer that add the layer's own input to the stream."""

EXPERTS = tuple(
    TensorRule(f"model.layers.{{layer}}.experts.{{expert}}.{part}.weight", "expert", shape)
    for part, shape in (
        ("gate_proj", ("width", "hidden")),
        ("up_proj", ("width", "hidden")),
        ("down_proj", ("hidden", "width")),
    )
)
_WRITTEN = Arrangement(written=True)
EXPERT_STACKS = (
    StackRule(
        "model.layers.{layer}.experts.gate_up_proj",
        tuple(row.name for row in EXPERTS[:2]),
        arrangement=_WRITTEN,
    ),
    StackRule("model.layers.{layer}.experts.down_proj", (EXPERTS[2].name,), arrangement=_WRITTEN),
)
"""The only form in which checkpoints of transformers have the experts."""

GGUF_EXPERT_STACKS = (
    *(StackRule(f"{rule.name}.weight", rule.parts, is_published=False) for rule in EXPERT_STACKS),
    *gguf_experts(EXPERTS[:2]),
)


Types = Callable[[Config], tuple[str, ...]]
"""A rule for the type of each layer."""


def types_ending_in_full(period: int) -> Types:
    """Rule: the stated layer types, else every n-th layer is full; the last layer always is."""

    def read(config: Config) -> tuple[str, ...]:
        types = stated_types(config) or one_full_of(period)(config)
        return (*types[:-1], FULL)

    return read


def count(key: str) -> Callable[[Config], int]:
    """Rule: a whole number that may be 0; absent means 0."""

    def read(config: Config) -> int:
        value = config.get(key) or 0
        if type(value) is not int or value < 0:
            raise config.fault(key, "a whole number", value)
        return value

    return read


def shared_layers(config: Config) -> int:
    """Return the number of last layers that read the keys of an earlier layer.

    Raises:
        SourceError: No layer is left that has keys of its own.
    """
    layers = count("num_kv_shared_layers")(config)
    if layers >= config.layers:
        raise config.fault("num_kv_shared_layers", f"less than {config.layers}", layers)
    return layers


def layers_with_keys(config: Config) -> range:
    """Rule: the layers with keys and values of their own."""
    return range(config.layers - shared_layers(config))


def unread_keys(config: Config) -> tuple[str, ...]:
    """Rule: patterns of stored keys and values that are never used, as layers read earlier ones."""
    shared = range(config.layers - shared_layers(config), config.layers)
    numbers = "|".join(map(str, shared))
    part = r"self_attn\.(k_proj|v_proj|k_norm|v_norm)\.\w+"
    return (rf"(.*\.)?layers\.({numbers})\.{part}",) if numbers else ()


def global_head_dim(config: Config) -> int:
    """Rule: the head dimension of layers with full attention."""
    return _global_sizes(config)[0]


def global_kv_heads(config: Config) -> int | None:
    """Rule: the key-value heads of layers with full attention; None for those of all layers."""
    return _global_sizes(config)[1]


def layers_with_values(types: Types) -> Callable[[Config], tuple[int, ...]]:
    """Return a rule for the layers with a projection of the values, given one for the types.

    With `attention_k_eq_v`, the values of layers with full attention are their projected keys.
    """

    def read(config: Config) -> tuple[int, ...]:
        kinds, same = types(config), config.flag("attention_k_eq_v")
        return tuple(
            layer for layer in layers_with_keys(config) if not (same and kinds[layer] == FULL)
        )

    return read


def layer_input(config: Config) -> int:
    """Return the width of each layer's own input; 0 if the layers have none."""
    return count("hidden_size_per_layer_input")(config)


def layer_vocab(config: Config) -> int:
    """Rule: the rows of the table of the layers' own inputs; 0 if there is none."""
    rows = count("vocab_size_per_layer_input")(config)
    return rows if layer_input(config) else 0


def layers_with_inputs(config: Config) -> range:
    """Rule: the layers with an input of their own, which are all or none."""
    return range(config.layers if layer_input(config) else 0)


def has_layer_inputs(config: Config) -> bool:
    """Rule: whether the layers have inputs of their own."""
    return layer_input(config) > 0


def required_with_inputs(*rows: TensorRule) -> tuple[TensorRule, ...]:
    """Make tensors required only if the layers have inputs of their own."""
    return tuple(replace(row, required=has_layer_inputs) for row in rows)


def has_experts(config: Config) -> bool:
    """Rule: whether the layers have experts beside their dense feed-forward network."""
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        config.get(key)  # transformers reads them only with `enable_moe_block`
    return config.flag("enable_moe_block")


def layers_with_experts(config: Config) -> range:
    """Rule: the layers with experts, which are all or none."""
    return range(config.layers if has_experts(config) else 0)


def branch_mode(config: Config) -> str:
    """Rule: the branches of the feed-forward network."""
    return "dense_plus_moe" if has_experts(config) else "auto"


def is_causal(config: Config) -> bool:
    """Rule: whether text is attended to causally, which it is unless all attention goes both ways.

    Raises:
        SourceError: All attention goes both ways.
    """
    stated = config.get("use_bidirectional_attention")
    if stated not in (None, False, "vision"):
        raise config.fault("use_bidirectional_attention", "vision or null", stated)
    return True


DIMENSIONS: Mapping[str, Callable[[Config], int]] = MappingProxyType(
    {
        "layer_input": layer_input,
        "layer_inputs": lambda config: config.layers * layer_input(config),
        "layer_vocab": layer_vocab,
    }
)
"""Dimensions of the tensors for the layers' own inputs."""


def dimensions_of_layers(types: Types) -> Callable[[Config, int], Mapping[str, int]]:
    """Return the rule for the dimensions of each layer's tensors, given one for the types."""

    def read(config: Config, layer: int) -> Mapping[str, int]:
        head, kv_heads, inner = (
            config.head_dim,
            config.kv_heads,
            config.integer("intermediate_size"),
        )
        if types(config)[layer] == FULL:
            head, kv_heads = global_head_dim(config), global_kv_heads(config) or kv_heads
        if config.flag("use_double_wide_mlp") and layer not in layers_with_keys(config):
            inner *= 2
        heads = config.integer("num_attention_heads")
        return {"head": head, "q": heads * head, "kv": kv_heads * head, "inner": inner}

    return read


def _global_sizes(config: Config) -> tuple[int, int | None]:
    """Return the head dimension and key-value heads of global layers, from both forms.

    older    global_head_dim, and num_global_key_value_heads, which counts with attention_k_eq_v
    newer    per_layer_config, with the sizes of each global layer
    """
    stated = config.get("per_layer_config")
    older = config.get("global_head_dim"), config.get("num_global_key_value_heads")
    if stated is None:
        head, kv_heads = older
        kv_heads = kv_heads if config.flag("attention_k_eq_v") else None
    else:
        head, kv_heads = _common_sizes(config, stated)
    for key, value in (("global_head_dim", head), ("num_global_key_value_heads", kv_heads)):
        if value is not None and (type(value) is not int or value <= 0):
            raise config.fault(key, "a positive whole number", value)
    return head or config.head_dim, kv_heads


def _common_sizes(config: Config, stated: Any) -> tuple[Any, Any]:
    """Return the sizes that `per_layer_config` states for every global layer alike."""
    types = types_ending_in_full(6)(config)
    globals_ = {layer for layer, kind in enumerate(types) if kind == FULL}
    known = {"head_dim", "num_key_value_heads"}
    is_sound = isinstance(stated, dict) and all(
        isinstance(entry, dict) and set(entry) <= known and str(layer).isdecimal()
        for layer, entry in stated.items()
    )
    sizes = list(stated.values()) if is_sound else []
    if (
        not is_sound
        or {int(layer) for layer in stated} != globals_
        or any(entry != sizes[0] for entry in sizes)
    ):
        raise config.fault(
            "per_layer_config",
            "the same head_dim and num_key_value_heads in all global layers",
            stated,
        )
    return sizes[0].get("head_dim"), sizes[0].get("num_key_value_heads")


def exported(config: Keys, manifest: Manifest, names: Collection[str]) -> Keys:
    """Return the keys of Gemma 4."""
    sizes, rope, moe = manifest.architecture, manifest.inference.rope, manifest.moe_config
    full: Keys = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    if rope.rope_frequency_base_dim is not None:
        full |= {"rope_type": "proportional", "partial_rotary_factor": rope.partial_rotary_factor}
    local = {"rope_type": "default", "rope_theta": config.pop("rope_local_base_freq", None)}
    with_keys = sum(name.endswith(".self_attn.k_proj.weight") for name in names)
    with_values = sum(name.endswith(".self_attn.v_proj.weight") for name in names)
    keys = config | {
        **exported_inputs(manifest),
        "attention_k_eq_v": with_values < with_keys,
        "enable_moe_block": moe is not None,
        "global_head_dim": sizes.global_head_dim or sizes.head_dim,
        "layer_types": config.get("layer_types") or uniform_types(config),
        "num_global_key_value_heads": sizes.num_global_key_value_heads,
        "rope_parameters": {FULL: full, SLIDING: local},
        "use_double_wide_mlp": manifest.inference.ffn.use_double_wide_mlp,
    }
    if moe is not None:
        keys |= {
            "moe_intermediate_size": moe.expert_intermediate_size,
            "num_experts": moe.num_experts,
            "top_k_experts": moe.num_experts_per_token,
        }
    return without_usual_keys(keys)


def exported_inputs(manifest: Manifest) -> Keys:
    """Return the keys of the inputs of layers."""
    sizes = manifest.architecture
    return {
        "hidden_size_per_layer_input": sizes.hidden_size_per_layer_input or 0,
        "num_kv_shared_layers": sizes.num_kv_shared_layers or 0,
        "vocab_size_per_layer_input": sizes.vocab_size_per_layer_input or 0,
    }


def uniform_types(config: Keys) -> list[str]:
    """Return the types of layers that all have the same one."""
    kind = SLIDING if config.get("sliding_window") else FULL
    return [kind] * int(config["num_hidden_layers"])


def without_usual_keys(config: Keys) -> Keys:
    """Return a configuration without keys that only other architectures have."""
    unused = ("query_pre_attn_scalar", "partial_rotary_factor")
    return {key: value for key, value in config.items() if key not in unused}
