"""The preallocated key-value cache on the GPU.

One pair of buffers for each layer, [kv_heads, context, head_dim], head-major so that the keys of
one head are contiguous; in Q8_0 the codes of all elements, then all scales in the same order, an
f16 for each 32 elements. Nothing is ever moved or cleared: the number of valid slots is the step's
`base`, so rewinding costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_manifests.graph import Graph

from rdrr_runtime.buffers import Arena, BufferSlice
from rdrr_runtime.kernels._context import KvSpec


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer, each [kv_heads, context, head_dim]."""

    keys: BufferSlice
    values: BufferSlice


@dataclass(frozen=True)
class KvCache:
    """All layers.

    Attributes:
        spec: Sizes and type, alike for all layers.
        layers: One entry for each layer.
    """

    spec: KvSpec
    layers: tuple[LayerCache, ...]

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        return sum(layer.keys.size + layer.values.size for layer in self.layers)

    @staticmethod
    def allocate(
        arena: Arena, graph: Graph, context: int, dtype: str, sequences: int = 1
    ) -> KvCache:
        """Zeroed caches for `context` tokens of each of some sequences.

        Raises:
            UsageError: A type that does not suit the model.
        """
        spec = KvSpec.make(graph.kv_heads, graph.head_dim, context, dtype)
        spec = replace(spec, sequences=sequences)
        layers = tuple(
            LayerCache(
                arena.empty(f"keys.{layer}", spec.size),
                arena.empty(f"values.{layer}", spec.size),
            )
            for layer in range(graph.layers)
        )
        return KvCache(spec, layers)
