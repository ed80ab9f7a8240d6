"""Sampling on the GPU: penalties, bias, mask, temperature, top-k, top-p, min-p and the choice.

The launches of one token, each over the whole vocabulary:

    sample_scores     adjusted scores, as words that sort like them
    sample_narrow x4  the least score that top-k keeps, eight bits at a time
    sample_narrow x4  likewise for top-p, among those
    sample_race       the largest score + noise of those kept: a sample of their softmax
    sample_finish     the winner becomes the next token, and the step advances

Of several rows, each of a sequence of its own, all these serve every row, and sample_rows_finish
leaves the tokens where `batch_advance` takes them from.

A search is launched only where its option is set. Without it and with noise off this is an argmax.
Scores equal to the last one kept are kept too. What the parameters are at a token is read from
`Params` (snippets/sampling.wgsl), written once for a generation; `pack_params` lays it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice
from rdrr_device.kernels import Dispatch, Grid, Kernel, dispatch
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import State, need_floats
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import seed_words

MAX_GROUPS = 64
TOKENS_OF_GROUP = 4096
LEVELS = 4
BINS = 256
SEARCHES = 2
STAGES = SEARCHES * LEVELS
PARAM_WORDS = 16
SEED_THREADS = 64
ENTRIES = 4096
"""Tokens of a sparse list that one launch takes."""

NOTHING = 3e38  # min-p off: no score lies so far below the largest

U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class SampleBuffers:
    """The sampler's memory, 13 bytes a token of the vocabulary and a little.

    Of several rows all but the bias, the stages and the entries are there for each row, parameters
    and counts for each sequence; they have no mask.

    Attributes:
        vocabulary: Tokens.
        rows: Rows of a pass, at most.
        params: `Params`.
        counts: u32 [vocabulary], times that a token was seen; see `counts_of`.
        bias: f32 [vocabulary].
        mask: Bits of the tokens that may be sampled.
        keys: u32 [vocabulary], scores in sortable form.
        tops: Largest key of each workgroup.
        searches: What each stage of a search has found.
        bins: Histograms of the stages.
        best: Candidates of each workgroup.
        stages: Constants of the stages, each at an offset that can be bound.
        entries: A sparse list on its way to counts and bias.
    """

    vocabulary: int
    rows: int
    params: BufferSlice
    counts: BufferSlice
    bias: BufferSlice
    mask: BufferSlice
    keys: BufferSlice
    tops: BufferSlice
    searches: BufferSlice
    bins: BufferSlice
    best: BufferSlice
    stages: BufferSlice
    entries: BufferSlice

    @property
    def groups(self) -> int:
        """Workgroups that share the vocabulary."""
        return min(MAX_GROUPS, -(-self.vocabulary // TOKENS_OF_GROUP))

    @property
    def counts_stride(self) -> int:
        """Words of the counts of a sequence, which can be bound by themselves."""
        words = OFFSET_ALIGNMENT // 4
        return -(-self.vocabulary // words) * words

    def counts_of(self, sequence: int) -> BufferSlice:
        """The counts of a sequence."""
        return self.counts.range(4 * self.counts_stride * sequence, 4 * self.vocabulary)

    @staticmethod
    def create(
        arena: Arena, vocabulary: int, *, rows: int = 1, sequences: int = 1
    ) -> SampleBuffers:
        """Zeroed buffers, but for the constants of the stages."""
        width = 4 * vocabulary
        return SampleBuffers(
            vocabulary,
            rows,
            arena.empty("sample.params", 4 * PARAM_WORDS * sequences),
            arena.empty("sample.counts", (width + OFFSET_ALIGNMENT) * sequences),
            arena.empty("sample.bias", width),
            arena.empty("sample.mask", 4 * mask_words(vocabulary)),
            arena.empty("sample.keys", width * rows),
            arena.empty("sample.tops", 4 * MAX_GROUPS * rows),
            arena.empty("sample.searches", 16 * STAGES * rows),
            arena.empty("sample.bins", 8 * STAGES * BINS * rows),
            arena.empty("sample.best", 8 * MAX_GROUPS * rows),
            arena.upload("sample.stages", _stages()),
            arena.empty("sample.entries", 4 * (1 + 3 * ENTRIES)),
        )


def mask_words(vocabulary: int) -> int:
    """Words of a mask with a bit for each token."""
    return -(-vocabulary // 32)


def pack_params(options: SamplingParams, seed: int, *, masked: bool) -> U32:
    """`Params` of a generation, before its first token."""
    repeat = options.repeat_penalty or 1.0
    numbers = [
        options.inverse_temperature,
        repeat,
        1 / repeat,
        options.frequency_penalty,
        options.presence_penalty,
        options.top_k or 0,
        options.top_p or 1.0,
        np.log(options.min_p) if options.min_p else -NOTHING,
    ]
    words = np.zeros(PARAM_WORDS, np.uint32)
    words[:8] = np.array(numbers, np.float32).view(np.uint32)
    words[8:13] = [*seed_words(seed), options.drawn, options.temperature > 0, masked]
    return words


def sample(
    buffers: SampleBuffers, state: State, logits: BufferSlice, options: SamplingParams, label: str
) -> list[Dispatch]:
    """Sample the next token and advance the step.

    Args:
        buffers: The sampler's.
        state: Where the token goes.
        logits: f32 [vocabulary].
        options: Only whether top-k and top-p are set counts; numbers come from the parameters.
        label: What the op is.

    Raises:
        FormatError: A buffer is too small.
    """
    finish = {
        "best": buffers.best,
        "current": state.step,
        "positions": state.positions,
        "tokens": state.tokens,
        "ring": state.ring,
        "params": buffers.params,
        "counts": buffers.counts,
    }
    what = _kernel("sample_finish", buffers, {})
    return [
        *_race(buffers, None, logits, options, label),
        dispatch(what, finish, Grid(), f"{label}.finish"),
    ]


def sample_rows(
    buffers: SampleBuffers,
    state: State,
    logits: BufferSlice,
    picks: BufferSlice,
    options: SamplingParams,
    label: str,
) -> list[Dispatch]:
    """Sample a token for each row of a pass, whose rows are of different sequences.

    Args:
        buffers: The sampler's.
        state: With a slot mapping.
        logits: f32 [rows, vocabulary].
        picks: (u32, f32) [rows]: where the ids go; the second words are left zero.
        options: As of `sample`.
        label: What the op is.

    Raises:
        FormatError: A buffer is too small, or there is no slot mapping.
    """
    if state.slot_mapping is None:
        raise FormatError(f"{label}: not a pass of a batch", expected="a slot mapping")
    finish = {
        "best": buffers.best,
        "picks": picks,
        "all_params": buffers.params,
        "counts": buffers.counts,
        "slot_mapping": state.slot_mapping,
    }
    what = _kernel("sample_rows_finish", buffers, {"COUNTS": buffers.counts_stride}, rows=True)
    return [
        *_race(buffers, state.slot_mapping, logits, options, label),
        dispatch(what, finish, Grid(1, 1, 1, 1), f"{label}.finish"),
    ]


def _race(
    buffers: SampleBuffers,
    slot_mapping: BufferSlice | None,
    logits: BufferSlice,
    options: SamplingParams,
    label: str,
) -> list[Dispatch]:
    """All but the end."""
    need_floats(f"{label}: logits", logits, buffers.vocabulary)
    chain, several = _chain(options), slot_mapping is not None
    shared = {
        "all_params" if several else "params": buffers.params,
        "keys": buffers.keys,
        "group_tops": buffers.tops,
        "bins": buffers.bins,
    }
    if slot_mapping is not None:
        shared["slot_mapping"] = slot_mapping
    scores = {**shared, "logits": logits, "counts": buffers.counts, "bias": buffers.bias}
    if not several:
        scores["mask"] = buffers.mask
    search = {**shared, "searches": buffers.searches}
    *narrowing, last = (_stage(buffers, chain, index) for index in range(len(chain) + 1))
    grid = Grid(buffers.groups, 1, 1, 1 if several else None)
    width = {"WIDTH": buffers.vocabulary}
    first = _kernel(
        "sample_scores", buffers, {**width, "COUNTS": buffers.counts_stride}, rows=several
    )
    narrow = _kernel("sample_narrow", buffers, width, rows=several)
    race = _kernel("sample_race", buffers, width, rows=several)
    return [
        dispatch(first, scores, grid, f"{label}.scores"),
        *(dispatch(narrow, {**search, "stage": one}, grid, f"{label}.narrow") for one in narrowing),
        dispatch(race, {**search, "stage": last, "best": buffers.best}, grid, f"{label}.race"),
    ]


def set_tokens(buffers: SampleBuffers, label: str, sequence: int = 0) -> Dispatch:
    """Put the sparse list in `entries` where the counts of a sequence and the bias are kept."""
    what = kernel("sample_seed", constants={"WG": SEED_THREADS})
    counts = buffers.counts_of(sequence)
    operands = {"entries": buffers.entries, "counts": counts, "bias": buffers.bias}
    return dispatch(what, operands, Grid(-(-ENTRIES // SEED_THREADS)), label)


def _kernel(
    name: str, buffers: SampleBuffers, constants: dict[str, int], *, rows: bool = False
) -> Kernel:
    return kernel(
        name,
        variables={"GROUPS": buffers.groups, "STAGES": STAGES, "ROWS": rows},
        constants=constants,
        variant="rows" if rows else "",
    )


def chain_of(options: SamplingParams) -> tuple[bool, bool]:
    """Whether there is a search for top-k and for top-p: what launches depend on."""
    return bool(options.top_k), options.top_p is not None and options.top_p < 1


def _chain(options: SamplingParams) -> str:
    """The searches of these options, in order: k, p, kp or none."""
    keeps_count, keeps_share = chain_of(options)
    return "k" * LEVELS * keeps_count + "p" * LEVELS * keeps_share


CHAINS = ("", "k" * LEVELS, "p" * LEVELS, "k" * LEVELS + "p" * LEVELS)


def _stages() -> npt.NDArray[np.uint32]:
    """`Stage` of every step of every chain, the end included, one to `OFFSET_ALIGNMENT` bytes."""
    rows = np.zeros((sum(len(chain) + 1 for chain in CHAINS), OFFSET_ALIGNMENT // 4), np.uint32)
    steps = [(chain, index) for chain in CHAINS for index in range(len(chain) + 1)]
    for row, (chain, index) in zip(rows, steps, strict=True):
        own, before = chain[index : index + 1], chain[max(index - 1, 0) : index]
        row[:4] = [index, index % LEVELS, own == "p", before == "p"]
    return rows


def _stage(buffers: SampleBuffers, chain: str, index: int) -> BufferSlice:
    first = sum(len(other) + 1 for other in CHAINS[: CHAINS.index(chain)])
    return buffers.stages.range(OFFSET_ALIGNMENT * (first + index), 16)
