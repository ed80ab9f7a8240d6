"""The preallocated key-value cache on the GPU.

Each layer that adds keys has two buffers of shape [sequences, kv_heads, context, head_dim],
head-major so that the keys of one head are contiguous; later layers may read them too. Layers may
differ in their heads. A Q8_0 cache stores the codes of all elements first and then, in the same
order, one f16 scale for each 32 elements. Slots are never moved or cleared: a row attends to the
slots up to its own, so rewinding a sequence costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice, align
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_format.errors import DeviceError, FormatError, UsageError
from rdrr_manifests.graph import CacheShape, Graph

from rdrr_runtime.phases.cache.state_cache import StateCache, is_state
from rdrr_runtime.phases.cache.state_positions import COPIES
from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Record, choice

U8 = npt.NDArray[np.uint8]
MAX_HEAD_DIM = 512


@dataclass(frozen=True)
class KvType:
    """How a cache stores its elements.

    Attributes:
        block: Elements that share a scale; 1 for a type without scales.
        block_bytes: Bytes of a block, its scale included.
        tile_bytes: Bytes of an element in the workgroup memory of the tiled attention kernels.
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
        scales_at: Offset of the keys' scales in 32-bit words; None for a cache without scales.
        second_scales_at: Offset of the scales of the values, likewise.
    """

    kv_heads: int
    head_dim: int
    context: int
    scales_at: int | None
    second_scales_at: int | None


@dataclass(frozen=True, kw_only=True)
class CacheRecord(Record):
    """Parameters of phases that bind the caches through snippets/kv.wgsl.

    Attributes:
        kv: Type of the caches, a key of `KV_TYPES`.
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
        """Both buffers by the names under which shaders declare them."""
        return {"k_cache": self.keys, "v_cache": self.values}


