"""The filters and methods that chat templates may use, and the cost checks of those that need one.

Most of them read their arguments once and create something about as large; these need no check of
their own. A filter or method that can create more, through a width, a count or a separator, has a
function that charges the budget for the result before the call runs. Whatever is not in these
tables is not available to templates: regular expressions over whole texts (`urlize`, `striptags`,
`wordwrap`), random choice, and methods that no template needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2.exceptions import SecurityError

from rdrr_runtime.text.template_budget import (
    COMPARISONS_PER_STEP,
    NODES_PER_STEP,
    TemplateBudget,
)

MAX_INDENT = 16
"""Most characters of an indent or a separator of `tojson`."""

MAX_ROUND_DIGITS = 64
"""Most digits that `round` keeps."""

_NUMBER = re.compile(r"\d+")
_UNUSUAL_FIELD = re.compile(r"\{[^{}]*\{|\{[^{}:!]*[.\[]")
"""A field of `str.format` that contains another one, or an attribute or item of its argument."""

CostCheck = Callable[[TemplateBudget, Sequence[Any], Mapping[str, Any]], None]
"""A function that charges a call to the budget before the call runs.

Its arguments are the budget, the positional arguments of the call (the filtered value or the
method's owner first) and the keyword arguments of the call.
"""


def _argument(
    args: Sequence[Any], named: Mapping[str, Any], at: int, name: str, default: Any
) -> Any:
    return args[at] if len(args) > at else named.get(name, default)


def _absolute_integer(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 1


def _check_padding(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    budget.check_size(_absolute_integer(_argument(args, named, 1, "width", 80)))


def _check_indent(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    width = _argument(args, named, 1, "width", 4)
    lines = len(args[0].splitlines()) if isinstance(args[0], str) else 0
    each = len(width) if isinstance(width, str) else _absolute_integer(width)
    budget.check_size(budget.size(args[0]) + (1 + lines) * each)


def _check_join(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    between = budget.size(_argument(args, named, 1, "d", ""))
    budget.check_size(budget.size(args[0]) + _length(args[0]) * between)


def _check_join_method(
    budget: TemplateBudget, args: Sequence[Any], _named: Mapping[str, Any]
) -> None:
    between, parts = args[0], args[1] if len(args) > 1 else ()
    budget.check_size(budget.size(parts) + _length(parts) * budget.size(between))


def _check_replace(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    text, old = args[0], _argument(args, named, 1, "old", "")
    new = _argument(args, named, 2, "new", "")
    if not isinstance(text, str) or not isinstance(old, str):
        raise SecurityError("replace takes strings")
    budget.charge_search(text, old)  # for counting, and again for replacing
    budget.charge_search(text, old)
    budget.check_size(budget.size(text) + text.count(old) * budget.size(new))


def check_format(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Check the result of a format string, which can name any width and repeat its arguments.

    Raises:
        SecurityError: The format string takes a width from its arguments or reads their
            attributes, or an argument is not plain.
        GenerationError: The result may be too large.
    """
    template = args[0]
    if (
        not isinstance(template, str)
        or "%*" in template
        or ".*" in template
        or _UNUSUAL_FIELD.search(template)
    ):
        raise SecurityError("a format string must be a string with literal widths")
    budget.charge(len(template))
    budget.check_plain(*args[1:], *named.values())
    fields = template.count("%") + template.count("{")
    largest = max([0, *map(budget.size, (*args[1:], *named.values()))])
    budget.check_size(len(template) + fields * largest)
    for digits in _NUMBER.findall(template):
        budget.check_size(int(digits[:10]) * fields)


def _check_batch(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    count = _absolute_integer(_argument(args, named, 1, "linecount", 1))
    budget.check_size((1 + count) * budget.size(_argument(args, named, 2, "fill_with", None)))
    budget.charge(steps=count)


def _check_slice(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    budget.charge(steps=_absolute_integer(_argument(args, named, 1, "slices", 1)))


def _check_round(_budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    if _absolute_integer(_argument(args, named, 1, "precision", 0)) > MAX_ROUND_DIGITS:
        raise SecurityError(f"round takes at most {MAX_ROUND_DIGITS} digits")


def _check_sort(budget: TemplateBudget, args: Sequence[Any], _named: Mapping[str, Any]) -> None:
    count = _length(args[0])
    budget.charge(budget.size(args[0]) * count.bit_length(), steps=count)


def _check_sum(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    start = _argument(args, named, 2, "start", 0)
    values = (*args[0], start) if isinstance(args[0], (list, tuple)) else ()
    if any(isinstance(name, (list, tuple)) for name in values):  # every partial sum is a copy
        budget.charge(budget.size(values) * len(values))


def _check_tojson(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    indent = _argument(args, named, 2, "indent", None) or 0
    each = len(indent) if isinstance(indent, str) else _absolute_integer(indent)
    separators = _argument(args, named, 3, "separators", None) or ()
    if max([each, *map(_length, separators)]) > MAX_INDENT:
        raise SecurityError(
            f"tojson takes indents and separators of at most {MAX_INDENT} characters"
        )
    size = budget.size(args[0])
    budget.check_size(size + size // MAX_INDENT * budget.depth(args[0]) * each)


def _check_unique(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    _check_sort(budget, args, named)
    if not all(map(_has_good_hash, args[0] if isinstance(args[0], (list, tuple)) else ())):
        budget.charge(steps=len(args[0]) ** 2 // NODES_PER_STEP)


def _has_good_hash(value: Any) -> bool:
    """Return whether a template cannot choose many values of this kind that have the same hash."""
    return isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 1 << 61)


def _check_found(budget: TemplateBudget, args: Sequence[Any], _named: Mapping[str, Any]) -> None:
    budget.charge_search(args[0], args[1] if len(args) > 1 else None)


def _check_found_last(
    budget: TemplateBudget, args: Sequence[Any], _named: Mapping[str, Any]
) -> None:
    budget.charge_search(args[0], args[1] if len(args) > 1 else None, is_reverse=True)


def _check_strip(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    characters = _argument(args, named, 1, "chars", "")
    if isinstance(args[0], str) and isinstance(characters, str):
        budget.charge(steps=len(args[0]) * len(characters) // COMPARISONS_PER_STEP)


def check_contains(budget: TemplateBudget, args: Sequence[Any], _named: Mapping[str, Any]) -> None:
    """Charge the search of the test `in`, whose first argument is looked for in the second."""
    if len(args) > 1:
        budget.charge_search(args[1], args[0])


def _check_split_at(budget: TemplateBudget, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    _check_split(budget, args, named)
    separator = _argument(args, named, 1, "sep", None)
    budget.charge_search(args[0], separator, is_reverse=True)


def _check_split(budget: TemplateBudget, args: Sequence[Any], _named: Mapping[str, Any]) -> None:
    budget.charge(steps=_length(args[0]) // 4)


def _table(unchecked: str, checks: Mapping[str, CostCheck]) -> Mapping[str, CostCheck | None]:
    """Return a table of names with their cost checks; None for those that need no check."""
    return MappingProxyType({**dict.fromkeys(unchecked.split()), **checks})


FILTERS = _table(
    "abs attr capitalize count d default e escape filesizeformat first float forceescape "
    "int items last length list lower map reject rejectattr reverse safe select selectattr string "
    "title truncate upper urlencode wordcount",
    {
        "batch": _check_batch,
        "center": _check_padding,
        "dictsort": _check_sort,
        "format": check_format,
        "groupby": _check_sort,
        "indent": _check_indent,
        "join": _check_join,
        "max": _check_sort,
        "min": _check_sort,
        "replace": _check_replace,
        "round": _check_round,
        "slice": _check_slice,
        "sort": _check_sort,
        "sum": _check_sum,
        "title": _check_split,
        "tojson": _check_tojson,
        "trim": _check_strip,
        "unique": _check_unique,
        "wordcount": _check_split,
    },
)
"""The filters that templates may use, each with its cost check; None if it needs none."""

CONSTANT_COST_FILTERS = frozenset(
    {"attr", "count", "d", "default", "first", "items", "last", "length"}
)
"""Filters whose cost does not depend on the size of their input; they select, and write no text."""

METHODS: Mapping[type, Mapping[str, CostCheck | None]] = MappingProxyType(
    {
        str: _table(
            "capitalize casefold endswith isalnum isalpha isascii isdecimal "
            "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper lower "
            "removeprefix removesuffix startswith swapcase title upper",
            {
                "center": _check_padding,
                **dict.fromkeys(("count", "find", "index", "partition"), _check_found),
                **dict.fromkeys(("rfind", "rindex", "rpartition"), _check_found_last),
                **dict.fromkeys(("strip", "lstrip", "rstrip"), _check_strip),
                "format": check_format,
                "join": _check_join_method,
                "ljust": _check_padding,
                "replace": _check_replace,
                "rjust": _check_padding,
                "rsplit": _check_split_at,
                "split": _check_split_at,
                "splitlines": _check_split,
                "zfill": _check_padding,
            },
        ),
        dict: _table("copy get items keys values", {}),
        list: _table("copy count index", {}),
        tuple: _table("count index", {}),
    }
)
"""The methods that templates may call on plain values, by type, each with its cost check."""

CONSTANT_COST_METHODS = frozenset({"get", "items", "keys", "values"})
"""Methods whose cost does not depend on the size of their object; they select, as those filters."""
