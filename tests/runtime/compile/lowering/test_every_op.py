"""The lowering of each op of the graph agrees with the reference op, for all fields of the op.

A new op in the union `Op` needs a row in `EXAMPLES` and one in `LOWERINGS`. Phases have their own
tests, with more sizes; here the point is that every field of an op has its effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain
from typing import get_args

import pytest
from rdrr_manifests.graph.ops import (
    ChannelFactors,
    Clamp,
    Op,
    WeightUse,
    values_read,
)
from rdrr_runtime.compile.lowering.ops import LOWERINGS
from support.comparison import relative_error
from support.gpu import TOLERANCE
from support.op_examples import EXAMPLES, OPTIONAL_WEIGHTS, OTHERS
from support.single_ops import Example, Operands, by_phases, by_reference


def alternatives(op: Op, name: str) -> Iterator[tuple[str, object]]:
    """Yield other values of a number, flag or choice of an op, or of a part of it."""
    value = getattr(op, name)
    if isinstance(value, bool):
        yield name, not value
    elif isinstance(value, float):
        yield name, value * 1.5
    elif isinstance(value, Clamp):
        for part in fields(value):
            more = replace(value, **{part.name: getattr(value, part.name) * 1.5})
            yield f"{name}.{part.name}", more
    elif isinstance(value, ChannelFactors):
        yield name, replace(value, factors=tuple(factor * 1.5 for factor in value.factors))
    elif isinstance(value, WeightUse) and name in OPTIONAL_WEIGHTS:
        yield name, None
    elif name == "chunk" and value:
        yield name, value - 1
    elif name in ("window", "top_k", "top_groups", "length", "up_part"):
        yield name, value + 1
    elif name == "offset":
        yield name, value - 1
    elif name == "stream" and getattr(op, "update", None) is not None:
        yield name, 1 - value
    elif value in OTHERS and getattr(op, "clamp", None) is None:
        yield name, OTHERS[value]


def changed(example: Example) -> Iterator[tuple[str, Example]]:
    """Yield the example with one number, flag or choice changed, without changing a shape."""
    for at, op in enumerate(example.ops):
        for field_ in fields(op):
            if field_.name in ("top_groups", "group_score") and getattr(op, "groups", 0) == 1:
                continue  # without effect
            if field_.name == "unit_offset" and getattr(op, "weight", None) is None:
                continue  # nothing to which it could be added
            mixes = getattr(op, "scoring", None) == "sparsemixer"
            if (field_.name == "margin" and not mixes) or (field_.name == "normalize" and mixes):
                continue  # without effect
            if field_.name == "fused":
                continue  # which has matrices of another shape
            if field_.name == "scales_inputs" and not getattr(op, "is_gated", False):
                continue  # experts without gates have no such form
            if field_.name == "causal" and len(example.ops) > 1:
                continue  # only layers with keys of their own attend to later tokens
            if field_.name == "up_part" and getattr(op, "up_parts", 0) == 1:
                continue  # there is no other part
            for what, value in alternatives(op, field_.name):
                ops = (
                    *example.ops[:at],
                    replace(op, **{field_.name: value}),
                    *example.ops[at + 1 :],
                )
                yield f"{type(op).__name__}.{what}", replace(example, ops=ops)


CHANGES = [
    pytest.param(example, other, id=f"{name}: {field}")
    for name, example in EXAMPLES.items()
    for field, other in changed(example)
]


def test_every_op_has_a_lowering_and_an_example():
    ops = set(get_args(Op))
    assert {type(op) for example in EXAMPLES.values() for op in example.ops} == ops
    assert set(LOWERINGS) == ops
    for kind in ops:
        assert LOWERINGS[kind].fields == tuple(field_.name for field_ in fields(kind))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_values_that_an_op_reads_follow_from_the_types_of_its_fields(name):
    ops, widths = EXAMPLES[name].ops, EXAMPLES[name].widths
    read = {value for op in ops for value in values_read(op)}
    assert read - {op.out for op in ops} == set(widths)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_op_is_lowered_to_what_the_reference_computes(bench, rng, name, rows):
    example = EXAMPLES[name]
    operands = Operands.random(example, rows, rng)
    expected = by_reference(example, operands)
    assert relative_error(by_phases(bench, example, operands), expected) < TOLERANCE


@pytest.mark.parametrize(("example", "other"), CHANGES)
def test_no_field_of_an_op_is_ignored(bench, rng, example, other):
    operands = Operands.random(example, 5, rng)
    expected = by_reference(other, operands)
    assert relative_error(by_phases(bench, other, operands), expected) < TOLERANCE
    # The control: the field matters, if not for these operands (both may choose the same experts),
    # then for some others.
    others = (Operands.random(example, 5, rng) for _ in range(9))  # made only if needed
    assert any(is_changed(example, other, inputs) for inputs in chain([operands], others))


def is_changed(example: Example, other: Example, operands: Operands) -> bool:
    """Return whether two examples differ in their results, by more than rounding explains."""
    expected = by_reference(other, operands)
    return relative_error(by_reference(example, operands), expected) > 10 * TOLERANCE
