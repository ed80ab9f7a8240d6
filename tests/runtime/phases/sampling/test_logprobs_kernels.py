"""Tests of the log-probabilities that the GPU records, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_runtime.phases.sampling.argmax import SCRATCH_BYTES, argmax
from rdrr_runtime.phases.sampling.logprobs import LogprobBuffers, logprobs
from rdrr_runtime.sampling.logprobs import record_bytes, unpack
from support.gpu import normal

RING = 4  # ids in the ring of the bench's step


@pytest.mark.parametrize(("vocabulary", "top"), [(3, 5), (700, 1), (40_001, 20), (700, 0)])
def test_records_hold_the_sampled_token_and_the_most_probable_tokens(
    bench, rng, vocabulary, top
) -> None:
    """Six steps with different logits; the ring of four overwrites the first two records."""
    ctx, buffers = bench.context(1), LogprobBuffers.create(bench.arena, RING)
    buffer = bench.arena.empty("logits", 4 * vocabulary)
    scratch = bench.arena.empty("scratch", SCRATCH_BYTES)
    phases = [
        *argmax(ctx.state, buffer, scratch, vocabulary=vocabulary, label="t"),
        *logprobs(buffers, ctx.state, buffer, vocabulary=vocabulary, top=top),
    ]
    steps = 4 * normal(rng, 6, vocabulary)
    steps[4, [0, vocabulary - 1]] = 30.0  # equal logits are ordered by id
    for logits in steps:
        bench.device.write(buffer, logits)
        bench.run(phases, 1)
    ids = bench.words(ctx.state.ring)[:RING]
    raw = bench.device.read(buffers.records, 0, RING * record_bytes(top))
    records = unpack(ids, raw, vocabulary=vocabulary, top=top)
    for record, logits in zip(records, steps[[4, 5, 2, 3]].astype(np.float64), strict=True):
        expected = logits - logits.max()
        expected -= np.log(np.exp(expected).sum())
        order = np.argsort(-expected, kind="stable")[:top].tolist()
        assert record.token_id == int(expected.argmax())
        assert record.logprob == pytest.approx(expected.max(), abs=1e-4)
        assert [id_ for id_, _ in record.top] == order
        assert [value for _, value in record.top] == pytest.approx(expected[order], abs=1e-4)
