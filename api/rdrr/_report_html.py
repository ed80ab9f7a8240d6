"""A conversion report as one HTML page without scripts, fonts or requests to the network.

Positions and sizes in the figures are computed here; the template draws them as SVG.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rdrr_format.html_tables import html_text

from rdrr._report_plots import cost_plot, size_plot
from rdrr._report_view import Cell, ReportView, block_error, measurement_lines
from rdrr._units import format_size
from rdrr._usual_errors import usual_error

WIDTH = 960
"""Width of a figure in SVG units; figures shrink with the page."""

_ROW, _STRIPE, _AXIS = 22, 4, 18
_LETTER = 6.6
"""Average width of a letter of a label, in SVG units."""
_WIDEST_CELL = 44
_FAINTEST = 0.07
_LISTED = 20
_COLOURS = 8
"""Number of colours that the template has for storage types."""


@dataclass(frozen=True)
class Square:
    """A coloured cell of a grid; positions and sizes are in SVG units.

    Attributes:
        x: Left edge.
        y: Upper edge.
        width: Width.
        height: Height.
        strength: Opacity of the colour, 0 to 1.
        kind: Number of the colour of its storage type.
        title: Text that is shown while the pointer rests on the cell.
    """

    x: float
    y: float
    width: float
    height: float
    strength: float
    kind: int
    title: str


@dataclass(frozen=True)
class Label:
    """A text beside a figure."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Grid:
    """A heat map.

    Attributes:
        title: Heading.
        largest: The error that has the strongest colour, as text.
        width: Width of the whole figure in SVG units.
        height: Height of the whole figure in SVG units.
        squares: The cells.
        rows: Labels of the rows: names of parts.
        columns: Labels of the columns: numbers of layers.
    """

    title: str
    largest: str
    width: float
    height: float
    squares: tuple[Square, ...]
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]


@dataclass(frozen=True)
class Bar:
    """The segment of one storage type in the bar of bytes."""

    x: float
    width: float
    kind: int
    dtype: str
    title: str


def render(report: ReportView) -> str:
    """Return the page as HTML."""
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escaped,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": format_size, "percent": percent, "usual": usual_error}
    template = files("rdrr").joinpath("templates", "report.html").read_text(encoding="utf-8")
    kinds = {total.dtype: index % _COLOURS for index, total in enumerate(report.types)}
    return environment.from_string(template).render(
        view=report,
        report=report.report,
        measured=measurement_lines(report.report.measured),
        sizes=size_plot(report, WIDTH),
        costs=cost_plot(report, WIDTH),
        bars=_bars(report, kinds),
        kinds=kinds,
        used={cell.dtype for cell in report.cells},
        grids=_grids(report, kinds),
        worst=report.worst[:_LISTED],
        block_error=block_error,
        width=WIDTH,
        stripe=_STRIPE,
    )


def _escaped(value: object) -> object:
    """Return a text that the template writes as all HTML outputs write it."""
    from markupsafe import Markup

    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return Markup(html_text(value)) if is_text else value


def percent(error: float) -> str:
    """Return an error as a percentage with three digits; a dash if it is 0."""
    if not error:
        return "-"
    return f"{100 * error:#.3g} %" if error < 10 else f"{error:#.3g} ×"


def _bars(report: ReportView, kinds: dict[str, int]) -> tuple[Bar, ...]:
    bars: list[Bar] = []
    x = 0.0
    for total in report.types:
        width = total.share * WIDTH
        title = f"{total.dtype}: {format_size(total.bytes)}, {100 * total.share:.1f} %"
        bars.append(Bar(round(x, 2), round(width, 2), kinds[total.dtype], total.dtype, title))
        x += width
    return tuple(bars)


def _grids(report: ReportView, kinds: dict[str, int]) -> tuple[Grid, ...]:
    if not report.cells or not report.largest_error:
        return ()
    return (
        _grid("Error of the tensor", report, kinds, lambda cell: cell.error),
        _grid("Error of its worst block", report, kinds, lambda cell: cell.block_error),
    )


def _grid(
    title: str, report: ReportView, kinds: dict[str, int], measure: Callable[[Cell], float]
) -> Grid:
    largest = max(measure(cell) for cell in report.cells) or 1.0
    columns = {layer: index for index, layer in enumerate(report.layers)}
    rows = {part: index for index, part in enumerate(report.parts)}
    margin = 12 + _LETTER * max(len(_short(part)) for part in report.parts)
    step = min(_WIDEST_CELL, (WIDTH - margin) / len(columns))
    gap = 2 if step > 8 else 0.5
    squares = tuple(
        Square(
            x=round(margin + columns[cell.layer] * step, 2),
            y=rows[cell.part] * _ROW,
            width=round(step - gap, 2),
            height=_ROW - 2,
            strength=_strength(measure(cell) / largest),
            kind=kinds[cell.dtype],
            title=_title(cell),
        )
        for cell in report.cells
    )
    every = max(1, -(-len(columns) * 18 // (WIDTH - margin)))
    bottom = len(rows) * _ROW
    return Grid(
        title=title,
        largest=percent(largest),
        width=WIDTH,
        height=bottom + _AXIS,
        squares=squares,
        rows=tuple(
            Label(round(margin - 8, 2), rows[part] * _ROW + _ROW / 2, _short(part))
            for part in report.parts
        ),
        columns=tuple(
            Label(round(margin + index * step + (step - gap) / 2, 2), bottom + 13, str(layer))
            for layer, index in columns.items()
            if index % every == 0
        ),
    )


def _strength(share: float) -> float:
    """Return the opacity for an error relative to the largest; small errors stay visible."""
    return round(_FAINTEST + (1 - _FAINTEST) * share, 3) if share else 0.0


def _short(part: str) -> str:
    """Return the name of a part without its common prefix: `q_proj` for `self_attn.q_proj`."""
    for word in ("self_attn.", "mlp.", "block_sparse_moe."):
        part = part.removeprefix(word)
    return part


def _title(cell: Cell) -> str:
    tensor = cell.tensor
    lines = [tensor.name, f"{tensor.dtype} {tensor.layout}, {format_size(tensor.bytes)}"]
    if cell.tensors > 1:
        lines[0] += f" (the worst of {cell.tensors})"
    lines.append(f"error {percent(cell.error)}")
    if tensor.worst_block is not None:
        place = f"row {tensor.worst_block.row}, block {tensor.worst_block.block}"
        lines.append(f"worst block {percent(cell.block_error)} ({place})")
    return "\n".join(lines)