@dataclass(frozen=True)
class KvSpec:
    """Sizes and type of a layer's two caches, each [sequences, kv_heads, context, head_dim].

    A quantized cache holds the codes of all elements, then the scales in the same order.

    Attributes:
        kv_heads: Key-value heads.
        head_dim: Head dimension, at most `MAX_HEAD_DIM` and a multiple of 4 and of the block size.
        context: Slots of a sequence.
        dtype: Storage type, a key of `KV_TYPES`.
        sequences: Number of sequences, each with its own slots.
        second_dim: Head dimension of the second cache; None if it is that of the first.
    """

    kv_heads: int
    head_dim: int
    context: int
    dtype: str = "f16"
    sequences: int = 1
    second_dim: int | None = None

    @property
    def parts(self) -> tuple[KvSpec, KvSpec]:
        """The specifications of the first and of the second cache, each as if it were both."""
        first = replace(self, second_dim=None)
        return first, first if self.second_dim is None else replace(first, head_dim=self.second_dim)

    def max_keys(self, window: int) -> int:
        """Return the most keys that a row attends to; a `window` of 0 means no sliding window."""
        return min(window or self.context, self.context)

    def shape(self, heads: int, window: int) -> str:
        """Return cache type, heads and number of keys as they appear in tuning keys."""
        heads_of = f"{heads}/{self.kv_heads}x{self.head_dim}"
        return f"{self.dtype} {heads_of}, {self.max_keys(window)} keys"

    @staticmethod
    def make(shape: CacheShape, context: int, dtype: str, sequences: int = 1) -> KvSpec:
        """Return the specification of caches with at least `context` slots.

        Raises:
            UsageError: The type is unknown, or the head dimension is not a multiple of its block
                size.
        """
        if dtype not in KV_TYPES:
            raise UsageError("unknown KV dtype", expected=" or ".join(KV_TYPES), found=dtype)
        kind = KV_TYPES[dtype]
        if kind.block > 1 and not shape.holds_blocks(kind.block):
            step = kind.block if shape.second_dim is None else 2 * kind.block
            raise UsageError(
                f"the key-value cache of this model cannot be stored as {dtype}",
                expected=f"a head dimension that is a multiple of {step}",
                found=shape.head_dim if shape.second_dim is None else shape.widths,
                hint="use `kv_dtype` f16",
            )
        if kind.block > 1:
            # Two scales share a word; an even number of slots keeps two heads from sharing one.
            context += context % 2
        return KvSpec(shape.kv_heads, shape.head_dim, context, dtype, sequences, shape.second_dim)

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
        has_scales = KV_TYPES[self.dtype].block > 1
        first, second = (part.elements // 4 if has_scales else None for part in self.parts)
        constants = KvConstants(self.kv_heads, self.head_dim, self.context, first, second)
        return {"kv": self.dtype, "value": ctx.values, "cache": constants}

    def check(self, label: str, caches: LayerCache) -> None:
        """Check the specification, and that the buffers of a layer are large enough for it.

        Raises:
            FormatError: No kernel supports the head dimension or the type, or a buffer is too
                small.
        """
        need_multiple(f"{label}: head dimension", self.head_dim, 4)
        if self.head_dim > MAX_HEAD_DIM:
            raise FormatError(
                "the head dimension is too large for the kernel",
                where=label,
                expected=f"at most {MAX_HEAD_DIM}",
                found=self.head_dim,
            )
        if self.dtype not in KV_TYPES:
            raise FormatError("unknown KV cache type", expected=list(KV_TYPES), found=self.dtype)
        need_multiple(f"{label}: head dimension", self.head_dim, KV_TYPES[self.dtype].block)
        for cache in caches.buffers.values():
            need_floats(f"{label}: cache", cache, self.size // 4)


@dataclass(frozen=True)
class _Plane:
    """The elements or the scales within a cache buffer.

    Attributes:
        suffix: Suffix of the plane's name in saved caches.
        first: Byte offset of the plane in the buffer.
        slot_bytes: Bytes of one slot of one head.
    """

    suffix: str
    first: int
    slot_bytes: int

    def at(self, spec: KvSpec, head: int) -> int:
        """Return the byte offset of a head."""
        return self.first + head * spec.context * self.slot_bytes


@dataclass(frozen=True)
class KvCache:
    """The caches of all layers that have one.

    Attributes:
        context: Slots of a sequence, as asked for.
        dtype: Storage type, a key of `KV_TYPES`.
        specs: Sizes and type of each layer's caches, by layer.
        layers: The buffers, by layer.
        states: The recurrent states of the sequences.
    """

    context: int
    dtype: str
    specs: Mapping[int, KvSpec]
    layers: Mapping[int, LayerCache]
    states: StateCache = field(default_factory=StateCache)

    @property
    def supports_batches(self) -> bool:
        """Whether rows of several sequences can be stored and read in one pass."""
        return KV_TYPES[self.dtype].block == 1

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        caches = sum(layer.keys.size + layer.values.size for layer in set(self.layers.values()))
        return caches + self.states.size

    def of_sequence(self, sequence: int) -> list[BufferSlice]:
        """Return the memory of a sequence in all layers, without its states."""
        return [
            buffer.range(sequence * part.size // part.sequences, part.size // part.sequences)
            for layer, spec in self.specs.items()
            for part, buffer in zip(
                spec.parts, (self.layers[layer].keys, self.layers[layer].values), strict=True
            )
        ]

    def read(self, device: Device, slots: int, copy: int | None = None) -> dict[str, U8]:
        """Read the first `slots` slots of every layer, and the states after them.

        Args:
            device: The device.
            slots: Number of slots.
            copy: Which copy of the states to read; None for the states themselves.
        """
        states = self.states if copy is None else self.states.copies[copy]
        caches = {
            name: self._head_parts(device, spec, buffer, plane, slots)
            for name, spec, buffer, plane in self._planes()
        }
        return {**caches, **states.read(device)}

    def write(self, device: Device, parts: Mapping[str, U8], slots: int) -> None:
        """Restore slots that `read` returned.

        Raises:
            FormatError: The names or shapes are those of another model.
        """
        held = {name: part for name, part in parts.items() if is_state(name)}
        self.states.write(device, held)
        parts = {name: part for name, part in parts.items() if name not in held}
        planes = list(self._planes())
        shapes = {
            name: (spec.kv_heads, self._whole(slots), plane.slot_bytes)
            for name, spec, _, plane in planes
        }
        if shapes != {name: part.shape for name, part in parts.items()}:
            raise FormatError(
                "the saved cache belongs to another model", expected=f"{len(shapes)} parts"
            )
        for name, spec, buffer, plane in planes:
            for head, part in enumerate(parts[name]):
                device.write(buffer, np.ascontiguousarray(part), plane.at(spec, head))

    def halves(
        self, device: Device, slots: int, sequence: int = 0
    ) -> Iterator[tuple[str, int, npt.NDArray[np.uint16]]]:
        """Yield the f16 bits of a sequence's first slots, where the cache holds numbers in f16.

        These are the elements, or the scales of a quantized cache.

        Yields:
            `keys` or `values`, the layer, and the bits.
        """
        for name, spec, buffer, plane in self._planes():
            if plane.suffix or KV_TYPES[self.dtype].block == 1:
                kind, layer, *_ = name.split(".")
                part = self._head_parts(device, spec, buffer, plane, slots, sequence)
                yield kind, int(layer), part.view(np.uint16)

    def _planes(self) -> Iterator[tuple[str, KvSpec, BufferSlice, _Plane]]:
        kind = KV_TYPES[self.dtype]
        scales = 2 if kind.block > 1 else 0
        element = (kind.block_bytes - scales) // kind.block
        for index, layer in self.layers.items():
            first, second = self.specs[index].parts
            for name, spec, buffer in (
                ("keys", first, layer.keys),
                ("values", second, layer.values),
            ):
                planes = [_Plane("", 0, element * spec.head_dim)]
                if scales:
                    per_slot = scales * spec.head_dim // kind.block
                    planes.append(_Plane(".scales", element * spec.elements, per_slot))
                for plane in planes:
                    yield f"{name}.{index}{plane.suffix}", spec, buffer, plane

    def _head_parts(
        self,
        device: Device,
        spec: KvSpec,
        buffer: BufferSlice,
        plane: _Plane,
        slots: int,
        sequence: int = 0,
    ) -> U8:
        whole = self._whole(slots)
        size = whole * plane.slot_bytes
        heads = range(sequence * spec.kv_heads, (sequence + 1) * spec.kv_heads)
        parts = [device.read(buffer, plane.at(spec, head), size) for head in heads]
        shape = (len(heads), whole, plane.slot_bytes)
        return np.stack(parts).reshape(shape) if size else np.empty(shape, np.uint8)

    def _whole(self, slots: int) -> int:
        """Return `slots` rounded up so that their scales fill whole words."""
        return slots + slots % 2 if KV_TYPES[self.dtype].block > 1 else slots

    @staticmethod
    def allocate(
        arena: Arena, graph: Graph, context: int, dtype: str, sequences: int = 1
    ) -> KvCache:
        """Allocate zeroed caches with `context` slots for each of `sequences` sequences.

        Raises:
            UsageError: The model's cache cannot be stored as `dtype`.
            DeviceError: The keys of a layer exceed what the device can bind or allocate.
        """
        specs = KvCache.plan(graph, context, dtype, sequences)
        largest = max((part.size for spec in specs.values() for part in spec.parts), default=0)
        if largest > arena.max_binding and not isinstance(arena, DryRunArena):
            raise DeviceError(
                "the keys of a layer are larger than the adapter can bind",
                expected=f"at most {arena.max_binding} bytes",
                found=f"{largest} bytes for a context of {context}",
                hint="use a smaller `context`, `kv_dtype` q8_0, or a smaller batch",
            )
        # Pools, so that a kernel can reach the caches of all layers through few bindings.
        # Attention that is not causal reads what the same layer of the same pass has stored.
        first_of = {spec: layer for layer, spec in reversed(specs.items())}
        holders = {layer: layer if graph.is_causal else first_of[specs[layer]] for layer in specs}
        held = {layer: specs[layer] for layer in dict.fromkeys(holders.values())}
        sizes = [[align(part.size) for part in spec.parts] for spec in held.values()]
        keys = arena.pool("keys", sum(first for first, _ in sizes))
        values = arena.pool("values", sum(second for _, second in sizes))
        caches = {
            layer: LayerCache(
                keys.empty(f"keys.{layer}", first.size),
                values.empty(f"values.{layer}", second.size),
            )
            for layer, (first, second) in ((layer, spec.parts) for layer, spec in held.items())
        }
        layers = {layer: caches[holder] for layer, holder in holders.items()}
        states = StateCache.allocate(arena, graph.states, sequences, COPIES)
        return KvCache(context, dtype, specs, layers, states)

    @staticmethod
    def plan(graph: Graph, context: int, dtype: str, sequences: int = 1) -> dict[int, KvSpec]:
        """Return the sizes and type of each layer's caches, without allocating them.

        Raises:
            UsageError: The model's cache cannot be stored as `dtype`.
        """
        return {
            layer: KvSpec.make(shape, context, dtype, sequences)
            for layer, shape in graph.caches.items()
        }
