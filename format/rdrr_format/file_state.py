"""What the system tells of a file, by which it is known again without being read.

A file that is written to gets a new time, and one that is exchanged another inode. The time of the
last change of its status counts as well, since nobody can set that one back.
"""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from pathlib import Path

CLOCK_TICK_NS = 50_000_000
"""Nanoseconds between two times of a file that a local file system can tell apart, at most."""

COARSE_TICK_NS = 2_000_000_000
"""The same where a file system keeps whole seconds."""

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class FileState:
    """A file at one moment.

    Attributes:
        device: Number of the file system that it is in.
        inode: Its number there.
        size: Bytes.
        modified_ns: When it was last written to, in nanoseconds.
        changed_ns: When its status last changed, in nanoseconds.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        """Return the state that `os.stat` found."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @classmethod
    def at(cls, path: Path) -> FileState:
        """Return the state of the file at a path.

        Raises:
            OSError: There is none, or it cannot be looked at.
        """
        return cls.of(path.stat())

    def as_list(self) -> list[int]:
        """Return the numbers for JSON."""
        return list(astuple(self))

    def is_settled(self, now_ns: int) -> bool:
        """Whether a write after `now_ns` would surely give the file another time.

        A write within the same tick of the file system's clock would not.
        """
        latest = max(self.modified_ns, self.changed_ns)
        is_coarse = latest % _SECOND_NS == 0
        return now_ns - latest > (COARSE_TICK_NS if is_coarse else CLOCK_TICK_NS)
