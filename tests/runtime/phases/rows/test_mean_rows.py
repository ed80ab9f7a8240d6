"""Tests of the means of consecutive rows, which pool the hidden states of packed texts."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.errors import FormatError
from rdrr_runtime.packing import EncodedText, Segments, mean_of
from rdrr_runtime.phases.rows.mean_rows import MeanForm, mean_rows
from support.comparison import relative_error
from support.gpu import TOLERANCE, normal

LENGTHS = [1, 70, 3, 16]
PARTS = {"mean": slice(0, None), "without a prompt": slice(3, None), "cls": slice(0, 1)}


@pytest.mark.parametrize("part", [*PARTS.values(), slice(-1, None)], ids=[*PARTS, "last"])
def test_the_mean_of_a_part_of_each_text_is_taken(bench, rng, part) -> None:
    segments = Segments.of([EncodedText([0] * length) for length in LENGTHS])
    x = normal(rng, sum(LENGTHS), 132)
    ctx = bench.context(len(x))
    ranges = bench.upload(segments.ranges(part).view(np.float32))
    y = bench.poisoned(len(LENGTHS), 132)
    phases = mean_rows(ctx, ranges, bench.upload(x), y, MeanForm(132), "t")
    bench.run(phases, len(LENGTHS))
    expected = np.stack([mean_of(rows[part]) for rows in segments.split(x)])
    assert relative_error(bench.download(y, len(LENGTHS), 132), expected) < TOLERANCE


def test_a_width_that_is_not_a_multiple_of_4_is_refused(bench) -> None:
    x, ctx = bench.poisoned(4, 132), bench.context(4)
    assert mean_rows(ctx, x, x, x, MeanForm(132), "t")
    with pytest.raises(FormatError, match="width"):
        mean_rows(ctx, x, x, x, MeanForm(130), "t")
