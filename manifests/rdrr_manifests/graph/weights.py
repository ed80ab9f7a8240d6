"""What an op reads that is no value of the pass: tensors of the package, and rotary tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

Value = Annotated[str, "value"]
"""The name of a value that an op reads; the one that it writes is the plain string `out`."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one kind of layer.

    `rdrr_runtime.phases.attention.rope_tables` computes the table of cosines and sines.

    Attributes:
        theta: Base of the frequencies.
        head_dim: Width of a head.
        rotary_dim: Leading elements of the head that are rotated.
        scaling: None, `linear`, `llama3`, `yarn` or `longrope`.
        factor: Scaling factor.
        low_freq_factor: `low_freq_factor` of llama3 scaling.
        high_freq_factor: `high_freq_factor` of llama3 scaling.
        beta_fast: `beta_fast` of yarn scaling.
        beta_slow: `beta_slow` of yarn scaling.
        truncate: For yarn: whether the ends of the ramp are rounded to whole pairs.
        original_max_pos: Context length before scaling, for llama3, yarn and longrope.
        short_factor: Factors of longrope for short contexts, one for each frequency.
        long_factor: Factors of longrope for long contexts, one for each frequency.
        rotated_pairs: Leading pairs that are rotated; the others have the angle 0. None for all.
        attention_factor: Factor on cosines and sines of yarn, or of longrope for short contexts;
            None for the one of the paper.
        long_attention_factor: The factor of longrope for long contexts; None for that of the paper.
        sections: Pairs that are rotated by the position in time, in height and in width; None for a
            single position. For text the three are equal.
        sections_alternate: Whether the pairs of the sections alternate, instead of following one
            another.
    """

    theta: float
    head_dim: int
    rotary_dim: int
    scaling: str | None = None
    factor: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    original_max_pos: int | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    rotated_pairs: int | None = None
    attention_factor: float | None = None
    long_attention_factor: float | None = None
    sections: tuple[int, ...] | None = None
    sections_alternate: bool = False


class WeightKind(Enum):
    """How an op reads a tensor; the runtime chooses the tensor's form in memory by it."""

    VECTOR = "vector"
    """Element by element, like the weight of a norm."""
    TABLE = "table"
    """Row by row, like an embedding."""
    MATRIX = "matrix"
    """As the matrix of a product with all rows of a value."""
    EXPERT = "expert"
    """As the matrix of a product with the rows that a router sends to it."""


@dataclass(frozen=True)
class WeightUse:
    """A tensor that an op reads: its name, the logical shape it must have, and how it is read."""

    name: str
    shape: tuple[int, ...]
    kind: WeightKind = WeightKind.MATRIX
