"""Nemotron-H: each layer is a state space, attention without rope, or a feed-forward.

transformers limits the steps of a prompt to `time_step_min` and more, but not those of decoding.
NVIDIA's own code follows `time_step_limit` in both, and so does this file.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures._state_space import (
    FEED_FORWARD,
    STATE_SPACE,
    STEP_LIMITS,
    StateSpaceKeys,
    input_stacks,
    mixer_names,
    of_type,
)
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    UNGATED_FEED_FORWARD,
    in_layers,
    layer_names,
    norm,
    ungated_biases,
)

KEYS = StateSpaceKeys(
    heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    groups="n_groups",
    state="ssm_state_size",
    kernel="conv_kernel",
    expand="",
    activation="mamba_hidden_act",
    conv_bias="use_conv_bias",
    bias="use_bias",
)
TYPES = {
    "M": STATE_SPACE,
    "mamba": STATE_SPACE,
    "linear_attention": STATE_SPACE,
    "*": FULL,
    "attention": FULL,
    FULL: FULL,
    "-": FEED_FORWARD,
    "mlp": FEED_FORWARD,
}
"""Types of layers by their letters in patterns, and by their older and newer names in lists."""

_OF_EXPERTS = (
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_overlap",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "topk_group",
)
"""Keys that only describe layers with experts, which these rules refuse."""

_UNUSED = (
    "expand",  # the width is that of the heads
    "mtp_hybrid_override_pattern",  # further tokens are not predicted
    "mtp_layers_block_type",
    "num_nextn_predict_layers",
)


def single_branches(config: Config) -> tuple[str, ...]:
    """Rule: the layers of `layers_block_type`, else of `hybrid_override_pattern`.

    Raises:
        SourceError: Both are absent, one has a type that is not known, or they differ.
    """
    for key in (*_OF_EXPERTS, *_UNUSED):
        config.get(key)
    found = {}
    for key in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        stated = config.get(key)
        if stated is None:
            continue
        unknown = [one for one in stated if one not in TYPES]
        if not stated or unknown:
            raise config.fault(key, f"layers of the types {', '.join(TYPES)}", unknown or stated)
        found[key] = tuple(TYPES[one] for one in stated)
    if len(set(found.values())) != 1:
        expected = "one list of layers" if found else "layers_block_type"
        raise config.fault("hybrid_override_pattern", expected, list(found) or None)
    return next(iter(found.values()))


def layer_count(config: Config) -> int:
    """Default: the number of layers is that of the types."""
    return len(single_branches(config))


def head_width(config: Config) -> int:
    """Default: the width of a head has another key in the first models."""
    found: int = config.get("attention_head_dim") or 128
    return found


NEMOTRON_H = ArchitectureRule(
    name="nemotron_h",
    classes=("NemotronHForCausalLM", "NemotronHModel"),
    defaults={
        "conv_kernel": 4,
        "head_dim": head_width,
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 128,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "n_groups": 8,
        "num_attention_heads": 32,
        "num_hidden_layers": layer_count,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "ssm_state_size": 128,
        "tie_word_embeddings": False,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 131072,
    },
    sizes=KEYS.sizes(),
    attention={"query_pre_attn_scalar": read.head_dim},
    normalization={"rms_norm_eps": read.number("rms_norm_eps")},
    ffn={"activation": read.activation("mlp_hidden_act"), "gated_activation": False},
    output={},
    rope=no_rope,
    state_space=STEP_LIMITS,
    layer_types=single_branches,
    pattern={"single_branch": True},
    keys={"rms_norm_eps": "layer_norm_epsilon"},
    dimensions=KEYS.dimensions(),
    prefixes=("model.", "backbone.", ""),
    names={
        "model.embed_tokens": "model.embeddings",
        "model.norm": "model.norm_f",
        **layer_names(
            "model.layers.{layer}",
            {
                "input_layernorm": "norm",
                **{f"self_attn.{one}_proj": f"mixer.{one}_proj" for one in "qkvo"},
                "mlp.up_proj": "mixer.up_proj",
                "mlp.down_proj": "mixer.down_proj",
                **mixer_names("mixer"),
            },
        ),
    },
    stacks=input_stacks("model.layers.{layer}.mixer"),
    other_parts=(r"mtp\..*",),
    tensors=(
        EMBEDDING,
        norm("input_layernorm"),
        *in_layers(of_type(single_branches, STATE_SPACE), *KEYS.tensors()),
        *in_layers(of_type(single_branches, FULL), *ATTENTION),
        *in_layers(
            of_type(single_branches, FEED_FORWARD),
            *UNGATED_FEED_FORWARD,
            *ungated_biases(read.flag("mlp_bias")),
        ),
        FINAL_NORM,
        HEAD,
    ),
)
