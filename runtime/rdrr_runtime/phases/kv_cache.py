"""The preallocated key-value cache on the GPU.

One pair of buffers for each layer, [sequences, kv_heads, context, head_dim], head-major so that the
keys of one head are contiguous; in Q8_0 the codes of all elements, then all scales in the same
order, an f16 for each 32 elements. Nothing is ever moved or cleared: a row attends to the slots up
to its own, so rewinding costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.paper import PaperArena
from rdrr_format.errors import DeviceError, FormatError, UsageError
from rdrr_manifests.graph import Graph

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Record, choice

U8 = npt.NDArray[np.uint8]


MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class KvType:
    """How a cache stores its elements.

    Attributes:
        block: Elements that share a scale; 1 where there is none.
        block_bytes: Bytes of a block, the scale included.
        tile_bytes: Bytes of an element in the workgroup memory of the tiled kernels.
    """

    block: int
    block_bytes: int
    tile_bytes: int


KV_TYPES: Mapping[str, KvType] = MappingProxyType(
    {"f32": KvType(1, 4, 4), "f16": KvType(1, 2, 2), "q8_0": KvType(32, 34, 4)}
)


@dataclass(frozen=True)
class KvConstants:
    """Override constants of snippets/kv.wgsl.

    Attributes:
        kv_heads: Key-value heads.
        head_dim: Elements of a head.
        context: Slots of a sequence.
        scales_at: First word of the scales; None for a cache without scales.
    """

    kv_heads: int
    head_dim: int
    context: int
    scales_at: int | None


@dataclass(frozen=True, kw_only=True)
class CacheRecord(Record):
    """Parameters of phases that bind caches, through snippets/kv.wgsl.

    Attributes:
        kv: Type of the caches.
        value: Type of activations.
        cache: Sizes of the caches.
    """

    kv: str = choice()
    value: str = choice()
    cache: KvConstants


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer, two buffers [sequences, kv_heads, context, head_dim]."""

    keys: BufferSlice
    values: BufferSlice

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Both by the names under which shaders declare them."""
        return {"k_cache": self.keys, "v_cache": self.values}


@dataclass(frozen=True)
class KvSpec:
    """Sizes and type of a layer's two caches, each [sequences, kv_heads, context, head_dim].

    A cache of blocks holds the codes of all elements, then the scales in the same order.

    Attributes:
        kv_heads: Key-value heads.
        head_dim: Elements of a head, a multiple of 4 up to 256, and of whole blocks.
        context: Slots of a sequence.
        dtype: A key of `KV_TYPES`.
        sequences: Sequences, each with slots of its own.
    """

    kv_heads: int
    head_dim: int
    context: int
    dtype: str = "f16"
    sequences: int = 1

    def reach(self, window: int) -> int:
        """Most keys that a row attends to; `window` is 0 for all."""
        return min(window or self.context, self.context)

    def shape(self, heads: int, window: int) -> str:
        """Query heads, cache and keys, for tuning keys."""
        heads_of = f"{heads}/{self.kv_heads}x{self.head_dim}"
        return f"{self.dtype} {heads_of}, {self.reach(window)} keys"

    @staticmethod
    def make(kv_heads: int, head_dim: int, context: int, dtype: str) -> KvSpec:
        """Caches of at least `context` slots.

        Raises:
            UsageError: An unknown type, or a head dimension that is not a multiple of its block.
        """
        if dtype not in KV_TYPES:
            raise UsageError("unknown KV dtype", expected=" or ".join(KV_TYPES), found=dtype)
        kind = KV_TYPES[dtype]
        if head_dim % kind.block:
            raise UsageError(
                f"this model cannot have a cache in {dtype}",
                expected=f"a head size that is a multiple of {kind.block}",
                found=head_dim,
                hint="use `kv_dtype` f16",
            )
        if kind.block > 1:
            context += context % 2  # two scales share a word, which two heads must not
        return KvSpec(kv_heads, head_dim, context, dtype)

    @property
    def has_batches(self) -> bool:
        """Whether rows of several sequences can be stored and read in one pass."""
        return KV_TYPES[self.dtype].block == 1

    @property
    def elements(self) -> int:
        """Elements of one cache."""
        return self.sequences * self.kv_heads * self.context * self.head_dim

    @property
    def size(self) -> int:
        """Bytes of one cache."""
        kind = KV_TYPES[self.dtype]
        return self.elements // kind.block * kind.block_bytes

    def parameters(self, ctx: OpContext) -> dict[str, Any]:
        """Return the fields of a `CacheRecord`."""
        scales_at = None if self.has_batches else self.elements // 4
        constants = KvConstants(self.kv_heads, self.head_dim, self.context, scales_at)
        return {"kv": self.dtype, "value": ctx.values, "cache": constants}

    def check(self, label: str, held: LayerCache) -> None:
        """Guard of the caches.

        Raises:
            FormatError: A head size or type that no kernel serves, or too small a buffer.
        """
        need_multiple(f"{label}: head size", self.head_dim, 4)
        if self.head_dim > MAX_HEAD_DIM:
            raise FormatError(
                "head size is too large for the kernel",
                where=label,
                expected=f"at most {MAX_HEAD_DIM}",
                found=self.head_dim,
            )
        if self.dtype not in KV_TYPES:
            raise FormatError("unknown cache type", expected=list(KV_TYPES), found=self.dtype)
        need_multiple(f"{label}: head size", self.head_dim, KV_TYPES[self.dtype].block)
        for cache in held.buffers.values():
            need_floats(f"{label}: cache", cache, self.size // 4)


@dataclass(frozen=True)
class _Plane:
    """Elements or scales of a buffer: where they begin, and the bytes of a slot of a head."""

    suffix: str
    first: int
    slot_bytes: int

    def at(self, spec: KvSpec, head: int) -> int:
        """First byte of a head."""
        return self.first + head * spec.context * self.slot_bytes


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

    def read(self, device: Device, slots: int) -> dict[str, U8]:
        """The first slots, see `StoringBackend.read_cache`."""
        return {
            name: self._head_parts(device, buffer, plane, slots)
            for name, buffer, plane in self._planes()
        }

    def write(self, device: Device, parts: Mapping[str, U8], slots: int) -> None:
        """Put back what `read` gave.

        Raises:
            FormatError: Names or shapes of another model.
        """
        planes = list(self._planes())
        shapes = {
            name: (self.spec.kv_heads, self._whole(slots), plane.slot_bytes)
            for name, _, plane in planes
        }
        if shapes != {name: part.shape for name, part in parts.items()}:
            raise FormatError("a saved cache of another model", expected=f"{len(shapes)} parts")
        for name, buffer, plane in planes:
            for head, part in enumerate(parts[name]):
                device.write(buffer, np.ascontiguousarray(part), plane.at(self.spec, head))

    def _planes(self) -> Iterator[tuple[str, BufferSlice, _Plane]]:
        kind = KV_TYPES[self.spec.dtype]
        scales = 2 if kind.block > 1 else 0
        element = (kind.block_bytes - scales) // kind.block
        planes = [_Plane("", 0, element * self.spec.head_dim)]
        if scales:
            per_slot = scales * self.spec.head_dim // kind.block
            planes.append(_Plane(".scales", element * self.spec.elements, per_slot))
        for index, layer in enumerate(self.layers):
            for name, buffer in (("keys", layer.keys), ("values", layer.values)):
                for plane in planes:
                    yield f"{name}.{index}{plane.suffix}", buffer, plane

    def _head_parts(self, device: Device, buffer: BufferSlice, plane: _Plane, slots: int) -> U8:
        whole = self._whole(slots)
        size = whole * plane.slot_bytes
        heads = range(self.spec.kv_heads)
        parts = [device.read(buffer, plane.at(self.spec, head), size) for head in heads]
        shape = (len(heads), whole, plane.slot_bytes)
        return np.stack(parts).reshape(shape) if size else np.empty(shape, np.uint8)

    def _whole(self, slots: int) -> int:
        """Slots whose scales fill whole words."""
        return slots + slots % 2 if KV_TYPES[self.spec.dtype].block > 1 else slots

    @staticmethod
    def allocate(
        arena: Arena, graph: Graph, context: int, dtype: str, sequences: int = 1
    ) -> KvCache:
        """Zeroed caches for `context` tokens of each of some sequences.

        Raises:
            UsageError: A type that the model cannot have.
            DeviceError: The keys of a layer are more than the device can bind, or than it has.
        """
        spec = KvSpec.make(graph.kv_heads, graph.head_dim, context, dtype)
        spec = replace(spec, sequences=sequences)
        if spec.size > arena.max_binding and not isinstance(arena, PaperArena):
            raise DeviceError(
                "the keys of a layer are larger than the adapter can bind",
                expected=f"at most {arena.max_binding} bytes",
                found=f"{spec.size} bytes for a context of {context}",
                hint="use a smaller `context`, `kv_dtype` q8_0, or a smaller batch",
            )
        layers = tuple(
            LayerCache(
                arena.empty(f"keys.{layer}", spec.size),
                arena.empty(f"values.{layer}", spec.size),
            )
            for layer in range(graph.layers)
        )
        return KvCache(spec, layers)
