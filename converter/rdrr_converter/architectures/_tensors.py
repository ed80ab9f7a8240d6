"""The tensors that most decoder-only transformers share, as rows for architecture files."""

from __future__ import annotations

from collections.abc import Callable

from rdrr_converter.architectures._base import TensorRule
from rdrr_converter.architectures._config import Config

EMBEDDING = TensorRule("model.embed_tokens.weight", "embedding", ("vocab", "hidden"))
FINAL_NORM = TensorRule("model.norm.weight", "norm", ("hidden",))
# Required or not is decided by what the checkpoint holds: see `rdrr_converter.reading`.
HEAD = TensorRule("lm_head.weight", "lm_head", ("vocab", "hidden"), required=False)


def norm(part: str, size: str = "hidden") -> TensorRule:
    """A norm's weight in each layer."""
    return TensorRule(f"model.layers.{{layer}}.{part}.weight", "norm", (size,))


def projection(part: str, outputs: str, inputs: str) -> TensorRule:
    """A matmul weight in each layer."""
    return TensorRule(f"model.layers.{{layer}}.{part}.weight", "matmul", (outputs, inputs))


def bias(part: str, size: str, required: bool | Callable[[Config], bool]) -> TensorRule:
    """A projection's bias in each layer."""
    return TensorRule(f"model.layers.{{layer}}.{part}.bias", "bias", (size,), required)


ATTENTION = (
    projection("self_attn.q_proj", "q", "hidden"),
    projection("self_attn.k_proj", "kv", "hidden"),
    projection("self_attn.v_proj", "kv", "hidden"),
    projection("self_attn.o_proj", "hidden", "q"),
)
QUERY_KEY_NORMS = (norm("self_attn.q_norm", "head"), norm("self_attn.k_norm", "head"))
FEED_FORWARD = (
    projection("mlp.gate_proj", "inner", "hidden"),
    projection("mlp.up_proj", "inner", "hidden"),
    projection("mlp.down_proj", "hidden", "inner"),
)
TWO_NORMS = (norm("input_layernorm"), norm("post_attention_layernorm"))
FOUR_NORMS = (
    *TWO_NORMS,
    norm("pre_feedforward_layernorm"),
    norm("post_feedforward_layernorm"),
)


def attention_biases(
    q: bool | Callable[[Config], bool],
    k: bool | Callable[[Config], bool],
    v: bool | Callable[[Config], bool],
    o: bool | Callable[[Config], bool],
) -> tuple[TensorRule, ...]:
    """Biases of the four projections, each with whether it is required."""
    return (
        bias("self_attn.q_proj", "q", q),
        bias("self_attn.k_proj", "kv", k),
        bias("self_attn.v_proj", "kv", v),
        bias("self_attn.o_proj", "hidden", o),
    )


def feed_forward_biases(required: bool | Callable[[Config], bool]) -> tuple[TensorRule, ...]:
    """Biases of gate, up and down."""
    return (
        bias("mlp.gate_proj", "inner", required),
        bias("mlp.up_proj", "inner", required),
        bias("mlp.down_proj", "hidden", required),
    )
