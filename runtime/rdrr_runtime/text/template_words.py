"""The words for the kinds of values of a chat template, which messages use instead of classes.

A value is plain if it is written as what it is: text, numbers, null, an undefined value, and lists
and dictionaries of these. All others, such as functions and namespaces, are written by Python with
the names of classes and with addresses, and a template must not write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from jinja2 import Undefined
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference
from jinja2.utils import Cycler, Joiner, Namespace
from markupsafe import Markup

LAZY: tuple[type, ...] = (Iterator, AbstractSet, range, type({}.values()))
"""Iterators, ranges and views of dictionaries, which do not hold their items themselves."""

PLAIN = (str, int, float, type(None), Undefined)
"""Plain values apart from lists and dictionaries."""

_WORDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Markup, "an escaped text"),
    (str, "a text"),
    ((int, float), "a number"),
    ((list, tuple), "a list"),
    (dict, "a dictionary"),
    (type(None), "null"),
    (Undefined, "an undefined value"),
    (LoopContext, "a loop"),
    (Cycler, "a cycler"),
    (LAZY, "an iterator"),
    (Macro, "a macro"),
    (BlockReference, "a block"),
    (Joiner, "a joiner"),
    (Namespace, "a namespace"),
    (TemplateReference, "a template"),
)


def word_for(value: Any) -> str:
    """Return what a value is, with its article."""
    otherwise = "a function" if callable(value) else "a value"
    return next((word for kind, word in _WORDS if isinstance(value, kind)), otherwise)
