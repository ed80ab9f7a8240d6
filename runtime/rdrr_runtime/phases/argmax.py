"""Greedy sampling on the GPU: the id of the largest logit, ties to the lower id.

The id becomes the next input token and the step advances on the GPU, so a decoding loop writes
nothing from the CPU.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import AnySite

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.shaders import kernel

GROUPS = 64
SCRATCH_BYTES = 8 * GROUPS


def argmax(
    ctx: OpContext,
    logits: BufferSlice,
    scratch: BufferSlice,
    *,
    vocabulary: int,
    single_row: bool = False,
    label: str,
) -> list[Dispatch]:
    """Choose the next token and advance the step.

    tokens[0] and ring[step.ring mod n] become the id; then positions[0] = base = base + rows,
    rows = 1, ring = ring + 1.

    Args:
        ctx: Where it is lowered to.
        logits: f32 [rows, vocabulary]; the last row counts.
        scratch: At least `SCRATCH_BYTES` bytes.
        vocabulary: Logits in a row.
        single_row: The logits have one row, whatever the pass has.
        label: What the op is.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, (1 if single_row else ctx.max_rows) * vocabulary)
    need_floats(f"{label}: scratch", scratch, SCRATCH_BYTES // 4)
    state = ctx.state
    scan = kernel("argmax", constants={"WG": 256, "WIDTH": vocabulary, "SINGLE_ROW": single_row})
    return [
        dispatch(
            scan,
            {"current": state.step, "logits": logits, "best": scratch},
            Grid(GROUPS),
            label,
        ),
        *choose_best(ctx, scratch, GROUPS, label=f"{label}.finish"),
    ]


def choose_best(
    ctx: OpContext,
    best: BufferSlice,
    count: int,
    *,
    label: str,
    sites: tuple[AnySite, ...] = (),
) -> list[Dispatch]:
    """Make the best of some candidates the next token, and advance the step.

    Args:
        ctx: Where it is lowered to.
        best: (f32 value, u32 id) of each candidate.
        count: Candidates.
        label: What the op is.
        sites: What the candidates depend on.
    """
    state = ctx.state
    finish = kernel("argmax_finish", constants={"WG": 64, "COUNT": count})
    buffers = {
        "best": best,
        "current": state.step,
        "positions": state.positions,
        "tokens": state.tokens,
        "ring": state.ring,
    }
    return [dispatch(finish, buffers, Grid(), label, sites)]
