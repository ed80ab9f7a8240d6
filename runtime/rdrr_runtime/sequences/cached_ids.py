"""Which ids the key-value cache holds, and which of them stay when it is full.

Both are plain lists of ids: what the cache holds beyond them is never read, see
`rdrr_runtime.backend`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_format.options import check_count


class CachedIds:
    """The ids whose keys and values are in the cache, from slot 0 on."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def reuse(self, ids: Sequence[int]) -> int:
        """How many of `ids` need not be run again; the cache is taken to hold only these now.

        The last of `ids` always runs, because its logits are wanted.
        """
        common = min(self.shared(ids), len(ids) - 1)
        del self.ids[common:]
        return common

    def shared(self, ids: Sequence[int]) -> int:
        """How many of the first `ids` the cache holds."""
        limit = min(len(self.ids), len(ids))
        return next((at for at in range(limit) if self.ids[at] != ids[at]), limit)

    def extend(self, ids: Sequence[int]) -> None:
        """Take the cache to hold `ids`, which begin with what it held before."""
        self.ids += ids[len(self.ids) :]


def check_keep(keep: int, context: int) -> None:
    """Check how many first ids a shift keeps.

    Raises:
        UsageError: Not between 0 and half of the context.
    """
    check_count("context_shift", keep, minimum=0, maximum=context // 2)


def shift_context(ids: Sequence[int], keep: int, context: int) -> tuple[list[int], list[int]]:
    """The ids that stay where there are more than the context holds, and those that go.

    The first `keep` stay. Of the others the oldest half goes, again if need be.
    """
    gone: list[int] = []
    left = list(ids)
    while len(left) > context:
        end = keep + -(-(len(left) - keep) // 2)
        gone += left[keep:end]
        del left[keep:end]
    return left, gone
