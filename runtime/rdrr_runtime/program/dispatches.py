"""Dispatches of a program: a kernel, what it binds, and its workgroups."""

from __future__ import annotations

from rdrr_runtime.program.amounts import Amount, Count, Index, ProgramModel, Size


class Work(ProgramModel):
    """The workgroups of a phase, the only value that depends on the token rows of a pass.

    A phase runs if `above < rows <= up_to`. It has `items` workgroups, times one for each group of
    `per` of the first `most_rows` rows.

    Attributes:
        items: Workgroups that do not depend on rows.
        per: Rows that a workgroup processes; None if the number does not depend on them.
        most_rows: Rows that count; None for all.
        above: The phase is left out of passes with this number of rows or fewer.
        up_to: The phase is left out of passes with more rows; None for no limit.
    """

    items: Amount = 1
    per: Size | None = None
    most_rows: Size | None = None
    above: Count = 0
    up_to: Count | None = None


class Phase(ProgramModel):
    """A dispatch.

    Attributes:
        kernel: Index of the kernel.
        ranges: Index of the range of each binding.
        work: Its workgroups.
    """

    kernel: Index
    ranges: tuple[Index, ...]
    work: Work = Work()
