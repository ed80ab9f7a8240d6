"""Draws on the GPU for texts that are decoded together, each with its own seed, draws and counts.

As `gpu_sampler` for a lone text, but without masks and without records. What is written when a text
begins belongs to its sequence; a step writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch

from rdrr_runtime.phases.context import State
from rdrr_runtime.phases.sample import (
    ENTRIES,
    PARAM_WORDS,
    SampleBuffers,
    pack_params,
    sample_rows,
    set_tokens,
)
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed
from rdrr_runtime.sequences.sampler import Entry, entries_of


class GpuBatchSampler:
    """Draws a token for each row of a batch's passes.

    Args:
        device: Where.
        arena: Owner of the buffers.
        vocabulary: Logits of a row.
        rows: Rows of a pass, at most.
        sequences: Texts at a time, at most.
    """

    def __init__(
        self, device: Device, arena: Arena, vocabulary: int, *, rows: int, sequences: int
    ) -> None:
        self._device = device
        self._buffers = SampleBuffers.create(arena, vocabulary, rows=rows, sequences=sequences)
        self._set_tokens = [
            (device.bind(set_tokens(self._buffers, "sample.set", one)),) for one in range(sequences)
        ]

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a text in a sequence.

        Args:
            sequence: Where.
            options: How its tokens are chosen; the bias is that of the last text that began.
            seen: Ids that the penalties apply to, as often as they were there.
        """
        seed = fresh_seed() if options.seed is None else options.seed
        buffers, params = self._buffers, pack_params(options, seed, masked=False)
        self._device.write(buffers.params, params, offset=4 * PARAM_WORDS * sequence)
        self._device.clear(buffers.counts_of(sequence))
        self._device.clear(buffers.bias)
        entries = entries_of(options, seen)
        for start in range(0, len(entries), ENTRIES):
            self._set(sequence, entries[start : start + ENTRIES])

    def draw(
        self, state: State, logits: BufferSlice, picks: BufferSlice, options: SamplingParams
    ) -> list[Dispatch]:
        """The launches after the logits of a pass, see `sample_rows`."""
        return sample_rows(self._buffers, state, logits, picks, options, "sample")

    def _set(self, sequence: int, entries: Sequence[Entry]) -> None:
        words = np.zeros((len(entries), 3), np.uint32)
        words[:, :2] = [entry[:2] for entry in entries]
        words[:, 2] = np.array([entry[2] for entry in entries], np.float32).view(np.uint32)
        self._device.write(self._buffers.entries, np.array([len(entries)], np.uint32))
        self._device.write(self._buffers.entries, words, offset=4)
        self._device.submit(self._set_tokens[sequence], 1)
