"""Charge the arithmetic of a chat template to its budget before it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rdrr_runtime.text.template_budget import NODES_PER_STEP, TemplateBudget
from rdrr_runtime.text.template_costs import check_format


def _check_sum(budget: TemplateBudget, left: Any, right: Any) -> None:
    if isinstance(left, str):
        budget.charge_string(budget.size(left) + budget.size(right))
    elif isinstance(left, (list, tuple)):
        budget.charge(steps=len(left))
        budget.check_size(budget.size(left) + budget.size(right))
    else:
        budget.check_bits(1 + max(_bits(left), _bits(right)))


def _check_product(budget: TemplateBudget, left: Any, right: Any) -> None:
    repeated, times = (right, left) if isinstance(left, int) else (left, right)
    if not isinstance(repeated, (str, list, tuple)):
        budget.check_bits(_bits(left) + _bits(right))
    elif isinstance(times, int) and times > 0:
        size = times * max(1, budget.size(repeated))
        (budget.charge_string if isinstance(repeated, str) else budget.check_size)(size)
        budget.charge(steps=size // NODES_PER_STEP)


def _check_power(budget: TemplateBudget, left: Any, right: Any) -> None:
    if isinstance(right, int) and right > 0:
        budget.check_bits(_bits(left) * right)


def _check_remainder(budget: TemplateBudget, left: Any, right: Any) -> None:
    if isinstance(left, str):
        args = right if isinstance(right, tuple) else (right,)
        check_format(budget, (left, *args), {})


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


_ARITHMETIC: Mapping[str, Callable[[TemplateBudget, Any, Any], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_remainder,
}


def check_arithmetic(budget: TemplateBudget, operator: str, left: Any, right: Any) -> None:
    """Charge the result of a binary operator where it can be larger than the operands.

    Raises:
        GenerationError: The result would exceed the budget or one of its limits.
        SecurityError: The operator is `%` and the format string takes a width from its arguments.
    """
    check = _ARITHMETIC.get(operator)
    if check is not None:
        check(budget, left, right)
