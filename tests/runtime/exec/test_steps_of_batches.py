"""Steps of several sequences in one dispatch choose the tokens of steps launched phase by phase."""

from __future__ import annotations

from contextlib import closing, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import SOURCES, resolve
from rdrr_runtime.exec.persistent import limits
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.persistent.linking import WAITS
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.context import Grid
from support.comparison import relative_error
from support.packages import SMALL, llama_manifest, write_random_package
from support.seeds import generator_of

PROMPT = (5, 9, 1, 7, 20)
ONE = Persistence((Grid(128, 1),), "a test asks for it", polls=1000)
TOKENS = 12
INT8 = resolve({SOURCES[0]: {"q4kMatmul": "fused_q4k_int8"}})


@pytest.fixture(scope="module")
def in_blocks(request, tmp_path_factory):
    """A package all of whose products are in int8, where a hint asks for it."""
    folder, manifest = tmp_path_factory.mktemp("blocks"), llama_manifest(**SMALL, embedding="Q4_K")
    return write_random_package(folder, manifest, generator_of(request))


def _steps_of_a_batch(package, device, persistence, sequences, rows):
    """Return ids of some sequences of a batch, the dispatches of a step, and the next logits.

    The logits say what the steps have left in the caches.
    """
    with closing(
        GpuBackend(package, context=64, device=device, persistence=persistence, policy=INT8)
    ) as backend:
        batch = backend.batch(sequences, 64)
        batch.fill([Row(id_ + row, row, at) for at, id_ in enumerate(PROMPT) for row in rows])
        first = [Row(3 + row, row, len(PROMPT)) for row in rows]
        batch.greedy(first, 1)
        before = device.counters.copy()
        ids = batch.greedy(first, TOKENS)
        steps = device.counters.since(before).dispatches / TOKENS
        logits = batch.logits(
            [Row(ids[at][-1], row, len(PROMPT) + TOKENS) for at, row in enumerate(rows)]
        )
        return ids, steps, logits


@pytest.mark.parametrize(
    ("sequences", "rows"),
    [
        (4, (0, 1, 3)),
        pytest.param(2, (0, 1), marks=pytest.mark.thorough),
        pytest.param(8, (0, 1, 2, 4, 7), marks=pytest.mark.thorough),
        pytest.param(8, tuple(range(8)), marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_a_step_of_a_batch_is_one_dispatch_and_its_picks(in_blocks, device, sequences, rows):
    expected, launched, logits = _steps_of_a_batch(in_blocks, device, None, sequences, rows)
    ids, steps, after = _steps_of_a_batch(in_blocks, device, ONE, sequences, rows)
    assert ids == expected
    assert relative_error(after, logits) < 1e-3
    assert (steps, launched) == (4, 13)  # behind the one are the argmax in two, and the advance


@pytest.mark.parametrize(
    ("rows", "aliased", "why"),
    [
        (limits.MOST_ROWS + 1, True, "9 rows, more than 8"),
        (2, False, "longer than dispatches"),  # words are atomic there
    ],
)
def test_a_step_stays_dispatches_where_one_does_not_pay(rows, aliased, why):
    device = SimpleNamespace(info=SimpleNamespace(aliased_writes=aliased))
    with pytest.raises(UnlinkableError, match=why):
        limits.check_rows(SimpleNamespace(rows=rows, linkable=()), device)
    limits.check_rows(SimpleNamespace(rows=1, linkable=()), device)


@pytest.mark.parametrize(("rows", "waits", "refused"), [(2, 1, True), (2, 0, False), (1, 1, False)])
def test_steps_of_several_rows_leave_no_values_in_memory(rows, waits, refused):
    table = np.zeros((3, WAITS + 1), np.uint32)
    table[:waits, WAITS] = 1
    expected = pytest.raises(UnlinkableError, match="wait") if refused else nullcontext()
    with expected:
        limits.check_waits(SimpleNamespace(rows=rows), SimpleNamespace(table=table))
