"""Sampling on the GPU: penalties, bias, mask, temperature, top-k, top-p, min-p and the sample.

These phases sample one token; all but the last read the whole vocabulary:

    sample_scores            compute the adjusted scores, as integer keys that sort like the scores
    sample_radix_select x4   top-k: find the smallest key to keep by a radix select, 8 bits a phase
    sample_radix_select x4   top-p: likewise, among the keys that top-k keeps
    sample_gumbel            find the largest score + Gumbel noise, a sample of the softmax
    choose_best              make the winner the next token

They sample for one row, or for several rows of different sequences. For a single sequence the last
phase advances the step; for several it writes the ids to where `batch_advance` reads them.

A radix select runs only if its option is set. Without options and noise the result is the argmax.
Scores equal to the smallest one kept are also kept. The kernels read the sampling parameters from
`Params` (snippets/sampling_params.wgsl), which the host writes once for each generation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase, Record, Work
from rdrr_runtime.phases.sampling.argmax import LogitsRecord, choose_best
from rdrr_runtime.phases.sampling.sample_buffers import BINS, LEVELS, SampleBuffers
from rdrr_runtime.records import ENTRIES

SET_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class SampleScores(LogitsRecord):
    """Parameters of sample_scores.wgsl.

    Attributes:
        counts_stride: Words from the counts of one sequence to the next.
    """

    shader = "sampling/sample_scores"

    counts_stride: int


class SampleRadixSelect(LogitsRecord):
    """Parameters of sample_radix_select.wgsl, which runs with `BINS` threads."""

    shader = "sampling/sample_radix_select"


class SampleGumbel(LogitsRecord):
    """Parameters of sample_gumbel.wgsl, which runs with `BINS` threads."""

    shader = "sampling/sample_gumbel"


class ScatterEntries(Record):
    """Parameters of scatter_entries.wgsl, which has none of its own."""

    shader = "sampling/scatter_entries"


def sample(
    buffers: SampleBuffers,
    state: State,
    logits: BufferSlice,
    searches: tuple[bool, bool],
    label: str,
    picks: BufferSlice | None = None,
) -> list[Phase]:
    """Sample the next token of a sequence and advance the step, or a token for each row of a batch.

    Args:
        buffers: Buffers of the sampler.
        state: Generation state: it receives the token, and holds the sequence of each row.
        logits: f32 [vocabulary], or [rows, vocabulary].
        searches: Whether tokens are searched for by top-k, and by top-p (`searches_of`); the
            kernels read the values from `buffers.params`, where a sequence may have none.
        label: Name of the op, for messages and profiles.
        picks: (u32 id, f32 zero) [rows], the result for a batch; None for a single sequence.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, buffers.vocabulary)
    width, groups = buffers.vocabulary, buffers.groups
    first = SampleScores(
        threads=BINS, width=width, groups=groups, counts_stride=buffers.counts_stride
    )
    select = SampleRadixSelect(threads=BINS, width=width, groups=groups)
    last = SampleGumbel(threads=BINS, width=width, groups=groups)
    shared = {
        "current": state.step,
        "params": buffers.params,
        "keys": buffers.keys,
        "selections": buffers.selections,
    }
    tokens = {"logits": logits, "counts": buffers.counts, "bias": buffers.bias}
    by_count, by_probability = searches
    *searching, end = (
        {**shared, "stage": buffers.stage(index, LEVELS * by_count)}
        for index in range(LEVELS * (by_count + by_probability) + 1)
    )
    work = Work(groups, None if picks is None else 1)
    gumbel = Phase(last, {**end, "best": buffers.best}, work, f"{label}.gumbel")
    return [
        Phase(first, {**shared, **tokens, "mask": buffers.mask}, work, f"{label}.scores"),
        *(Phase(select, buffers, work, f"{label}.select") for buffers in searching),
        gumbel,
        choose_best(state, gumbel, picks=picks, sampler=buffers, label=f"{label}.choose"),
    ]


def scatter_entries(buffers: SampleBuffers, label: str, sequence: int = 0) -> Phase:
    """Scatter the sparse list in `entries` into the counts of a sequence and into the bias."""
    operands = {
        "entries": buffers.entries,
        "counts": buffers.counts_of(sequence),
        "bias": buffers.bias,
    }
    record = ScatterEntries(threads=SET_THREADS)
    return Phase(record, operands, Work(-(-ENTRIES // SET_THREADS)), label)
