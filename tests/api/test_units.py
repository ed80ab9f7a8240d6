from __future__ import annotations

import pytest
from rdrr._units import format_size
from rdrr_format.errors import UsageError
from rdrr_format.options import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("4096", 4096), ("10kb", 10_000), ("7 B", 7)],
)
def test_a_size_is_read_in_every_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "0", "64 MB/s", "1e9", "4 parsecs"])
def test_what_is_not_a_size_is_wrong_usage(text):
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (64 << 20, "64.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_a_size_is_shown_in_the_unit_that_fits(size, text):
    assert format_size(size) == text


def test_what_is_shown_is_read_back_as_the_same_size():
    assert parse_size(format_size(37 << 20)) == 37 << 20
