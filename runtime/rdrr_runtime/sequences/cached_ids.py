"""The ids in the key-value cache, and the ids that a context shift keeps.

Both are plain lists of ids. Entries of the cache beyond them are never read, see
`rdrr_runtime.backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rdrr_format.options import check_count


class CachedIds:
    """The ids whose keys and values are in the cache, in slot order from slot 0."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def reuse(self, ids: Sequence[int], resumable: Callable[[int], int] = int) -> int:
        """Return how many leading `ids` need not run again, and forget all other cached ids.

        The last of `ids` always runs, because its logits are needed.

        Args:
            ids: Ids of the sequence.
            resumable: Returns the last position up to a given one at which a pass may begin.
        """
        common = resumable(min(self.shared(ids), len(ids) - 1))
        del self.ids[common:]
        return common

    def shared(self, ids: Sequence[int]) -> int:
        """Return how many leading `ids` the cache holds."""
        limit = min(len(self.ids), len(ids))
        return next((at for at in range(limit) if self.ids[at] != ids[at]), limit)

    def extend(self, ids: Sequence[int]) -> None:
        """Note that the cache now holds `ids`, which begin with the ids that it held before."""
        self.ids += ids[len(self.ids) :]


def check_keep(keep: int, context: int) -> None:
    """Check the number of first ids that a context shift keeps.

    Raises:
        UsageError: It is not between 0 and half of the context.
    """
    check_count("context_shift", keep, minimum=0, maximum=context // 2)


def shift_context(ids: Sequence[int], keep: int, context: int) -> tuple[list[int], list[int]]:
    """Return the ids that a context shift keeps and the ids that it drops.

    The first `keep` ids stay. Of the others the older half is dropped, repeatedly until the rest
    fits the context.
    """
    dropped: list[int] = []
    kept = list(ids)
    while len(kept) > context:
        end = keep + -(-(len(kept) - keep) // 2)
        dropped += kept[keep:end]
        del kept[keep:end]
    return kept, dropped
