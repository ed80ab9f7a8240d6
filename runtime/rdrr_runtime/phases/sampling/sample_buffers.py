"""The buffers of a sampler on the GPU.

`rdrr_runtime.records` packs what the host writes there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice

from rdrr_runtime.records import ENTRIES, ENTRIES_HEADER, ENTRY, SAMPLER, U32

# The constants of snippets/selection.wgsl and the sizes of its structures; a test compares them.
MAX_GROUPS = 64
GROUP_TOKENS = 4096
LEVELS = 4
"""Levels of a radix select, one for each eight bits of a key."""
BINS = 256
STAGES = 2 * LEVELS
SELECTION_WORDS = MAX_GROUPS + 4 * STAGES + 2 * STAGES * BINS
PARAM_WORDS = SAMPLER.words


@dataclass(frozen=True)
class SampleBuffers:
    """The buffers of a sampler, about 13 bytes for each token of the vocabulary.

    There are keys, selections and candidates for each row of a pass, and parameters and counts for
    each sequence.

    Attributes:
        vocabulary: Vocabulary size.
        rows: Most rows of a pass.
        params: `Params` of each sequence (snippets/sampling_params.wgsl).
        counts: u32 [sequences, counts_stride], how often the sequence has seen each token.
        bias: f32 [vocabulary], added to the logits.
        mask: One bit for each token, set if it may be sampled, u32 [ceil(vocabulary / 32)].
        keys: u32 [rows, vocabulary], scores as sortable integers.
        selections: `Selection` of each row (snippets/selection.wgsl).
        best: Candidates of the workgroups, (f32 value, u32 id) [rows, groups].
        stages: `Stage` of each phase of the radix selects, each at an offset that can be bound.
        entries: The sparse list that `scatter_entries` reads.
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
        """Workgroups that share a row of the vocabulary."""
        return min(MAX_GROUPS, -(-self.vocabulary // GROUP_TOKENS))

    @property
    def counts_stride(self) -> int:
        """Words from the counts of one sequence to the next, so that each can be bound alone."""
        words = OFFSET_ALIGNMENT // 4
        return -(-self.vocabulary // words) * words

    def counts_of(self, sequence: int) -> BufferSlice:
        """Return the counts of a sequence."""
        return self.counts.range(4 * self.counts_stride * sequence, 4 * self.vocabulary)

    def stage(self, index: int, counting: int) -> BufferSlice:
        """Return the `Stage` with number `index`.

        Args:
            index: Number of stages before it.
            counting: Number of stages that count tokens, for top-k: 0 or `LEVELS`.
        """
        row = index + (STAGES + 1) * (counting > 0)
        return self.stages.range(OFFSET_ALIGNMENT * row, 8)

    @staticmethod
    def create(
        arena: Arena, vocabulary: int, *, rows: int = 1, sequences: int = 1
    ) -> SampleBuffers:
        """Return zeroed buffers; only the constant stages are filled in."""
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
            arena.upload("sample.stages", stage_words()),
            arena.empty("sample.entries", 4 * (ENTRIES_HEADER.words + ENTRY.words * ENTRIES)),
        )


def mask_words(vocabulary: int) -> int:
    """Return the number of 32-bit words of a mask with one bit for each token."""
    return -(-vocabulary // 32)


def stage_words() -> U32:
    """Return the stages of a sampler without top-k, then those of a sampler with top-k."""
    table = np.zeros((2, STAGES + 1, OFFSET_ALIGNMENT // 4), np.uint32)
    table[:, :, 0] = np.arange(STAGES + 1)
    table[1, :, 1] = LEVELS
    return table
