"""The down projection that a gated product with one row multiplies its outputs by.

Each item multiplies the gated pairs that it has computed by their columns of the down projection,
and adds the products to those of the other items in fixed point (snippets/fixed_point.wgsl), so
that their order does not matter. That saves the phase which waits for all pairs. An item needs a
few inputs of every output, so the units of a quantized matrix must lie first (see
`rdrr_runtime.phases.weights.formats`).

The scales of a column-major matrix belong to groups of outputs, so an item multiplies its pairs by
the scales of each group before any of them, and stages these products. Small batches and prompts
read a copy of such a matrix that was rounded to rows (requantize.py), in whatever order it lies.
"""

from __future__ import annotations

from rdrr_device.buffers import align

from rdrr_runtime.phases.weights.checks import unreadable_reason
from rdrr_runtime.phases.weights.formats import HALF, UNIT
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

MOST_INPUTS = 112 * UNIT
"""Most inputs of a quantized down projection. On an H200 a token takes 9 % less with 48 units, and
6 % less with 108. With 128 units it would be 2 to 3 %, and steps of 8 rows would take 5 % more."""

COLUMN_PAIRS = (64, 32, 16)
"""Gated pairs that an item may have with column-major matrices."""

ENOUGH_ITEMS = 96
"""Items that keep a device busy, with as many pairs each as that allows. On an H200 a token of
llama-1b takes 6 % less with 128 items of 64 pairs and 3 % less with 256 of 32; one of qwen3-0.6b
10 % less with 96 items of 32, 2 to 8 % less with 192 of 16, and nothing less with 48 of 64."""

MOST_COLUMN_INPUTS = 240 * UNIT
"""Most inputs of a column-major down projection; only the range of the sums limits it. A token of
llama-8b, with 224 units, takes as long as in two phases, and no other pass pays for the order."""

MOST_UNQUANTIZED_BYTES = 4 << 20
"""Most bytes of an unquantized down projection. Its rows lie one after the other, so each item
reads as many lines of the cache as there are rows: SmolLM takes 5 % less so, llama-1b 5 % more."""

MOST_ITEMS = 1000
"""Most items whose products are added up without overflow."""

PAIRS = HALF
"""Most gated pairs of an item: half a unit of codes."""

FEWEST_PAIRS = 16
"""Fewest gated pairs of an item, with unquantized matrices."""

MOST_AT_ONCE = 4
"""Most outputs of the down projection that a thread computes at a time."""


def refusal(gated: tuple[GpuWeight, ...], down: GpuWeight) -> str | None:
    """Return why a gated product cannot multiply its outputs by a down projection, or None.

    Args:
        gated: The matrices of gate and up, which the kernel of one row can multiply.
        down: The down projection.
    """
    quantized = not down.form.values
    if quantized is bool(gated[0].form.values):
        return "only some of its matrices are quantized"
    if gated[0].by_column is not down.by_column:
        return "only some of its matrices are column-major"
    if quantized and not down.form.units_first:
        return "the units of the down projection lie row by row"
    if down.k % UNIT or down.k > MOST_ITEMS * FEWEST_PAIRS:
        limit = f"a multiple of {UNIT} up to {MOST_ITEMS * FEWEST_PAIRS}"
        return f"the down projection has {down.k} inputs, not {limit}"
    if down.n % 4:
        return f"the down projection has {down.n} outputs, not a multiple of 4"
    if not quantized and down.size > MOST_UNQUANTIZED_BYTES:
        return f"the down projection is unquantized and has {down.size} bytes"
    return unreadable_reason(down, int8=quantized)


def has_units_first(inputs: int, *, column: bool) -> bool:
    """Return whether a down projection is stored with its units first if its format can have that.

    Args:
        inputs: Its inputs.
        column: Whether it is column-major.
    """
    return inputs <= (MOST_COLUMN_INPUTS if column else MOST_INPUTS)


def column_pairs(inputs: int) -> int:
    """Return the gated pairs of an item for a column-major down projection with these inputs."""
    enough = (pairs for pairs in COLUMN_PAIRS if inputs // pairs >= ENOUGH_ITEMS)
    return next(enough, COLUMN_PAIRS[-1])


def most_rows(down: GpuWeight | None) -> int:
    """Return the most outputs of a tile of column-major matrices; `down` is None for no other."""
    return PAIRS if down is None else column_pairs(down.k)


def pairs_of_item(down: GpuWeight, rows: int) -> int:
    """Return the gated pairs of an item if a tile has `rows`: with rows of codes half a unit."""
    if down.by_column:
        return column_pairs(down.k)
    return rows if down.form.values else PAIRS


def groups_of(down: GpuWeight) -> int:
    """Return the groups of outputs of a column-major matrix that share scales."""
    return -(-down.n // down.form.group)


def staged_values(down: GpuWeight) -> int:
    """Return how many products of pairs with scales of a column-major matrix an item stages."""
    return groups_of(down) * column_pairs(down.k)


def scale_quads(down: GpuWeight, threads: int) -> int:
    """Return how many quads of scales of a column-major matrix each of `threads` threads loads."""
    return -(-staged_values(down) // (4 * threads))


def workgroup_bytes(down: GpuWeight) -> int:
    """Return the bytes of workgroup memory for a column-major matrix beside staged values.

    They hold the pairs, and for each group of outputs the products with minimums and their sum.
    """
    groups, pairs = groups_of(down) if down.form.minimum else 0, column_pairs(down.k)
    return 4 * (pairs + groups * (pairs // 4 + 1))


def outputs_at_once(down: GpuWeight, threads: int) -> int:
    """Return how many outputs a thread computes at a time, so that their loads overlap."""
    return min(MOST_AT_ONCE, -(-down.n // threads))


def results_bytes(outputs: int) -> int:
    """Return the bytes of the results in fixed point."""
    return align(4 * (3 * outputs + 4))
