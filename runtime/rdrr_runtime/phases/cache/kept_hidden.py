"""Hidden states of the latest slots, which the passes of a model keep and its draft head reads.

The buffer is a ring: the state of slot s is row s mod `slots`. A draft head keeps the states of its
own passes one slot ahead, where its next pass reads them, so that it can propose several tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True)
class KeptHidden:
    """A buffer of hidden states.

    Attributes:
        buffer: [slots, width], of the type of activations.
        slots: Number of slots, at least the rows of the largest pass.
        width: Elements of a hidden state, a multiple of 4.
        ahead: How many slots later a pass keeps a state than the slot of its row.
    """

    buffer: BufferSlice
    slots: int
    width: int
    ahead: int = 0


@dataclass(frozen=True, kw_only=True)
class RecallRecord(Record):
    """Parameters of recall.wgsl.

    Attributes:
        slots: Slots of the ring.
        width: Elements of a row.
    """

    shader = "cache/recall"

    value: str = choice()
    slots: int
    width: int


@dataclass(frozen=True, kw_only=True)
class KeepHiddenRecord(Record):
    """Parameters of keep_hidden.wgsl.

    Attributes:
        slots: Slots of the ring.
        ahead: Added to the slot of each row.
        width: Elements of a row.
    """

    shader = "cache/keep_hidden"

    value: str = choice()
    slots: int
    ahead: int
    width: int


def recall(ctx: OpContext, kept: KeptHidden, y: BufferSlice, *, label: str) -> list[Phase]:
    """Copy the kept states of the slots of a pass, y[r, :] = kept[slot[r] mod slots, :].

    Args:
        ctx: Lowering context.
        kept: The states.
        y: [rows, width].
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support the width, or a buffer is too small.
    """
    _check(ctx, kept, y, label)
    record = RecallRecord(threads=THREADS, value=ctx.values, slots=kept.slots, width=kept.width)
    buffers = {"current": ctx.state.step, "kept": kept.buffer, "y": y}
    return [Phase(record, buffers, _work(kept), label)]


def keep_hidden(ctx: OpContext, kept: KeptHidden, x: BufferSlice, *, label: str) -> list[Phase]:
    """Keep the rows of a pass, kept[(slot[r] + ahead) mod slots, :] = x[r, :].

    Args:
        ctx: Lowering context.
        kept: The states.
        x: [rows, width].
        label: Name for messages and profiles.

    Raises:
        FormatError: The kernel does not support the width, a buffer is too small, or the pass has
            more rows than there are slots.
    """
    _check(ctx, kept, x, label)
    if ctx.max_rows > kept.slots:
        raise FormatError(
            "the pass has more rows than hidden states are kept",
            where=label,
            expected=f"at most {kept.slots}",
            found=ctx.max_rows,
        )
    record = KeepHiddenRecord(
        threads=THREADS, value=ctx.values, slots=kept.slots, ahead=kept.ahead, width=kept.width
    )
    buffers = {"current": ctx.state.step, "x": x, "kept": kept.buffer}
    return [Phase(record, buffers, _work(kept), label)]


def _check(ctx: OpContext, kept: KeptHidden, rows: BufferSlice, label: str) -> None:
    need_multiple(f"{label}: hidden state", kept.width, 4)
    ctx.need_values(f"{label}: kept", kept.buffer, kept.slots * kept.width)
    ctx.need_values(f"{label}: rows", rows, ctx.max_rows * kept.width)


def _work(kept: KeptHidden) -> Work:
    return Work(-(-kept.width // (4 * THREADS)), 1)
