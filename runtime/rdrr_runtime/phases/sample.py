"""Sampling on the GPU: penalties, bias, mask, temperature, top-k, top-p, min-p and the choice.

The phases of one token, all but the last over the whole vocabulary:

    sample_scores     adjusted scores, as words that sort like them
    sample_radix_select x4  the least score that top-k keeps, eight bits at a time
    sample_radix_select x4  likewise for top-p, among those
    sample_gumbel     the largest score + noise of those kept: a sample of their softmax
    choose_best       the winner becomes the next token

They serve one row or several, each of a sequence of its own. A single sequence's step advances at
the end; several leave the tokens where `batch_advance` takes them from.

A search runs only where its option is set. Without it and with noise off this is an argmax. Scores
equal to the last one kept are kept too. What the parameters are at a token is read from `Params`
(snippets/sampling_params.wgsl), written once for a generation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.argmax import LogitsRecord, choose_best
from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work
from rdrr_runtime.phases.sample_buffers import BINS, ENTRIES, LEVELS, SampleBuffers
from rdrr_runtime.phases.state import State
from rdrr_runtime.sampling.params import SamplingParams

SET_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class SampleScores(LogitsRecord):
    """Parameters of sample_scores.wgsl.

    Attributes:
        counts_stride: Words of a sequence's counts.
    """

    shader = "sample_scores"

    counts_stride: int


class SampleRadixSelect(LogitsRecord):
    """Parameters of sample_radix_select.wgsl, which has `BINS` threads."""

    shader = "sample_radix_select"


class SampleGumbel(LogitsRecord):
    """Parameters of sample_gumbel.wgsl, which has as many."""

    shader = "sample_gumbel"


class ScatterEntries(Record):
    """Parameters of scatter_entries.wgsl: none but the threads."""

    shader = "scatter_entries"


def sample(
    buffers: SampleBuffers,
    state: State,
    logits: BufferSlice,
    options: SamplingParams,
    label: str,
    picks: BufferSlice | None = None,
) -> list[Phase]:
    """Sample the next token of a sequence and advance the step, or one for each row of a batch.

    Args:
        buffers: The sampler's.
        state: Where the token goes, or which sequence each row is of.
        logits: f32 [vocabulary], or [rows, vocabulary].
        options: Only whether top-k and top-p are set counts; numbers come from the parameters.
        label: What the op is.
        picks: (u32, f32) [rows]: where the ids of a batch go; the second words are left zero.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, buffers.vocabulary)
    width, groups = buffers.vocabulary, buffers.groups
    first = SampleScores(
        threads=BINS, width=width, groups=groups, counts_stride=buffers.counts_stride
    )
    narrow = SampleRadixSelect(threads=BINS, width=width, groups=groups)
    last = SampleGumbel(threads=BINS, width=width, groups=groups)
    shared = {
        "current": state.step,
        "params": buffers.params,
        "keys": buffers.keys,
        "selections": buffers.selections,
    }
    tokens = {"logits": logits, "counts": buffers.counts, "bias": buffers.bias}
    by_count, by_probability = searches_of(options)
    *searching, end = (
        {**shared, "stage": buffers.stage(index, LEVELS * by_count)}
        for index in range(LEVELS * (by_count + by_probability) + 1)
    )
    work = Work(groups, None if picks is None else 1)
    gumbel = Phase(last, {**end, "best": buffers.best}, work, f"{label}.gumbel")
    return [
        Phase(first, {**shared, **tokens, "mask": buffers.mask}, work, f"{label}.scores"),
        *(Phase(narrow, one, work, f"{label}.narrow") for one in searching),
        gumbel,
        choose_best(state, gumbel, picks=picks, sampler=buffers, label=f"{label}.choose"),
    ]


def scatter_entries(buffers: SampleBuffers, label: str, sequence: int = 0) -> Phase:
    """Put the sparse list in `entries` where the counts of a sequence and the bias are kept."""
    operands = {
        "entries": buffers.entries,
        "counts": buffers.counts_of(sequence),
        "bias": buffers.bias,
    }
    record = ScatterEntries(threads=SET_THREADS)
    return Phase(record, operands, Work(-(-ENTRIES // SET_THREADS)), label)


def searches_of(options: SamplingParams) -> tuple[bool, bool]:
    """Return whether there is a search for top-k and for top-p, which the phases depend on."""
    return bool(options.top_k), options.top_p is not None and options.top_p < 1
