"""Small HTML tables, which notebooks show in the place of an object's `repr`.

All text is escaped, by `html_text`, as in every HTML output. The tables have no style of their own:
notebooks bring theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rdrr_format.printing import printable


def facts_table(title: str, facts: Mapping[str, object]) -> str:
    """Return a table of two columns: the names of facts and their values.

    Args:
        title: Caption of the table.
        facts: Values by name; those that are None are left out.
    """
    rows = [(name, value) for name, value in facts.items() if value is not None]
    body = "".join(
        f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows
    )
    return f"<table><caption>{_cell(title)}</caption><tbody>{body}</tbody></table>"


def rows_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a head.

    Args:
        title: Caption of the table.
        columns: Names of the columns.
        rows: The cells of each row, as many as there are columns; None is an empty cell.
    """
    head = "".join(f"<th>{_cell(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{_cell(title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def html_text(value: object) -> str:
    """Return a value as text for an HTML page, with markup and unprintable characters escaped."""
    return escape(printable(str(value)))


def _cell(value: object) -> str:
    return "" if value is None else html_text(value)
