"""The memory of a sampler, and how the host lays out what it writes there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice

from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import seed_words

MAX_GROUPS = 64
GROUP_TOKENS = 4096
LEVELS = 4
"""Stages of a search, each for eight bits of a key."""
BINS = 256
STAGES = 2 * LEVELS
SELECTION_WORDS = MAX_GROUPS + 4 * STAGES + 2 * STAGES * BINS
PARAM_WORDS = 16
ENTRIES = 4096
"""Tokens of a sparse list that are set at a time."""

NO_MIN_P = 3e38  # no score lies so far below the largest

U32 = npt.NDArray[np.uint32]
Entry = tuple[int, int, float]  # id, times seen, bias


@dataclass(frozen=True)
class SampleBuffers:
    """The sampler's memory, 13 bytes a token of the vocabulary and a little.

    Of several rows, keys, selections and candidates are there for each row, parameters and counts
    for each sequence.

    Attributes:
        vocabulary: Tokens.
        rows: Rows of a pass, at most.
        params: `Params` of each sequence.
        counts: u32 [sequences, counts_stride], times that a token was seen.
        bias: f32 [vocabulary].
        mask: Bits of the tokens that may be sampled.
        keys: u32 [rows, vocabulary], scores in sortable form.
        selections: `Selection` of each row.
        best: Candidates of each row's workgroups.
        stages: `Stage` of each step of the searches, each at an offset that can be bound.
        entries: A sparse list on its way to counts and bias.
    """

    vocabulary: int
    rows: int
    params: BufferSlice
    counts: BufferSlice
    bias: BufferSlice
    mask: BufferSlice
    keys: BufferSlice
    selections: BufferSlice
    best: BufferSlice
    stages: BufferSlice
    entries: BufferSlice

    @property
    def groups(self) -> int:
        """Workgroups that share the vocabulary."""
        return min(MAX_GROUPS, -(-self.vocabulary // GROUP_TOKENS))

    @property
    def counts_stride(self) -> int:
        """Words of the counts of a sequence, which can be bound by themselves."""
        words = OFFSET_ALIGNMENT // 4
        return -(-self.vocabulary // words) * words

    def counts_of(self, sequence: int) -> BufferSlice:
        """Return the counts of a sequence."""
        return self.counts.range(4 * self.counts_stride * sequence, 4 * self.vocabulary)

    def stage(self, index: int, counting: int) -> BufferSlice:
        """Return the `Stage` after `index` others, of which `counting` count tokens (0 or all)."""
        row = index + (STAGES + 1) * (counting > 0)
        return self.stages.range(OFFSET_ALIGNMENT * row, 8)

    @staticmethod
    def create(
        arena: Arena, vocabulary: int, *, rows: int = 1, sequences: int = 1
    ) -> SampleBuffers:
        """Return zeroed buffers, but for the constants of the stages."""
        width = 4 * vocabulary
        return SampleBuffers(
            vocabulary,
            rows,
            arena.empty("sample.params", 4 * PARAM_WORDS * sequences),
            arena.empty("sample.counts", (width + OFFSET_ALIGNMENT) * sequences),
            arena.empty("sample.bias", width),
            arena.empty("sample.mask", 4 * mask_words(vocabulary)),
            arena.empty("sample.keys", width * rows),
            arena.empty("sample.selections", 4 * SELECTION_WORDS * rows),
            arena.empty("sample.best", 8 * MAX_GROUPS * rows),
            arena.upload("sample.stages", _stages()),
            arena.empty("sample.entries", 4 * (1 + 3 * ENTRIES)),
        )


def mask_words(vocabulary: int) -> int:
    """Return the words of a mask with a bit for each token."""
    return -(-vocabulary // 32)


def pack_params(options: SamplingParams, seed: int, *, masked: bool) -> U32:
    """Return `Params` of a generation, before its first token."""
    repeat = options.repeat_penalty or 1.0
    numbers = [
        options.inverse_temperature,
        repeat,
        1 / repeat,
        options.frequency_penalty,
        options.presence_penalty,
        options.top_k or 0,
        options.top_p or 1.0,
        np.log(options.min_p) if options.min_p else -NO_MIN_P,
    ]
    words = np.zeros(PARAM_WORDS, np.uint32)
    words[:8] = np.array(numbers, np.float32).view(np.uint32)
    words[8:13] = [*seed_words(seed), options.drawn, options.temperature > 0, masked]
    return words


def pack_entries(entries: Sequence[Entry]) -> Iterator[U32]:
    """Yield sparse lists as `scatter_entries` reads them, each of at most `ENTRIES` tokens."""
    for start in range(0, len(entries), ENTRIES):
        part = entries[start : start + ENTRIES]
        table = np.zeros((len(part), 3), np.uint32)
        table[:, :2] = [entry[:2] for entry in part]
        table[:, 2] = np.array([entry[2] for entry in part], np.float32).view(np.uint32)
        yield np.concatenate([[np.uint32(len(part))], table.reshape(-1)]).astype(np.uint32)


def _stages() -> U32:
    """Return the stages of searches that begin with top-p, then of those that begin with top-k."""
    table = np.zeros((2, STAGES + 1, OFFSET_ALIGNMENT // 4), np.uint32)
    table[:, :, 0] = np.arange(STAGES + 1)
    table[1, :, 1] = LEVELS
    return table
