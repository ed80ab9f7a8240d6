"""Nemotron-H and Nemotron 3: a layer is a state space, attention without rope, or a feed-forward.

Feed-forwards are dense or have experts; neither have gates.

transformers limits the steps of a prompt to `time_step_min` and more, but not those of decoding.
NVIDIA's own code follows `time_step_limit` in both, and so does this file.
"""

from __future__ import annotations

from collections.abc import Collection

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._nemotron_h import (
    EXPERT_STACKS,
    EXPERTS,
    FEED_FORWARD_PARTS,
    LATENTS,
    MIXTURE,
    MLP_BIAS,
    MOE,
    expert_size,
    has_experts,
    head_width,
    layer_count,
    layers_of,
    layers_with_latents,
    single_branches,
)
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures._state_space import (
    FEED_FORWARD,
    STATE_SPACE,
    STEP_LIMITS,
    StateSpaceKeys,
    input_stacks,
    mixer_names,
)
from rdrr_converter.architectures.base import ArchitectureRule, Keys
from rdrr_converter.architectures.layers import FULL

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


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the types of the layers of Nemotron-H, for older and newer readers."""
    kinds = manifest.inference.layer_pattern.layer_types
    if kinds is None:
        kinds = (FULL,) * manifest.architecture.num_layers
    names, moe = TensorNames(manifest.tensors), manifest.moe_config
    kinds = tuple(
        kind if names.experts(layer) is None else EXPERTS for layer, kind in enumerate(kinds)
    )
    letters = {STATE_SPACE: "M", FULL: "*", FEED_FORWARD: "-", EXPERTS: "E"}
    words = {STATE_SPACE: "mamba", FULL: "attention", FEED_FORWARD: "mlp", EXPERTS: "moe"}
    lacking = ("hidden_act", "rope_theta")
    keys = {key: value for key, value in config.items() if key not in lacking}
    keys |= KEYS.exported(manifest) | {
        "hybrid_override_pattern": "".join(letters.get(kind, "?") for kind in kinds),
        "layers_block_type": [words.get(kind, kind) for kind in kinds],
        "mlp_hidden_act": manifest.inference.ffn.activation,
    }
    if moe is None:
        return keys
    return keys | {
        "moe_latent_size": moe.expert_latent_size,
        "moe_shared_expert_intermediate_size": moe.shared_expert_intermediate_size,
        "n_shared_experts": 1,
    }


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
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "n_group": 1,
        "n_groups": 8,
        "n_routed_experts": 8,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": layer_count,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.0,
        "ssm_state_size": 128,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 131072,
    },
    sizes=KEYS.sizes(),
    normalization={"rms_norm_eps": read.number("rms_norm_eps")},
    ffn={"activation": read.activation("mlp_hidden_act"), "gated_activation": False},
    experts=MOE,
    has_experts=has_experts,
    rope=no_rope,
    state_space=STEP_LIMITS,
    exported=exported,
    layer_types=single_branches,
    pattern={"single_branch": True},
    keys={"rms_norm_eps": "layer_norm_epsilon"},
    dimensions={**KEYS.dimensions(), "routed": expert_size},
    prefixes=("model.", "backbone.", ""),
    names={
        "model.embed_tokens": "model.embeddings",
        "model.norm": "model.norm_f",
        **tensors.layer_names(
            "model.layers.{layer}",
            {
                "input_layernorm": "norm",
                **{f"self_attn.{part}_proj": f"mixer.{part}_proj" for part in "qkvo"},
                **{f"mlp.{part}": f"mixer.{part}" for part in FEED_FORWARD_PARTS},
                **mixer_names("mixer"),
            },
        ),
    },
    stacks=(
        *input_stacks("model.layers.{layer}.mixer"),
        *EXPERT_STACKS,
    ),
    other_parts=(r"mtp\..*",),
    extra_layers="num_nextn_predict_layers",
    tensors=tensors.of_model(
        tensors.norm("input_layernorm"),
        *tensors.in_layers(layers_of(STATE_SPACE), *KEYS.tensors()),
        *tensors.in_layers(layers_of(FULL), *tensors.ATTENTION),
        *tensors.in_layers(
            layers_of(FEED_FORWARD),
            *tensors.UNGATED_FEED_FORWARD,
            *tensors.ungated_biases(MLP_BIAS),
        ),
        *tensors.in_layers(layers_of(EXPERTS), *MIXTURE),
        *tensors.in_layers(layers_with_latents, *LATENTS),
    ),
)
