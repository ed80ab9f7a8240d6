"""RMSNorm, rope and scale of query and key heads before attention, fused into other phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.phase import Record, choice


@dataclass(frozen=True)
class QueryScale:
    """Factor 1 + query_scale * ln(1 + floor((p + query_offset) / query_length)) at position p.

    Attributes:
        query_scale: Factor on the logarithm.
        query_length: Positions that share one factor.
        query_offset: Added to the position.
    """

    query_scale: float
    query_length: int
    query_offset: int


@dataclass(frozen=True, kw_only=True)
class TransformRecord(Record):
    """Parameters of snippets/head_transform.wgsl.

    Attributes:
        norm: Whether query and key heads are normalised.
        rope: Whether query and key heads are rotated.
        interleaved: Whether neighbouring elements form a rotated pair.
        pairs: Rotated pairs of a head.
        eps: Epsilon added to the mean square.
        offset: Number added to the gains.
        scaled: Whether queries are scaled by their position.
        query: Parameters of that scale; None without.
    """

    norm: bool = choice()
    rope: bool = choice()
    interleaved: bool = choice()
    scaled: bool = choice()
    pairs: int
    eps: float
    offset: float
    query: QueryScale | None


@dataclass(frozen=True)
class HeadTransform:
    """RMSNorm, rope and scale of query and key heads, each of which may be absent.

    Attributes:
        pairs: Rotated pairs of a head; 0 for no rope.
        table: f32 [context, pairs, 2], cosine and sine of each angle; None for no rope.
        gains: f32 [2, head_dim], norm weights of queries, then of keys; None for no norm.
        eps: Epsilon added to the mean square.
        offset: Number added to the gains.
        interleaved: Whether elements 2i and 2i + 1 form a rotated pair, not i and i + pairs.
        query: Scale of the queries by their position, after rope; None for none.
    """

    pairs: int = 0
    table: BufferSlice | None = None
    gains: BufferSlice | None = None
    eps: float = 0.0
    offset: float = 0.0
    interleaved: bool = False
    query: QueryScale | None = None

    @property
    def is_of_words(self) -> bool:
        """Whether 4 elements in a row are rotated together, with 4 others or among themselves."""
        return self.pairs % (2 if self.interleaved else 4) == 0

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """The operands that are present, by the names under which shaders declare them."""
        operands = {"table": self.table, "gains": self.gains}
        return {name: operand for name, operand in operands.items() if operand is not None}

    @property
    def parameters(self) -> dict[str, Any]:
        """Field values of a `TransformRecord`."""
        return {
            "norm": self.gains is not None,
            "rope": self.table is not None,
            "interleaved": self.interleaved,
            "scaled": self.query is not None,
            "query": self.query,
            "pairs": self.pairs,
            "eps": self.eps,
            "offset": self.offset,
        }

    def check(self, label: str, head_dim: int) -> None:
        """Check the rotated pairs against the head dimension and the table.

        Raises:
            FormatError: More elements are rotated than a head has, or the table of angles is
                missing or superfluous.
        """
        if 2 * self.pairs > head_dim:
            raise FormatError(
                "more elements are rotated than a head has",
                where=label,
                expected=f"at most {head_dim}",
                found=2 * self.pairs,
            )
        if (self.pairs > 0) != (self.table is not None):
            raise FormatError(
                "rotated pairs and a table of angles go together", where=label, found=self.pairs
            )


NO_TRANSFORM = HeadTransform()
"""Heads as they are projected."""
