"""The end of sampling: the best candidate becomes the next token, and a single sequence moves on.

The id becomes the next input token on the GPU, so a decoding loop writes nothing from the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class ChooseBest(Record):
    """Parameters of choose_best.wgsl.

    Attributes:
        sampled: Whether counts and parameters of a sampler are kept up.
        advances: Whether the only row's token goes into the step, rather than into picks.
        candidates: Candidates of a row.
        ring: Ids that the ring holds, where the step advances.
        counts_stride: Words of a sequence's counts, where they are kept up.
    """

    shader = "choose_best"

    sampled: bool = choice()
    advances: bool = choice()
    candidates: int
    ring: int | None = None
    counts_stride: int | None = None


def choose_best(
    ctx: OpContext,
    best: BufferSlice,
    count: int,
    *,
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> list[Phase]:
    """Make the best of some candidates the next token, and advance the step.

    The id goes into the ring; the step's only row is then the one after the last of this pass.

    Args:
        ctx: Where it is lowered to.
        best: (f32 value, u32 id) of each candidate.
        count: Candidates.
        label: What the op is.
        tuning_keys: What the candidates depend on.
    """
    state = ctx.state
    record = ChooseBest(
        threads=THREADS,
        sampled=False,
        advances=True,
        candidates=count,
        ring=state.ring.size // 4,
    )
    buffers = {"best": best, "current": state.step, "ring": state.ring}
    return [Phase(record, buffers, Work(), label, tuning_keys)]
