"""Tests of the buffers of intermediate values."""

from __future__ import annotations

from collections import Counter

from rdrr_runtime.compile.lowering.values import Values, Workspace
from support.gpu import Bench


def test_a_new_value_gets_the_first_free_buffer_whichever_became_free_last(bench: Bench) -> None:
    readers = Counter(dict.fromkeys(("a", "b", "c", "d", "e"), 1))
    values = Values(Workspace(bench.arena, 1), readers)
    first, second, third = (values.allocate(name, 64) for name in ("a", "b", "c"))
    assert len({value.buffer for value in (first, second, third)}) == 3
    values.mark_read("a")
    values.mark_read("c")
    assert values.allocate("d", 64).buffer is first.buffer
    assert values.allocate("e", 64).buffer is third.buffer
