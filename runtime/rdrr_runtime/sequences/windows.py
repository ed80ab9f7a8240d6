"""Window and score passes: several tokens of the single sequence, whose logits the host reads.

Window passes serve strategies that propose several tokens. They read each weight once for up to 32
rows, each row has its own position, and logits are computed only for the last rows. More than 32
rows run in several passes. A score pass computes the logits of all its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import UsageError

from rdrr_runtime.compile.pass_spec import SCORE, SMALL_WINDOW, WINDOW
from rdrr_runtime.exec.executor import Prepared
from rdrr_runtime.exec.prepared import PreparedPass, PreparedPasses
from rdrr_runtime.phases.sampling.argmax_entropy import PICK_BYTES, unpack
from rdrr_runtime.sequences.gpu_sequences import GpuSequences

F32 = npt.NDArray[np.float32]


class GpuWindows:
    """The passes `SMALL_WINDOW`, `WINDOW` and `SCORE` of a plan.

    Args:
        sequence: The single sequence, whose step the passes read.
        prepared: The passes.
    """

    def __init__(self, sequence: GpuSequences, prepared: PreparedPasses) -> None:
        self._executor = prepared.executor
        self._sequence, self._step = sequence, sequence.step
        self._position = sequence.position
        self._prepared = prepared

    def score(self, ids: Sequence[int], base: int) -> F32:
        """Return the logits of all rows, f32 [len(ids), vocab]."""
        prepared = self._prepared.get(SCORE)
        self._position.begin(base)
        self._position.advance(len(ids))
        out = np.empty((len(ids), self._sequence.vocabulary), np.float32)
        for start in range(0, len(ids), prepared.rows):
            part = ids[start : start + prepared.rows]
            self._step.write(part, base + start)
            self._executor.run(prepared.to_logits, len(part))
            out[start : start + len(part)] = self._sequence.read_logits(prepared, len(part))
        return out

    def logits(
        self, ids: Sequence[int], base: int, last_n: int, positions: Sequence[int] | None
    ) -> F32:
        """Return the logits of the last `last_n` rows, see `Backend.window_logits`."""
        parts = [np.empty((0, self._sequence.vocabulary), np.float32)]
        for prepared, rows in self._passes(ids, base, last_n, positions):
            self._executor.run(prepared.head, rows)
            parts.append(self._sequence.read_logits(prepared, rows))
        return np.concatenate(parts)

    def picks(
        self, ids: Sequence[int], base: int, last_n: int, positions: Sequence[int] | None
    ) -> tuple[list[int], F32]:
        """Return most probable ids and entropies of the last rows, see `Backend.window_picks`.

        Raises:
            GenerationError: The logits of a row are not finite.
        """
        token_ids: list[int] = []
        entropies = [np.empty(0, np.float32)]
        for prepared, rows in self._passes(ids, base, last_n, positions):
            assert prepared.picks is not None, "window passes have picks"
            self._executor.run(prepared.to_picks, rows)
            some, entropy = unpack(self._executor.device.read(prepared.picks, 0, PICK_BYTES * rows))
            self._sequence.faults.check_ids(some)
            token_ids += some
            entropies.append(entropy)
        return token_ids, np.concatenate(entropies)

    def _passes(
        self, ids: Sequence[int], base: int, last_n: int, positions: Sequence[int] | None
    ) -> Iterator[tuple[PreparedPass, int]]:
        """Run the bodies in order; yield each pass with some of the last n rows, and how many."""
        if positions is None and (first := min(self._step.behind_images(ids), len(ids) - last_n)):
            # Prompts run in longer passes, and some images must run in one.
            self._sequence.run(ids[:first], base, _body)
            ids, base = ids[first:], base + first
        prepared = self._prepared.get(SMALL_WINDOW if len(ids) <= SMALL_WINDOW.rows else WINDOW)
        self._position.begin(base)
        for start, end in self._parts(len(ids), last_n, prepared.rows):
            part = ids[start:end]
            slots = None if positions is None else positions[start:end]
            rows = max(0, min(len(part), end - (len(ids) - last_n)))
            self._step.write(part, base + start, slots, last_n=rows)
            self._executor.run(prepared.body, len(part))
            self._position.advance(len(part) - max(rows - 1, 0))
            if rows:
                yield prepared, rows
        if len(ids) > 1 and last_n <= 1:
            self._position.keep()

    def _parts(self, count: int, last_n: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield the rows of each pass, from the first to behind the last.

        A pass takes states only up to the first of its last n rows, so all of these share a pass
        where there are states.

        Raises:
            UsageError: They do not fit.
        """
        last = 0
        if self._position.has_states and count > most and last_n > 1:
            last = last_n
        if last > most:
            raise UsageError(
                "too many draft tokens for a model with recurrent states",
                expected=f"at most {most - 1}",
                found=last_n - 1,
            )
        for start in range(0, count - last, most):
            yield start, min(start + most, count - last)
        if last:
            yield count - last, count


def _body(prepared: PreparedPass) -> Prepared:
    return prepared.body
