"""MiniMax M2: Mixtral's experts with sigmoid scores, and norms on queries and keys as a whole."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS, stated_as
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import ArchitectureRule, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import all_full

EXPERTS = tensors.expert_projections("block_sparse_moe.experts", "w1", "w3", "w2")
SELECTION_BIAS = TensorRule(
    "model.layers.{layer}.block_sparse_moe.e_score_correction_bias",
    "router",
    ("experts",),
    aliases=("model.layers.{layer}.mlp.e_score_correction_bias",),
)


def rotated_part(config: Config) -> float | None:
    """Return the part of each head that rope rotates if only `rotary_dim` states it."""
    if config.get("rotary_dim") is None:
        return None
    return config.integer("rotary_dim") / config.head_dim


def read_rotary_dim(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope`, where `rotary_dim` may say how much is rotated.

    Raises:
        SourceError: It contradicts `partial_rotary_factor`.
    """
    block = read_partial_rope(config)
    part, stated = block["partial_rotary_factor"] or 1.0, rotated_part(config)
    if stated not in (None, part):
        expected = f"{part} of a head of {config.head_dim}, as partial_rotary_factor states"
        raise config.fault("rotary_dim", expected, config.get("rotary_dim"))
    return block


def all_of_type_one(config: Config) -> tuple[str, ...]:
    """Rule: all layers have full attention, which is the type 1.

    Raises:
        SourceError: `attn_type_list` states another type.
    """
    types = config.get("attn_type_list")
    if types not in (None, [1] * config.layers):
        raise config.fault("attn_type_list", f"{config.layers} times 1", types)
    return all_full(config)


MINIMAX_M2 = ArchitectureRule(
    name="minimax_m2",
    classes=("MiniMaxM2ForCausalLM", "MiniMaxM2Model"),
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "max_position_embeddings": 196608,
        "num_attention_heads": 48,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 62,
        "num_key_value_heads": 8,
        "num_local_experts": 256,
        "partial_rotary_factor": rotated_part,
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000.0,
        "rotary_dim": None,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "vocab_size": 200064,
    },
    attention={"query_pre_attn_scalar": read.head_dim, "query_key_norm_spans_heads": True},
    experts={
        **MIXTURE_KEYS,
        "expert_intermediate_size": read.integer("intermediate_size"),
        "normalize_weights": True,
        "score_function": stated_as("scoring_func", "sigmoid", "sigmoid"),
    },
    rope=read_rotary_dim,
    layer_types=all_of_type_one,
    stacks=tensors.stacked_experts(*EXPERTS),
    stated_by_tensors=("use_qk_norm", "use_routing_bias"),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.QUERY_KEY_NORMS_OF_ALL_HEADS,
        tensors.router("block_sparse_moe.gate", aliases=("mlp.gate",)),
        SELECTION_BIAS,
        *EXPERTS,
    ),
)
