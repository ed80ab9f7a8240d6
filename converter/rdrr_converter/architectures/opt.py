"""OPT: LayerNorm, learned positions from row 2 on, and ReLU.

OPT-350M differs from the other sizes: its embedding is narrower than the residual stream, and a
layer's norms read the sums of the stream and a branch.
"""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures.base import ArchitectureRule, TensorRule
from rdrr_converter.architectures.config import Config

OFFSET = 2
BIAS = read.flag("enable_bias")


def _embedding_size(config: Config) -> int:
    """Rule: width of the embedding, which is projected to the hidden size if it differs."""
    key = "word_embed_proj_dim"
    return config.integer("hidden_size" if config.get(key) is None else key)


def _has_projections(config: Config) -> bool:
    """Rule: whether there are projections after the embedding and before the head."""
    return _embedding_size(config) != config.integer("hidden_size")


def _projected_size(config: Config) -> int | None:
    """Rule: width of an embedding that is projected; None if the embedding is not."""
    return _embedding_size(config) if _has_projections(config) else None


def _has_final_norm(config: Config) -> bool:
    """Rule: whether there is a norm after the last layer, as without norms of sums."""
    is_removed = config.flag("_remove_final_layer_norm")
    return config.flag("do_layer_norm_before") and not is_removed


OPT = ArchitectureRule(
    name="opt",
    classes=("OPTForCausalLM", "OPTModel"),
    defaults={
        "_remove_final_layer_norm": False,
        "do_layer_norm_before": True,
        "enable_bias": True,
        "hidden_act": "relu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "tie_word_embeddings": True,
        "vocab_size": 50272,
        "word_embed_proj_dim": None,
    },
    normalization={
        "rms_norm_eps": 1e-5,
        "post_attention_norm": True,
        "layer_norm": True,
        "norm_after_residual": read.negated("do_layer_norm_before"),
        "final_norm": _has_final_norm,
    },
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    output={"position_embedding_offset": OFFSET, "embedding_size": _projected_size},
    rope=no_rope,
    body="model.decoder.",
    prefixes=("model.decoder.", "decoder."),
    keys={
        "hidden_act": "activation_function",
        "intermediate_size": "ffn_dim",
        "num_key_value_heads": "num_attention_heads",
    },
    dimensions={
        "embedding": _embedding_size,
        "positions": lambda config: config.integer("max_position_embeddings") + OFFSET,
    },
    names={
        "model.embed_tokens": "model.decoder.embed_tokens",
        "model.embed_positions": "model.decoder.embed_positions",
        "model.norm": "model.decoder.final_layer_norm",
        "model.project_in": "model.decoder.project_in",
        "model.project_out": "model.decoder.project_out",
        **tensors.layer_names(
            "model.decoder.layers.{layer}",
            {
                "input_layernorm": "self_attn_layer_norm",
                "post_attention_layernorm": "final_layer_norm",
                "self_attn.q_proj": "self_attn.q_proj",
                "self_attn.k_proj": "self_attn.k_proj",
                "self_attn.v_proj": "self_attn.v_proj",
                "self_attn.o_proj": "self_attn.out_proj",
                "mlp.up_proj": "fc1",
                "mlp.down_proj": "fc2",
            },
        ),
    },
    tensors=(
        replace(tensors.EMBEDDING, shape=("vocab", "embedding")),
        TensorRule("model.project_in.weight", "matmul", ("hidden", "embedding"), _has_projections),
        tensors.POSITIONS,
        *tensors.TWO_BIASED_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(BIAS),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(BIAS),
        replace(tensors.FINAL_NORM, required=_has_final_norm),
        replace(tensors.FINAL_NORM_BIAS, required=_has_final_norm),
        TensorRule("model.project_out.weight", "matmul", ("embedding", "hidden"), _has_projections),
        replace(tensors.HEAD, shape=("vocab", "embedding")),
    ),
)
