"""Recognise an unchanged file from what the operating system records about it, without reading it.

Writing to a file changes its modification time, and replacing it changes its inode. The status
change time (ctime) is compared too, because programs cannot set it back.
"""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from pathlib import Path

CLOCK_TICK_NS = 50_000_000
"""Upper bound of the timestamp resolution of local file systems, in nanoseconds."""

COARSE_TICK_NS = 2_000_000_000
"""Upper bound of the resolution of file systems whose timestamps are whole seconds."""

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class FileState:
    """The identity, size and timestamps of a file at one moment.

    Attributes:
        device: Number of the file system that holds the file.
        inode: Number of the file within the file system.
        size: Size in bytes.
        modified_ns: When it was last written to, in nanoseconds.
        changed_ns: When its status last changed, in nanoseconds.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileState:
        """Return the state in a result of `os.stat`."""
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @classmethod
    def at(cls, path: Path) -> FileState:
        """Return the state of the file at a path.

        Raises:
            OSError: There is no file, or it cannot be accessed.
        """
        return cls.of(path.stat())

    def as_list(self) -> list[int]:
        """Return the state as a list of integers, for JSON."""
        return list(astuple(self))

    def is_settled(self, now_ns: int) -> bool:
        """Return whether a write after `now_ns` is certain to change the timestamps.

        A write within one tick of the file system's clock after the last one leaves them as they
        are.
        """
        latest = max(self.modified_ns, self.changed_ns)
        is_coarse = latest % _SECOND_NS == 0
        return now_ns - latest > (COARSE_TICK_NS if is_coarse else CLOCK_TICK_NS)
