"""Rewrite the syntax tree of a chat template so that each of its operations is charged.

Loops, literals, slices, comparisons and `~` become calls of methods of the environment that runs
the template, see `rdrr_runtime.text.template_sandbox`. This module does not decide what they cost.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.visitor import NodeTransformer

from rdrr_runtime.text.template_budget import MAX_BITS, NODES_PER_STEP

_CONTAINS = ("in", "notin")
_LITERALS = (nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair)


def metered(tree: nodes.Template) -> tuple[nodes.Template, int]:
    """Rewrite a parsed template so that its operations are charged to the budget.

    Returns:
        The rewritten tree, and the number of steps that one call of the template costs.
    """
    meter = _Meter()
    return meter.visit(tree), meter.steps


class _Meter(NodeTransformer):
    """Visitor that inserts calls of the environment into a syntax tree and counts its nodes."""

    def __init__(self) -> None:
        self.visited = 0

    @property
    def steps(self) -> int:
        """Steps of one call that evaluates all nodes visited so far."""
        return 8 + self.visited // NODES_PER_STEP

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.visited += 1
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        before = self.visited
        self.generic_visit(node)
        steps = 1 + (self.visited - before) // NODES_PER_STEP
        node.iter = _call("iterate", node.iter, nodes.Const(steps))
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenate", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._charge_created(node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            raise TemplateError(f"a number has more than {MAX_BITS} bits, in line {node.lineno}")
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        if any(isinstance(pair.key, nodes.Tuple) for pair in node.items):
            raise TemplateError(f"a list cannot be a key, in line {node.lineno}")
        return self._charge_created(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return node if node.ctx != "load" else self._charge_created(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("charge_created", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if len(node.ops) == 1 and node.ops[0].op in _CONTAINS:
            return _contains(node.expr, node.ops[0])
        if any(operand.op in _CONTAINS for operand in node.ops):
            raise TemplateError(f"`in` cannot be part of a chain, in line {node.lineno}")
        node.expr = _charge_read(node.expr)
        for operand in node.ops:
            operand.expr = _charge_read(operand.expr)
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> nodes.Node:  # noqa: N802
        raise TemplateError(f"autoescape is not available, in line {node.lineno}")

    def visit_EvalContextModifier(self, node: nodes.Node) -> nodes.Node:  # noqa: N802
        return self.visit_ScopedEvalContextModifier(node)

    def _charge_created(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return node if _is_literal(node) else _call("charge_created", node)


def _is_literal(node: nodes.Node) -> bool:
    """Return whether a value is a literal, which cannot be larger than the template itself."""
    return isinstance(node, nodes.Const) or (
        isinstance(node, _LITERALS) and all(map(_is_literal, node.iter_child_nodes()))
    )


def _contains(left: nodes.Expr, operand: nodes.Operand) -> nodes.Expr:
    """Return the node of `in` or `not in`, whose cost depends on both operands together."""
    inside = _call("contains", left, operand.expr)
    return inside if operand.op == "in" else nodes.Not(inside, lineno=left.lineno)


def _charge_read(node: nodes.Expr) -> nodes.Expr:
    return node if _is_literal(node) else _call("charge_read", node)


def _call(name: str, *args: Any) -> nodes.Expr:
    """Return a node that calls the environment's method `hook_<name>`."""
    hook = nodes.EnvironmentAttribute(f"hook_{name}")
    line = args[0].lineno if args else 0
    return nodes.Call(hook, list(args), [], None, None, lineno=line)
