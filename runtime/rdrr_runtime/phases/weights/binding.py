"""Matrices as shaders bind them: the record fields and buffers of `snippets/weights.wgsl`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.phase import Record, choice
from rdrr_runtime.phases.weights.formats import GpuFormat, PlaneOffsets
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, Part


@dataclass(frozen=True, kw_only=True)
class WeightsRecord(Record):
    """Parameters of a shader that reads matrices.

    Attributes:
        formats: Memory layout of each matrix.
        planes: Plane offsets of each matrix.
    """

    formats: tuple[GpuFormat, ...] = choice()
    planes: tuple[PlaneOffsets, ...]


@dataclass(frozen=True)
class BoundWeights:
    """The matrices of a phase, and the part of each that the phase binds.

    Attributes:
        weights: The matrices.
        parts: One part of each matrix.
    """

    weights: tuple[GpuWeight, ...]
    parts: tuple[Part, ...]

    @property
    def types(self) -> str:
        """Storage types of the matrices, as part of a variant's name, e.g. `q4_k,q6_k`."""
        return ",".join(weight.dtype.name.lower() for weight in self.weights)

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of a `WeightsRecord`."""
        pairs = zip(self.weights, self.parts, strict=True)
        return {
            "formats": tuple(weight.form for weight in self.weights),
            "planes": tuple(weight.plane_offsets(part) for weight, part in pairs),
        }

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Buffers by the names under which shaders declare them."""
        return {f"weight{index}": part.slice for index, part in enumerate(self.parts)}


def bind_whole(weights: Iterable[GpuWeight]) -> BoundWeights:
    """Bind whole matrices, each of which has only one part."""
    weights = tuple(weights)
    assert all(len(weight.parts) == 1 for weight in weights), "refusals exclude matrices in parts"
    return BoundWeights(weights, tuple(weight.parts[0] for weight in weights))


def bind_parts(weight: GpuWeight) -> tuple[BoundWeights, ...]:
    """Bind each part of a matrix separately, for a phase of its own."""
    return tuple(BoundWeights((weight,), (part,)) for part in weight.parts)
