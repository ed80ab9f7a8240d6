"""The records that the host writes for the GPU, each field stated once, and what packs them.

A record is a structure of 32-bit words. The tables here are the only statement of them on the
host: they pack what Python writes, and a program (`rdrr_runtime.program`) states them, so that a
player in another language packs the same words. A test compares them with the shaders.

    step_header   the number of token rows of a pass, of tokens sampled since the step was written,
                  and of last rows whose logits a window computes (last-n logits)
    step_row      follows the header for each token row
    sampler       parameters of a generation that samples
    entries       the number of entries of a sparse list
    entry         follows it for each token that was seen or has a bias
    segment       for each token row of packed texts: the slots of its text, from `first` up to but
                  not including `end`, and the type of the token
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import seed_words

U32 = npt.NDArray[np.uint32]
Numbers = Sequence[int] | npt.NDArray[np.int64]
Entry = tuple[int, int, float]
"""Token id, how often it was seen, bias."""

NO_SLOT = 0xFFFFFFFF
"""Slot of a row that has no effect: nothing is stored for it, and it attends to no slot."""

ENTRIES = 4096
"""Most tokens of a sparse list that is scattered at a time."""


@dataclass(frozen=True)
class RecordTable:
    """The fields of a record.

    Attributes:
        fields: Type of each field, `u32` or `f32`, by name; one follows the other.
        words: Words of the record; those behind the last field are zero.
    """

    fields: Mapping[str, Literal["u32", "f32"]]
    words: int

    @property
    def declaration(self) -> str:
        """The members of the record's structure in WGSL, padded to its words."""
        padding = {f"pad{index}": "u32" for index in range(self.words - len(self.fields))}
        members = {**self.fields, **padding}
        return "".join(f"    {name}: {kind},\n" for name, kind in members.items())

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The record as a structured type of numpy."""
        return np.dtype(
            {
                "names": list(self.fields),
                "formats": ["<u4" if kind == "u32" else "<f4" for kind in self.fields.values()],
                "offsets": [4 * index for index in range(len(self.fields))],
                "itemsize": 4 * self.words,
            }
        )

    def zeros(self, count: int = 1) -> npt.NDArray[np.void]:
        """Return records of zeros, [count]."""
        return np.zeros(count, self.dtype)

    def pack(self, **values: Any) -> U32:
        """Return the words of a record with these values; fields that are not given are zero."""
        record = self.zeros()
        for name, value in values.items():
            record[name] = value
        return record.view(np.uint32)


STEP_HEADER = RecordTable({"rows": "u32", "sampled": "u32", "last_n": "u32"}, 4)
STEP_ROW = RecordTable({"token": "u32", "position": "u32", "sequence": "u32", "slot": "u32"}, 4)
SAMPLER = RecordTable(
    {
        **dict.fromkeys(SamplingParams().numbers, "f32"),
        "seed_low": "u32",
        "seed_high": "u32",
        "sampled": "u32",
        "noisy": "u32",
        "masked": "u32",
    },
    16,
)
ENTRIES_HEADER = RecordTable({"size": "u32"}, 1)
ENTRY = RecordTable({"id": "u32", "count": "u32", "bias": "f32"}, 3)
SEGMENT = RecordTable({"first": "u32", "end": "u32", "kind": "u32"}, 3)

RECORDS: Mapping[str, RecordTable] = MappingProxyType(
    {
        "step_header": STEP_HEADER,
        "step_row": STEP_ROW,
        "sampler": SAMPLER,
        "entries": ENTRIES_HEADER,
        "entry": ENTRY,
        "segment": SEGMENT,
    }
)
"""All records by the names that a program gives them."""


def pack_step(
    tokens: Numbers,
    slots: Numbers,
    *,
    positions: Numbers | None = None,
    sequences: Numbers | int = 0,
    last_n: int = 1,
    launched: int = 0,
) -> U32:
    """Return the words of a `Step` before its first sampled token, u32 [4 + 4 rows].

    Args:
        tokens: Token id of each row.
        slots: KV slot of each row (the slot mapping).
        positions: Position of each row; None means that it equals the slot.
        sequences: Sequence of each row, or one sequence for all rows.
        last_n: Number of last rows whose logits a window computes.
        launched: Number of rows that the pass is launched for, if it is more than there are; the
            further rows have no effect.
    """
    count = len(tokens)
    table = STEP_ROW.zeros(max(count, launched))
    rows = table[:count]
    rows["token"] = tokens
    rows["position"] = slots if positions is None else positions
    rows["sequence"] = sequences
    rows["slot"] = slots
    table["slot"][count:] = NO_SLOT
    return np.concatenate([STEP_HEADER.pack(rows=count, last_n=last_n), table.view(np.uint32)])


def pack_segments(starts: Numbers, ends: Numbers, types: Numbers) -> U32:
    """Return the words of the segments of packed texts, u32 [3 rows].

    Args:
        starts: First slot of each text.
        ends: Slot after the last of each text.
        types: Type of the token of each row.
    """
    lengths = np.subtract(ends, starts)
    table = SEGMENT.zeros(len(types))
    table["first"], table["end"] = np.repeat(starts, lengths), np.repeat(ends, lengths)
    table["kind"] = types
    return table.view(np.uint32)


def pack_params(options: SamplingParams, seed: int, *, masked: bool) -> U32:
    """Return the words of `Params` for a generation, before its first token."""
    low, high = seed_words(seed)
    return SAMPLER.pack(
        **options.numbers,
        seed_low=low,
        seed_high=high,
        sampled=options.sampled_tokens,
        noisy=options.temperature > 0,
        masked=masked,
    )


def searches_of(options: SamplingParams) -> tuple[bool, bool]:
    """Return whether tokens are searched for by top-k, and by top-p."""
    return bool(options.top_k), (options.top_p or 1.0) < 1


def entries_of(options: SamplingParams, seen: Sequence[int]) -> list[Entry]:
    """Return (id, count, bias) of every token with a count or a bias, in order of the ids."""
    counts: dict[int, int] = {}
    if options.penalizes:
        for token_id in seen:
            counts[token_id] = counts.get(token_id, 0) + 1
    bias = options.logit_bias
    ids = sorted({*counts, *bias})
    return [(token_id, counts.get(token_id, 0), bias.get(token_id, 0.0)) for token_id in ids]


def pack_entries(entries: Sequence[Entry], most: int = ENTRIES) -> Iterator[U32]:
    """Yield the words of sparse lists, each of at most `most` tokens."""
    for start in range(0, len(entries), most):
        part = entries[start : start + most]
        table = np.array(part, ENTRY.dtype)
        yield np.concatenate([ENTRIES_HEADER.pack(size=len(part)), table.view(np.uint32)])
