"""Append the attention of a layer: projections, norms and rotation of heads, and the output."""

from __future__ import annotations

from math import sqrt

from rdrr_manifests.graph.builder import GraphBuilder
from rdrr_manifests.graph.latent import (
    LatentSizes,
    latent_attention,
    latent_norm,
    latent_rope,
    latent_sizes,
)
from rdrr_manifests.graph.layer_sizes import LayerSizes
from rdrr_manifests.graph.ops import (
    Activation,
    Attention,
    GatedActivation,
    PositionScale,
    Rope,
    Slice,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.graph.rotary import rope_spec
from rdrr_manifests.models.inference import Attention as AttentionBlock


def append_attention(build: GraphBuilder, layer: int, hidden: str) -> str:
    """Append the attention of a layer with its projections; return its output."""
    latent = latent_sizes(build.manifest)
    if latent is not None:
        return _latent_attention(build, layer, hidden, latent)
    sizes, attention = build.layer_sizes[layer], build.blocks.attention
    q, k, v = _queries(build, layer, hidden), None, None
    # The other layers read what an earlier one has cached, so they have no keys and values.
    if sizes.cache == layer:
        k = _heads(build, layer, "k", hidden)
        v = _clipped(build, _values(build, layer, hidden, sizes), sizes.kv)
    assert sizes.cache is not None, "`check_supported` refuses such a layer"
    out = build.add(
        Attention(
            q=q,
            k=k,
            v=v,
            out=f"l{layer}.attn",
            layer=sizes.cache,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            scale=1.0 / sqrt(attention.query_pre_attn_scalar),
            window=None if sizes.is_global else _window(attention),
            softcap=attention.attn_logit_softcapping,
            sinks=_sinks(build, layer),
            chunk=None if sizes.is_global else attention.attention_chunk_size,
            causal=attention.causal,
            bias=_relative_bias(build),
            bias_distance=attention.relative_bias_distance or 0,
            alibi=attention.max_alibi_bias,
        )
    )
    if attention.attention_output_gate:
        gate = _gated_half(build, layer, "gate", sizes.head_dim)
        out = build.add(GatedActivation(gate, out, f"{out}.gated", "sigmoid", sizes.q))
    return build.linear(layer, "self_attn.o_proj", out, build.sizes.hidden_size, sizes.q)


def _queries(build: GraphBuilder, layer: int, hidden: str) -> str:
    """Append the queries of a layer, scaled by the position if it has such a scale."""
    return _position_scale(build, _heads(build, layer, "q", hidden), _is_rotated(build, layer))


def _heads(build: GraphBuilder, layer: int, kind: str, hidden: str) -> str:
    """Append the queries or keys of a layer: projection, norms, limit and rotation.

    Args:
        build: The graph under construction.
        layer: Index of the layer.
        kind: `q` or `k`.
        hidden: The normed residual stream.
    """
    sizes, attention = build.layer_sizes[layer], build.blocks.attention
    count, size = sizes.heads if kind == "q" else sizes.kv_heads, sizes.head_dim
    value = _projected(build, layer, kind, hidden, count * size)
    if not attention.query_key_norm_after_rope:
        value = _head_norm(build, layer, kind, value, count, size)
    value = _clipped(build, value, count * size)
    if _is_rotated(build, layer):
        value = _rotated(build, value, count, sizes.is_global)
    if attention.query_key_norm_after_rope:
        value = _head_norm(build, layer, kind, value, count, size)
    # Llama 4 normalizes the rotated heads only; its other layers scale queries by the position.
    if _is_rotated(build, layer) and attention.query_key_unit_norm:
        value = build.unit_norm(value, f"{value}.unit", count, size)
    return value


def _is_rotated(build: GraphBuilder, layer: int) -> bool:
    """Return whether a layer has rotary embeddings."""
    return layer not in (build.blocks.rope.unrotated_layers or ())


def _projected(build: GraphBuilder, layer: int, kind: str, hidden: str, width: int) -> str:
    """Append a projection of queries or keys; with an output gate, that of queries is wider."""
    part = f"self_attn.{kind}_proj"
    if kind != "q" or not build.blocks.attention.attention_output_gate:
        return build.linear(layer, part, hidden, width)
    build.linear(layer, part, hidden, 2 * width)
    return _gated_half(build, layer, "query", width // build.sizes.num_attention_heads)


def _gated_half(build: GraphBuilder, layer: int, half: str, width: int) -> str:
    """Append the queries, or the gates, of a projection to both, head by head."""
    whole, heads = f"l{layer}.q_proj", build.sizes.num_attention_heads
    first = 0 if half == "query" else width
    return build.add(Slice(whole, f"{whole}.{half}", heads, 2 * width, first, width))


def _values(build: GraphBuilder, layer: int, hidden: str, sizes: LayerSizes) -> str:
    """Append the values of a layer, which are its projected keys if it has no projection."""
    attention = build.blocks.attention
    shares = attention.value_norm and sizes.is_global
    has_projection = build.names.layer(layer, "self_attn.v_proj.weight") in build.names
    if shares and not has_projection:
        value = f"l{layer}.k_proj"
    else:
        value = build.linear(layer, "self_attn.v_proj", hidden, sizes.kv)
    if not attention.value_norm:
        return value
    return build.unit_norm(value, f"l{layer}.v_proj.norm", sizes.kv_heads, sizes.head_dim)


def _head_norm(
    build: GraphBuilder, layer: int, kind: str, value: str, heads: int, width: int
) -> str:
    """Append the norm of the queries or keys, if the layer has one."""
    stem = build.names.head_norm(layer, kind)
    attention = build.blocks.attention
    if not attention.query_key_norm and f"{stem}.weight" not in build.names:
        return value
    if attention.query_key_norm_spans_heads:
        return build.norm_of(stem, (heads * width,), value, f"{value}.norm")
    shape = (heads, width) if attention.query_key_norm_per_head else (width,)
    return build.norm_of(stem, shape, value, f"{value}.norm", heads)


def _clipped(build: GraphBuilder, value: str, width: int) -> str:
    """Append the limit on queries, keys or values, if there is one; return the output."""
    limit = build.blocks.attention.clip_qkv
    if limit is None:
        return value
    return build.add(Activation(value, f"{value}.clipped", "clip", width, limit=limit))


def _rotated(build: GraphBuilder, value: str, heads: int, is_global: bool) -> str:
    """Append the rotation of queries or keys."""
    table = build.rope_table(rope_spec(build.manifest, is_global=is_global))
    interleaved = build.blocks.rope.rope_interleaved
    return build.add(Rope(value, f"{value}.rope", heads, table, interleaved))


def _position_scale(build: GraphBuilder, value: str, is_rotated: bool) -> str:
    """Append the scale of the queries by the position, if the layer has one."""
    attention = build.blocks.attention
    scale, length = attention.temperature_scale, attention.temperature_length
    is_other_kind = attention.temperature_without_rope and is_rotated
    if scale is None or length is None or is_other_kind:
        return value
    # The models whose layers without rope have this scale count positions from 1 for it.
    offset = int(attention.temperature_without_rope)
    return build.add(PositionScale(value, f"{value}.scaled", scale, length, offset))


def _sinks(build: GraphBuilder, layer: int) -> WeightUse | None:
    """Return the logits that the softmax of each head includes, if there are any."""
    name = build.names.layer(layer, "self_attn.sinks")
    shape = (build.sizes.num_attention_heads,)
    return WeightUse(name, shape, WeightKind.VECTOR) if name in build.names else None


def _relative_bias(build: GraphBuilder) -> WeightUse | None:
    """Return the bias on the scores by distance, which all layers share, if there is one."""
    buckets = build.blocks.attention.relative_bias_buckets
    name = build.names.body("relative_attention_bias.weight")
    shape = (buckets or 0, build.sizes.num_attention_heads)
    return None if buckets is None else WeightUse(name, shape, WeightKind.VECTOR)


def _latent_attention(build: GraphBuilder, layer: int, hidden: str, latent: LatentSizes) -> str:
    """Append the attention of a layer that caches latents, without its norm."""
    heads, size = build.sizes.num_attention_heads, build.sizes.hidden_size
    width, part = heads * latent.query_dim, "self_attn.kv_a_proj_with_mqa"
    if latent.queries is None:
        q = build.linear(layer, "self_attn.q_proj", hidden, width)
        kv = build.linear(layer, part, hidden, latent.latent + latent.rope_dim)
    else:
        q = build.linear(layer, "self_attn.q_a_proj", hidden, latent.queries)
        kv = build.linear(layer, part, hidden, latent.latent + latent.rope_dim)
        stem, out = build.names.layer(layer, "self_attn.q_a_layernorm"), f"{q}.norm"
        build.add(latent_norm(build.manifest, stem, latent.queries, q, out))
        q = build.linear(layer, "self_attn.q_b_proj", out, width, latent.queries)
    table = build.rope_table(latent_rope(build.manifest, latent))
    out = build.add(latent_attention(build.manifest, build.names, layer, q, kv, table))
    return build.linear(layer, "self_attn.o_proj", out, size, heads * latent.value_dim)


def _window(attention: AttentionBlock) -> int | None:
    """Return the window of local layers; half of it lies on each side of a token if not causal."""
    size = attention.sliding_window
    # The graph's window counts the token itself, hence one more than the half.
    return size if size is None or attention.causal else size // 2 + 1
