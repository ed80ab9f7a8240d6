"""Mamba 2: a state space in every layer, without attention and without feed-forward networks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures._state_space import (
    STATE_SPACE,
    STEP_LIMITS,
    StateSpaceKeys,
    input_stacks,
    mixer_names,
)
from rdrr_converter.architectures.base import ArchitectureRule, Keys
from rdrr_converter.architectures.config import Config

KEYS = StateSpaceKeys(
    heads="num_heads",
    head_dim="head_dim",
    groups="n_groups",
    state="state_size",
    kernel="conv_kernel",
    expand="expand",
    conv_bias="use_conv_bias",
    bias="use_bias",
)


def all_state_space(config: Config) -> tuple[str, ...]:
    """Rule: every layer has a state space."""
    return (STATE_SPACE,) * config.layers


def width(config: Config) -> int:
    """Rule: the width of the heads, which published configurations also call the inner size.

    Raises:
        SourceError: `intermediate_size` states another one.
    """
    inner = KEYS.inner(config)
    config.get("norm_before_gate")  # Codestral states true, and its code applies the gate first
    if config.get("intermediate_size") not in (None, inner):
        raise config.fault("intermediate_size", str(inner), config.get("intermediate_size"))
    return inner


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the keys of the state space, without those of attention and feed-forwards."""
    lacking = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "rope_theta")
    keys = {key: value for key, value in config.items() if key not in lacking}
    return keys | KEYS.exported(manifest)


MAMBA2 = ArchitectureRule(
    name="mamba2",
    classes=("Mamba2ForCausalLM", "Mamba2Model"),
    defaults={
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 4096,
        # A state has no end; llama.cpp writes this number for want of one.
        "max_position_embeddings": 2**20,
        "n_groups": 8,
        "num_attention_heads": 128,
        "num_heads": 128,
        "num_hidden_layers": 64,
        "rms_norm_eps": 1e-5,
        "state_size": 128,
        "tie_word_embeddings": False,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 32768,
    },
    inner=width,
    # No layer has attention: the fields that every manifest needs describe the state space.
    sizes={
        **KEYS.sizes(),
        "num_attention_heads": lambda config: config.integer("num_heads"),
        "num_key_value_heads": lambda config: config.integer("num_heads"),
    },
    normalization={"rms_norm_eps": read.number("rms_norm_eps")},
    rope=no_rope,
    state_space=STEP_LIMITS,
    exported=exported,
    layer_types=all_state_space,
    pattern={"single_branch": True},
    keys={"num_attention_heads": "num_heads", "rms_norm_eps": "layer_norm_epsilon"},
    dimensions=KEYS.dimensions(),
    body="backbone.",
    prefixes=("backbone.", "model.", ""),
    names={
        "model.embed_tokens": "backbone.embeddings",
        "model.norm": "backbone.norm_f",
        **tensors.layer_names(
            "backbone.layers.{layer}", {"input_layernorm": "norm", **mixer_names("mixer")}
        ),
    },
    stacks=input_stacks("backbone.layers.{layer}.mixer"),
    tensors=(
        replace(tensors.EMBEDDING, aliases=("backbone.embedding.weight",)),
        tensors.norm("input_layernorm"),
        *KEYS.tensors(),
        tensors.FINAL_NORM,
        tensors.HEAD,
    ),
)
