"""The sizes of each layer, where the blocks let them differ between layers."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.models.manifest import Manifest


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of one layer.

    Attributes:
        is_global: Whether the layer attends to all earlier tokens.
        heads: Query heads.
        kv_heads: Key-value heads.
        head_dim: Width of a head.
        inner: Width of the inner layer of the dense feed-forward.
        cache: Layer whose keys and values it reads: itself, or an earlier one; None if no earlier
            layer has any.
    """

    is_global: bool
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    cache: int | None

    @property
    def q(self) -> int:
        """Elements of the queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Elements of the keys of a token."""
        return self.kv_heads * self.head_dim


def is_global_layer(manifest: Manifest, layer: int) -> bool:
    """Return whether a layer attends to all earlier tokens.

    A pattern is respected without a sliding window too, since its local layers may have another
    rope base.
    """
    pattern = manifest.inference.layer_pattern
    if pattern.layer_types is not None:
        return pattern.layer_types[layer] == "full_attention"
    if pattern.type == "every_n" and pattern.period:
        return layer % pattern.period == (pattern.offset or 0)
    if pattern.type == "alternating":
        return layer % 2 == (0 if pattern.global_pattern == "even" else 1)
    attention = manifest.inference.attention
    return attention.sliding_window is None and attention.attention_chunk_size is None


def head_dim_of(manifest: Manifest, *, is_global: bool) -> int:
    """Return the head dimension of global layers, or of sliding-window layers."""
    sizes = manifest.architecture
    return (sizes.global_head_dim if is_global else None) or sizes.head_dim


def layer_sizes(manifest: Manifest) -> tuple[LayerSizes, ...]:
    """Return the sizes of every layer.

    The last `numKvSharedLayers` layers read the keys and values of the last layer of their type
    before them.
    """
    sizes, ffn = manifest.architecture, manifest.inference.ffn
    first_shared = sizes.num_layers - (sizes.num_kv_shared_layers or 0)
    owners: dict[bool, int] = {}
    layers = []
    for layer in range(sizes.num_layers):
        is_global = is_global_layer(manifest, layer)
        if layer < first_shared:
            owners[is_global] = layer
        owner = owners.get(is_global)
        is_wide = ffn.use_double_wide_mlp and owner != layer
        own_heads = sizes.num_global_key_value_heads if is_global else None
        layers.append(
            LayerSizes(
                is_global=is_global,
                heads=sizes.num_attention_heads,
                kv_heads=own_heads or sizes.num_key_value_heads,
                head_dim=head_dim_of(manifest, is_global=is_global),
                inner=sizes.intermediate_size * (2 if is_wide else 1),
                cache=owner,
            )
        )
    return tuple(layers)
