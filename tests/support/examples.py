"""How many random values the tests of properties try."""

from __future__ import annotations

from hypothesis import settings
from support.selected_tests import is_covering


def examples(count: int) -> settings:
    """Return the settings for `count` values, of which `make test` tries a quarter."""
    return settings(max_examples=count // 4 if is_covering() else count, deadline=None)
