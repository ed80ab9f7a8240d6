"""The sampler of a GPU backend: its buffers, its phases after a pass, and what the host writes.

The host writes when a generation begins (parameters, and the tokens that were seen or biased); for
a token it writes nothing, but for a mask where one is set. `phases/sample.py` says how the
phases work. One sequence is a case of several: what belongs to a generation is kept for each
sequence, and a pass of mapped rows samples for each row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.readback import Bytes
from rdrr_format.errors import UsageError

from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.program import PreparedPass
from rdrr_runtime.phases.logprobs import LogprobBuffers, logprobs, record_bytes, unpack
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.sample import sample, scatter_entries, searches_of
from rdrr_runtime.phases.sample_buffers import (
    PARAM_WORDS,
    Entry,
    SampleBuffers,
    pack_entries,
    pack_params,
)
from rdrr_runtime.phases.state import State
from rdrr_runtime.sampling.logprobs import TokenLogprobs
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed
from rdrr_runtime.sequences.passes import advance_rows

_Key = tuple[int, bool, bool, int | None]
"""Id of a pass, whether there are searches for top-k and top-p, and what is recorded."""


class GpuSampler:
    """Samples tokens after the passes of one sequence or of several.

    Args:
        executor: What runs the passes.
        arena: Owner of the buffers.
        state: The step that sampling advances.
        vocabulary: Logits of a row.
        rows: Most rows of a pass.
        sequences: Sequences that have a generation of their own.
        batch: Whether they are a batch's, whose passes leave picks.
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
        self._state = state
        self._buffers = SampleBuffers.create(arena, vocabulary, rows=rows, sequences=sequences)
        ring = state.ring.size // 4
        self._logprobs = None if batch else LogprobBuffers.create(arena, ring)
        self._options = SamplingParams()
        self._top: int | None = None
        self._received: list[TokenLogprobs] = []
        self._set_tokens = [
            executor.prepare([scatter_entries(self._buffers, "sample.set", one)])
            for one in range(sequences)
        ]
        # A pass is kept beside its phases, so that its id is not given to another.
        self._made: dict[_Key, tuple[Prepared, Prepared, PreparedPass]] = {}

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
            options: How its tokens are chosen; bias, top-k and top-p are those of the last
                generation that began.
            seen: Ids that the penalties apply to, as often as they occurred.
            sequence: Where.
            masked: Whether `allow` is called for every token.
            top: How many of the most probable tokens are recorded; None to record nothing.

        Raises:
            UsageError: Masks or log-probabilities for a batch.
        """
        if self._logprobs is None and (masked or top is not None):
            raise UsageError("masks and log-probabilities are for a single sequence")
        self._options, self._top, self._received = options, top, []
        seed = fresh_seed() if options.seed is None else options.seed
        params = pack_params(options, seed, masked=masked)
        self._device.write(self._buffers.params, params, offset=4 * PARAM_WORDS * sequence)
        self._set(sequence, entries_of(options, seen))

    def allow(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the mask of the next token: bit i mod 32 of word i / 32 lets token i be sampled."""
        self._device.write(self._buffers.mask, mask)

    def to_token(self, which: PreparedPass) -> Prepared:
        """Return body, head and sampling; the same object each time, so that it encodes quickly."""
        return self._prepared(which)[0]

    def sample(self, which: PreparedPass) -> Prepared:
        """Return the sampling alone, which goes after `which.to_logits`."""
        return self._prepared(which)[1]

    def _prepared(self, which: PreparedPass) -> tuple[Prepared, Prepared, PreparedPass]:
        key = (id(which), *searches_of(self._options), self._top)
        if key not in self._made:
            made = self._phases(which)
            whole = self._executor.prepare((*which.of.body, *which.of.head, *made))
            self._made[key] = (whole, self._executor.prepare(made), which)
        return self._made[key]

    def _phases(self, which: PreparedPass) -> list[Phase]:
        picks, buffers = which.picks, self._buffers
        made = sample(buffers, self._state, which.logits, self._options, "sample", picks)
        if picks is not None:
            made += advance_rows(self._state, picks, which.rows)
        elif self._top is not None and self._logprobs is not None:
            width, logits = buffers.vocabulary, which.logits
            made += logprobs(self._logprobs, self._state, logits, vocabulary=width, top=self._top)
        return made

    @property
    def has_records(self) -> bool:
        """Whether log-probabilities are recorded."""
        return self._top is not None

    def records(self, start: int, count: int) -> BufferSlice:
        """Return the records of consecutive steps of the ring."""
        assert self._logprobs is not None, "mapped rows have no records"
        size = record_bytes(self._top or 0)
        return self._logprobs.records.range(start * size, count * size)

    def receive(self, ids: Sequence[int], data: Bytes) -> None:
        """Keep the log-probabilities that the records of these ids hold."""
        width = self._buffers.vocabulary
        self._received += unpack(ids, data, vocabulary=width, top=self._top or 0)

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities received since the last call."""
        received, self._received = self._received, []
        return received

    def _set(self, sequence: int, entries: Sequence[Entry]) -> None:
        """Make these the only tokens with counts or a bias."""
        buffers = self._buffers
        self._device.clear(buffers.counts_of(sequence))
        self._device.clear(buffers.bias)
        for words in pack_entries(entries):
            self._device.write(buffers.entries, words)
            self._executor.run(self._set_tokens[sequence], 1)


def entries_of(options: SamplingParams, seen: Sequence[int]) -> list[Entry]:
    """Return the tokens with counts or a bias, in order."""
    counts: dict[int, int] = {}
    if options.penalizes:
        for token_id in seen:
            counts[token_id] = counts.get(token_id, 0) + 1
    bias = options.logit_bias
    ids = sorted({*counts, *bias})
    return [(one, counts.get(one, 0), bias.get(one, 0.0)) for one in ids]
