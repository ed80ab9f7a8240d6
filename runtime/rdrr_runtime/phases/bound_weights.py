"""Matrices as shaders bind them: what `snippets/weights.wgsl` asks of records and of buffers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.formats import GpuFormat, PlaneOffsets
from rdrr_runtime.phases.gpu_weight import GpuWeight, Part
from rdrr_runtime.phases.phase import Record, choice


@dataclass(frozen=True, kw_only=True)
class WeightsRecord(Record):
    """Parameters of a shader that reads matrices.

    Attributes:
        formats: How each lies in its buffer.
        planes: Where the planes of each lie.
    """

    formats: tuple[GpuFormat, ...] = choice()
    planes: tuple[PlaneOffsets, ...]


@dataclass(frozen=True)
class BoundWeights:
    """Some matrices, and the part of each that a phase binds.

    Attributes:
        weights: The matrices.
        parts: A part of each.
    """

    weights: tuple[GpuWeight, ...]
    parts: tuple[Part, ...]

    @property
    def types(self) -> str:
        """Their storage types for the name of a variant, e.g. `q4_k,q6_k`."""
        return ",".join(one.dtype.name.lower() for one in self.weights)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `WeightsRecord`."""
        pairs = zip(self.weights, self.parts, strict=True)
        return {
            "formats": tuple(one.form for one in self.weights),
            "planes": tuple(one.plane_offsets(part) for one, part in pairs),
        }

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Their buffers by the names that shaders give them."""
        return {f"weight{index}": part.slice for index, part in enumerate(self.parts)}


def bind_whole(weights: Iterable[GpuWeight]) -> BoundWeights:
    """Return matrices of one part each as a phase binds them."""
    weights = tuple(weights)
    return BoundWeights(weights, tuple(one.parts[0] for one in weights))


def bind_parts(weight: GpuWeight) -> tuple[BoundWeights, ...]:
    """Return the parts of a matrix as phases of their own bind them."""
    return tuple(BoundWeights((weight,), (part,)) for part in weight.parts)
