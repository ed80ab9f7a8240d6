"""Find the norms of a layer, whose names depend on who wrote the checkpoint.

The same name can mean two norms: `post_attention_layernorm` is the norm before the feed-forward for
Llama, and the norm on the attention's output for Gemma and OLMo 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.models.inference import Normalization


@dataclass(frozen=True)
class LayerNorms:
    """The norms of a layer by their names without `.weight`; None where the layer has none.

    Attributes:
        attention: Norm of what the attention reads.
        attention_output: Norm of what the attention adds to the residual stream.
        feed_forward: Norm of what the feed-forward reads.
        feed_forward_output: Norm of what the feed-forward adds to the residual stream.
    """

    attention: str | None
    attention_output: str | None
    feed_forward: str | None
    feed_forward_output: str | None


_GLM4 = LayerNorms(
    "input_layernorm",
    "post_self_attn_layernorm",
    "post_attention_layernorm",
    "post_mlp_layernorm",
)
_APERTUS = LayerNorms("attention_layernorm", None, "feedforward_layernorm", None)


def layer_norms(block: Normalization, names: TensorNames, layer: int) -> LayerNorms:
    """Return the norms of a layer.

    The tensors decide between the conventions; the block decides where a name has two meanings.
    """

    def has(part: str) -> bool:
        return names.layer(layer, f"{part}.weight") in names

    if has("post_self_attn_layernorm"):
        return _GLM4
    if has("attention_layernorm"):
        return _APERTUS
    after = "post_feedforward_layernorm" if block.post_feedforward_norm else None
    if block.pre_feedforward_norm:
        output = "post_attention_layernorm" if block.post_attention_norm else None
        return LayerNorms("input_layernorm", output, "pre_feedforward_layernorm", after)
    if after is not None and not has("input_layernorm"):
        return LayerNorms(None, "post_attention_layernorm", None, after)
    # The first layer reads the embedding, which ModernBERT has normed already.
    if layer == 0 and names.body("embed_norm.weight") in names and not has("input_layernorm"):
        return LayerNorms(None, None, "post_attention_layernorm", after)
    return LayerNorms("input_layernorm", None, "post_attention_layernorm", after)
