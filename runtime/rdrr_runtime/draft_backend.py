"""The interface of a backend that can load the draft head of its model (multi-token prediction).

The rest of what the engine asks of a backend is in `rdrr_runtime.backend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

F32 = npt.NDArray[np.float32]


class DraftHead(Protocol):
    """The draft head of a loaded model, with a cache of its own (multi-token prediction).

    Row r of a pass has slot base + r. It reads `ids[r]`, which is the token after that slot in the
    sequence, and the hidden state that the model has kept for the slot.

    Attributes:
        rows: Most rows of a call; the model keeps the hidden states of as many slots.
        seen: The sequence that its valid rows belong to, which has one token more than there are
            rows. It is kept here since a head serves many generations.
    """

    rows: int
    seen: list[int]

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run rows only to store their keys and values."""

    def logits(self, ids: Sequence[int], base: int) -> F32:
        """Return the logits after the last row, f32 [1, vocab]; the next row may follow it.

        The hidden state of the row after the last one is then that of the head itself.
        """

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run rows, feed back the most probable token of each pass, and return `count` new ids."""

    def close(self) -> None:
        """Free the memory of the head."""


@runtime_checkable
class DraftingBackend(Protocol):
    """A backend that can load the draft head of its model."""

    def draft_head(self, package: Package) -> DraftHead:
        """Load the draft head.

        Args:
            package: The package of the model, which has a head.

        Raises:
            ShardError: Bytes of a tensor are missing.
            DeviceError: There is too little memory.
        """

    def keep_hidden(self, *, keeps: bool) -> None:
        """Set whether the passes from now on keep their hidden states for the draft head."""
