"""The GPU sampler: its buffers, its phases after a pass, and what the host writes.

The host writes when a generation begins: the sampling parameters, and the tokens that were seen or
have a bias. For each further token it writes nothing except the mask of a constraint. How the
phases work is described in `phases/sampling/sample.py`. A sampler keeps the state of a generation
for each sequence, and a pass of several sequences samples for each of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice, Bytes
from rdrr_format.errors import UsageError

from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.prepared import PreparedPass
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.sampling.logprobs import LogprobBuffers, logprobs
from rdrr_runtime.phases.sampling.sample import sample, scatter_entries
from rdrr_runtime.phases.sampling.sample_buffers import PARAM_WORDS, SampleBuffers
from rdrr_runtime.records import Entry, entries_of, pack_entries, pack_params, searches_of
from rdrr_runtime.sampling.logprobs import TokenLogprobs, record_bytes, unpack
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed
from rdrr_runtime.sequences.passes import advance_rows

_Key = tuple[PreparedPass, bool, bool, int | None]
"""A pass, whether top-k and top-p are searched for, and how many logprobs to record."""


@dataclass
class _Sampled:
    """A pass with the phases that sample behind it, each made when it is first needed.

    Attributes:
        executor: Prepares the phases.
        prepared: The pass.
        phases: The phases of sampling.
    """

    executor: Executor
    prepared: PreparedPass
    phases: Sequence[Phase]

    @cached_property
    def whole(self) -> Prepared:
        """Body, head and sampling."""
        return self.prepared.to_sampled(self.phases)

    @cached_property
    def behind(self) -> Prepared:
        """Only the phases of sampling."""
        return self.executor.prepare_behind(self.phases)


class GpuSampler:
    """A sampler whose phases run after the passes of one sequence or several.

    Args:
        executor: Runs the passes.
        arena: Owner of the buffers.
        state: The inputs of the next pass, which sampling advances.
        vocabulary: Number of logits per row.
        rows: Largest number of rows of a pass.
        sequences: Number of sequences, each with a generation of its own.
        batch: Whether the passes are those of a batch, which write picks instead of one token.
    """

    def __init__(
        self,
        executor: Executor,
        arena: Arena,
        state: State,
        vocabulary: int,
        *,
        rows: int = 1,
        sequences: int = 1,
        batch: bool = False,
    ) -> None:
        self._executor, self._device = executor, executor.device
        self._state, self._vocabulary = state, vocabulary
        self._buffers = SampleBuffers.create(arena, vocabulary, rows=rows, sequences=sequences)
        ring = state.ring.size // 4
        self._logprobs = None if batch else LogprobBuffers.create(arena, ring)
        self._searches = [(False, False)] * sequences
        self._top: int | None = None
        self._received: list[TokenLogprobs] = []
        self._set_tokens = [
            executor.prepare([scatter_entries(self._buffers, "sample.set", sequence)])
            for sequence in range(sequences)
        ]
        self._prepared: dict[_Key, _Sampled] = {}

    def begin(
        self,
        options: SamplingParams,
        seen: Sequence[int],
        *,
        sequence: int = 0,
        masked: bool = False,
        top: int | None = None,
    ) -> None:
        """Start a generation in a sequence.

        Args:
            options: How its tokens are chosen. The bias holds for all sequences: it is that of the
                generation that began last.
            seen: Ids that the penalties apply to, once for each occurrence.
            sequence: Index of the sequence.
            masked: Whether `allow` is called before every token.
            top: Number of most probable tokens whose log-probabilities are recorded; None to
                record nothing.

        Raises:
            UsageError: Masks or log-probabilities are requested for a batch.
        """
        if self._logprobs is None and (masked or top is not None):
            raise UsageError("batches do not support constraints and log-probabilities")
        self._searches[sequence], self._top, self._received = searches_of(options), top, []
        seed = fresh_seed() if options.seed is None else options.seed
        params = pack_params(options, seed, masked=masked)
        self._device.write(self._buffers.params, params, offset=4 * PARAM_WORDS * sequence)
        text = [token for token in seen if token < self._vocabulary]  # others are of images
        self._set(sequence, entries_of(options, text))

    def allow(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the mask of the next token: token i is allowed by bit i mod 32 of word i / 32."""
        self._device.write(self._buffers.mask, mask)

    def to_token(self, prepared: PreparedPass) -> Prepared:
        """Return body, head and sampling of a pass.

        The same object is returned each time, since the device encodes a known object faster.
        """
        return self._sampled(prepared).whole

    def sample(self, prepared: PreparedPass) -> Prepared:
        """Return only the phases of sampling, which run behind `prepared.before_sampling`."""
        return self._sampled(prepared).behind

    def _sampled(self, prepared: PreparedPass) -> _Sampled:
        # Sequences without top-k or top-p keep all tokens in the search that others need.
        by_count, by_probability = map(any, zip(*self._searches, strict=True))
        key = (prepared, by_count, by_probability, self._top)
        if key not in self._prepared:
            phases = self._phases(prepared, (by_count, by_probability))
            self._prepared[key] = _Sampled(self._executor, prepared, phases)
        return self._prepared[key]

    def _phases(self, prepared: PreparedPass, searches: tuple[bool, bool]) -> list[Phase]:
        picks, buffers = prepared.picks, self._buffers
        phases = sample(buffers, self._state, prepared.logits, searches, "sample", picks)
        if picks is not None:
            phases += advance_rows(self._state, picks, prepared.rows)
        elif self._top is not None and self._logprobs is not None:
            width, logits = buffers.vocabulary, prepared.logits
            phases += logprobs(self._logprobs, self._state, logits, vocabulary=width, top=self._top)
        return phases

    @property
    def has_records(self) -> bool:
        """Whether log-probabilities are recorded."""
        return self._top is not None

    def records(self, start: int, count: int) -> BufferSlice:
        """Return the records of consecutive steps of the ring."""
        assert self._logprobs is not None, "rows of several sequences have no records"
        size = record_bytes(self._top or 0)
        return self._logprobs.records.range(start * size, count * size)

    def receive(self, ids: Sequence[int], data: Bytes) -> None:
        """Decode and keep the log-probabilities recorded for these ids."""
        width = self._buffers.vocabulary
        self._received += unpack(ids, data, vocabulary=width, top=self._top or 0)

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities received since the last call."""
        received, self._received = self._received, []
        return received

    def _set(self, sequence: int, entries: Sequence[Entry]) -> None:
        """Replace the counts and biases of a sequence by these entries."""
        buffers = self._buffers
        self._device.clear(buffers.counts_of(sequence))
        self._device.clear(buffers.bias)
        for words in pack_entries(entries):
            self._device.write(buffers.entries, words)
            self._executor.run(self._set_tokens[sequence], 1)
