"""The generation state on the GPU: the token rows of a pass, which sampling writes for the next.

The host writes nothing between tokens. Sampling stores the next row where the next pass reads it,
so one prepared pass can be replayed for every token. The state consists of these buffers:

    step   Step (snippets/step.wgsl), which `rdrr_runtime.records` packs: the number of token rows
           of this pass, the number of tokens sampled so far, the number n of last rows whose logits
           a window computes (last-n logits), and for each row its token id, its position (for
           rope), its sequence and its KV slot. A row attends to the slots of its sequence up to and
           including its own.
    ring   u32[n], a ring buffer of sampled ids; the id sampled in step s is ring[s mod n]
    segments  for models whose attention is not causal: Segment[rows] (snippets/segment.wgsl), the
           text that each row of a pass over packed texts belongs to
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice

from rdrr_runtime.records import SEGMENT, STEP_HEADER, STEP_ROW

HEADER_WORDS = STEP_HEADER.words
ROW_WORDS = STEP_ROW.words


@dataclass(frozen=True)
class State:
    """The buffers that carry the state of generation from pass to pass."""

    step: BufferSlice
    ring: BufferSlice
    segments: BufferSlice | None = None

    @staticmethod
    def create(arena: Arena, max_rows: int, ring: int = 64, *, packs_texts: bool = False) -> State:
        """Return zeroed state for passes of up to `max_rows` rows and a ring of `ring` ids.

        Args:
            arena: Owner of the buffers.
            max_rows: Most token rows of a pass.
            ring: Ids in the ring.
            packs_texts: Whether passes may run several texts, each of which is a segment.
        """
        words = HEADER_WORDS + ROW_WORDS * max_rows
        segments = arena.empty("segments", 4 * SEGMENT.words * max_rows) if packs_texts else None
        return State(arena.empty("step", 4 * words), arena.empty("ring", 4 * ring), segments)
