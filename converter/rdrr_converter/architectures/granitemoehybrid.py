"""Granite 4 hybrids: a state space in most layers, attention in the others, Granite's factors.

Every layer has a feed-forward that all tokens use, beside selected experts if there are any. The
small models without state spaces have the same configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import no_rope, read_rope
from rdrr_converter.architectures._state_space import (
    STATE_SPACE,
    STEP_LIMITS,
    StateSpaceKeys,
    input_stacks,
    of_type,
)
from rdrr_converter.architectures.base import ArchitectureRule, Keys, StackRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.granite import GRANITE
from rdrr_converter.architectures.granitemoe import EXPERTS, GRANITEMOE, PUBLISHED
from rdrr_converter.architectures.layers import FULL

KEYS = StateSpaceKeys()
SHARED = "model.layers.{layer}.shared_mlp"
SHARED_WIDTH = "shared_intermediate_size"
TYPES = {"mamba": STATE_SPACE, "linear_attention": STATE_SPACE, "attention": FULL, FULL: FULL}
"""Layer types by their older and newer names in configurations."""


def state_space_and_full(config: Config) -> tuple[str, ...]:
    """Rule: `layer_types`, else every layer has a state space.

    Raises:
        SourceError: `layer_types` is no list of these two types.
    """
    stated = config.get("layer_types")
    if stated is None:
        return (STATE_SPACE,) * config.layers
    known = isinstance(stated, list) and all(kind in TYPES for kind in stated)
    if not known or len(stated) < config.layers:
        raise config.fault("layer_types", f"{config.layers} of {' or '.join(TYPES)}", stated)
    return tuple(TYPES[kind] for kind in stated[: config.layers])


def rope(config: Config) -> Mapping[str, object]:
    """Rule: rope only if `position_embedding_type` says so.

    Raises:
        SourceError: It names another kind of position embedding.
    """
    kind, block = config.get("position_embedding_type"), read_rope(config)
    if kind not in (None, "nope", "rope"):
        raise config.fault("position_embedding_type", "rope, nope or null", kind)
    return block if kind == "rope" else no_rope(config)


def has_experts(config: Config) -> bool:
    """Rule: layers have experts unless their number is 0."""
    return bool(config.get("num_local_experts"))


def width(config: Config) -> int:
    """Rule: the width of an expert, or of the dense feed-forward if there are no experts."""
    stated = config.integer("intermediate_size")
    return stated if has_experts(config) else config.integer(SHARED_WIDTH)


def layers_with_experts(config: Config) -> range:
    """Rule: all layers or none have experts."""
    return range(config.layers if has_experts(config) else 0)


def layers_without_experts(config: Config) -> range:
    """Rule: all layers or none have a dense feed-forward."""
    return range(0 if has_experts(config) else config.layers)


def stacks(gate: str, up: str, down: str) -> tuple[StackRule, StackRule]:
    """Return the stacks of the feed-forward that all tokens use."""
    return (
        StackRule(f"{SHARED}.input_linear.weight", (gate, up), arrangement=PUBLISHED),
        StackRule(f"{SHARED}.output_linear.weight", (down,), arrangement=PUBLISHED),
    )


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the keys of Granite's hybrids, whose layers may also have no experts."""
    sizes, moe, blocks = manifest.architecture, manifest.moe_config, manifest.inference
    kinds = blocks.layer_pattern.layer_types or ("full_attention",) * sizes.num_layers
    plain = blocks.rope.unrotated_layers or ()
    keys = (
        config
        | KEYS.exported(manifest)
        | {
            "layer_types": ["mamba" if kind == STATE_SPACE else "attention" for kind in kinds],
            "position_embedding_type": None if plain else "rope",
        }
    )
    if moe is None:
        width = sizes.intermediate_size
        return keys | {"num_local_experts": 0, "shared_intermediate_size": width}
    return keys | {"shared_intermediate_size": moe.shared_expert_intermediate_size}


GRANITEMOEHYBRID = ArchitectureRule(
    name="granitemoehybrid",
    classes=("GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"),
    defaults={
        **GRANITEMOE.defaults,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": "auto",
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "mamba_proj_bias": False,
        SHARED_WIDTH: 1024,
    },
    inner=width,
    sizes=KEYS.sizes(),
    attention=GRANITE.attention,
    normalization=GRANITE.normalization,
    ffn=GRANITE.ffn,
    output=GRANITE.output,
    branch_scale=GRANITE.branch_scale,
    experts={
        **(GRANITEMOE.experts or {}),
        "shared_expert_intermediate_size": read.integer(SHARED_WIDTH),
    },
    has_experts=has_experts,
    rope=rope,
    state_space=STEP_LIMITS,
    exported=exported,
    layer_types=state_space_and_full,
    dimensions=KEYS.dimensions(),
    stacks=(
        *GRANITEMOE.stacks,
        *stacks(*(row.name for row in tensors.SHARED_EXPERT[:3])),
        *stacks(*(row.name for row in tensors.FEED_FORWARD)),
        *input_stacks(),
    ),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.in_layers(
            of_type(state_space_and_full, FULL),
            *tensors.ATTENTION,
            *tensors.attention_biases(),
        ),
        *tensors.in_layers(of_type(state_space_and_full, STATE_SPACE), *KEYS.tensors()),
        *tensors.in_layers(layers_without_experts, *tensors.FEED_FORWARD),
        *tensors.in_layers(
            layers_with_experts,
            tensors.router("block_sparse_moe.router.layer", aliases=("block_sparse_moe.router",)),
            *EXPERTS,
            *tensors.SHARED_EXPERT[:3],
        ),
    ),
)
