"""What each test costs, as CPU time, which depends less on other work than elapsed time does.

With `RDRR_TEST_COSTS=FILE` every process of a run appends a line for each test: its name and the
seconds of CPU time of the process and of the children it waited for. `.ci/costs` compares the sums
of each file with `tests/budgets.toml`.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "RDRR_TEST_COSTS"


@contextmanager
def noting(test: str) -> Iterator[None]:
    """Note what the block costs, if the environment names a file for it."""
    file = os.environ.get(VARIABLE)
    if not file:
        yield
        return
    before = _seconds()
    yield
    # One write of a short line, so that lines of several processes do not mix.
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps([test, round(_seconds() - before, 2)]) + "\n")


def _seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
