"""Falcon-H1: attention and a state space beside each other in every layer, with many factors.

The factors on what a projection reads are applied to what it computes, which is the same where it
has no bias. The two factors on the attention's input and keys become one on its scores, and one on
its output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import sqrt

from rdrr_manifests.models import Manifest
from rdrr_manifests.models.state_space import StateSpace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._state_space import STEP_LIMITS, StateSpaceKeys, input_stacks
from rdrr_converter.architectures.base import ArchitectureRule, Keys
from rdrr_converter.architectures.config import Config

KEYS = StateSpaceKeys(width="mamba_d_ssm")
WITH_ATTENTION = "attention_and_state_space"
GATED_NORM = read.flag("mamba_rms_norm")


def attention_and_state_space(config: Config) -> tuple[str, ...]:
    """Rule: every layer has both."""
    return (WITH_ATTENTION,) * config.layers


def factors(config: Config, key: str, count: int) -> tuple[float, ...]:
    """Return a list of factors; all are 1 if it is absent or null.

    Raises:
        SourceError: It has another length, or one of them is not a number.
    """
    stated = config.get(key)
    if stated is None:
        return (1.0,) * count
    numbers = isinstance(stated, list) and all(type(number) in (int, float) for number in stated)
    if not numbers or len(stated) != count:
        raise config.fault(key, f"{count} numbers", stated)
    return tuple(map(float, stated))


def factor(config: Config, key: str) -> float:
    """Return a factor; 1 if it is null."""
    return 1.0 if config.get(key) is None else config.number(key)


def _input_factor(config: Config, key: str, bias: str) -> float:
    """Return the factor on the input of projections.

    Raises:
        SourceError: They have biases, to which the factor would not apply.
    """
    number = factor(config, key)
    if number != 1.0 and config.flag(bias):
        raise config.fault(key, f"1, because {bias} is true", number)
    return number


def attention_input(config: Config) -> float:
    """Return the factor on the input of the attention."""
    return _input_factor(config, "attention_in_multiplier", "attention_bias")


def query_scalar(config: Config) -> float:
    """Rule: the number by whose root scores are divided, with the factors on queries and keys."""
    scale = attention_input(config) ** 2 * factor(config, "key_multiplier")
    return config.head_dim / scale**2


def projected(*indices: int) -> Callable[[Config], tuple[float, ...]]:
    """Rule: factors on parts of what the first projection of the state space computes.

    Args:
        indices: Indices of the parts: the gate, x, B, C and the steps.
    """

    def rule(config: Config) -> tuple[float, ...]:
        whole = _input_factor(config, "ssm_in_multiplier", "mamba_proj_bias")
        multipliers = factors(config, "ssm_multipliers", 5)
        return tuple(whole * multipliers[index] for index in indices)

    return rule


def input_factors(config: Config) -> tuple[float, ...] | None:
    """Rule: the factors on x, B and C; None if all are 1."""
    multipliers = projected(1, 2, 3)(config)
    return None if set(multipliers) == {1.0} else multipliers


def feed_forward_factor(index: int) -> Callable[[Config], float]:
    """Rule: the factor on the gate (0) or on the output (1) of the feed-forward."""
    return lambda config: factors(config, "mlp_multipliers", 2)[index]


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the factors of Falcon-H1; those on inputs are part of the others."""
    sizes, blocks = manifest.architecture, manifest.inference
    block, output = blocks.state_space or StateSpace(), blocks.output
    inputs = block.input_multipliers or (1.0, 1.0, 1.0)
    heads, dim = sizes.ssm_num_heads or 0, sizes.ssm_head_dim or 0
    return (
        config
        | KEYS.exported(manifest)
        | {
            "attention_out_multiplier": block.attention_multiplier,
            "embedding_multiplier": output.embedding_scale or 1.0,
            "key_multiplier": sqrt(sizes.head_dim / blocks.attention.query_pre_attn_scalar),
            "lm_head_multiplier": output.logit_input_scale,
            "mamba_d_ssm": heads * dim,
            "mamba_norm_before_gate": block.norm_before_gate,
            "mlp_multipliers": [blocks.ffn.gate_multiplier, blocks.ffn.output_multiplier],
            "query_pre_attn_scalar": None,
            "ssm_multipliers": [block.gate_multiplier, *inputs, block.step_multiplier],
            "ssm_out_multiplier": block.output_multiplier,
        }
    )


FALCON_H1 = ArchitectureRule(
    name="falcon_h1",
    classes=("FalconH1ForCausalLM", "FalconH1Model"),
    defaults={
        "attention_bias": False,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "key_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": "auto",
        "mamba_d_ssm": 1024,
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "mamba_norm_before_gate": True,
        "mamba_proj_bias": False,
        "mamba_rms_norm": False,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "projectors_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
        "tie_word_embeddings": False,
        "vocab_size": 128000,
    },
    sizes=KEYS.sizes(),
    attention={"query_pre_attn_scalar": query_scalar},
    ffn={
        "activation": read.activation("hidden_act"),
        "gate_multiplier": feed_forward_factor(0),
        "output_multiplier": feed_forward_factor(1),
    },
    output={
        "scale_embeddings": True,
        "embedding_scale": lambda config: factor(config, "embedding_multiplier"),
        "logit_input_scale": lambda config: factor(config, "lm_head_multiplier"),
    },
    state_space={
        **STEP_LIMITS,
        "gated_norm": GATED_NORM,
        "norm_before_gate": read.flag("mamba_norm_before_gate"),
        "gate_multiplier": lambda config: projected(0)(config)[0],
        "input_multipliers": input_factors,
        "step_multiplier": lambda config: projected(4)(config)[0],
        "output_multiplier": lambda config: factor(config, "ssm_out_multiplier"),
        "attention_multiplier": lambda config: (
            attention_input(config) * factor(config, "attention_out_multiplier")
        ),
    },
    exported=exported,
    layer_types=attention_and_state_space,
    dimensions=KEYS.dimensions(),
    names={
        "model.norm": "model.final_layernorm",
        **tensors.layer_names(
            "model.layers.{layer}",
            {
                "post_attention_layernorm": "pre_ff_layernorm",
                "mlp.gate_proj": "feed_forward.gate_proj",
                "mlp.up_proj": "feed_forward.up_proj",
                "mlp.down_proj": "feed_forward.down_proj",
            },
        ),
    },
    stacks=input_stacks(),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *KEYS.tensors(gated_norm=GATED_NORM, out_bias="projectors_bias"),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(read.flag("mlp_bias")),
    ),
)
