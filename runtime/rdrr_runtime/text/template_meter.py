"""The syntax tree of a chat template, changed so that each of its operations is paid for.

Loops, literals, slices, comparisons and `~` become calls of the environment that runs the template,
see `rdrr_runtime.text.template_sandbox`. What they cost is not this module's business.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.visitor import NodeTransformer

from rdrr_runtime.text.template_budget import NODES

_LITERALS = (nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair)


def metered(tree: nodes.Template) -> tuple[nodes.Template, int]:
    """Rewrite a parsed template so that its operations are charged to the budget.

    Returns:
        The rewritten tree, and the number of steps that one call of the template costs.
    """
    meter = _Meter()
    return meter.visit(tree), meter.steps


class _Meter(NodeTransformer):
    """Puts calls of the environment into a syntax tree and counts the nodes it visits."""

    def __init__(self) -> None:
        self.visited = 0

    @property
    def steps(self) -> int:
        """Steps of a call that evaluates all that was visited."""
        return 8 + self.visited // NODES

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.visited += 1
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        before = self.visited
        self.generic_visit(node)
        steps = 1 + (self.visited - before) // NODES
        node.iter = _call("each", node.iter, nodes.Const(steps))
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenated", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._made(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._made(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return node if node.ctx != "load" else self._made(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _read(node.expr)
        for operand in node.ops:
            operand.expr = _read(operand.expr)
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> nodes.Node:  # noqa: N802
        raise TemplateError(f"autoescape is not offered, in line {node.lineno}")

    def visit_EvalContextModifier(self, node: nodes.Node) -> nodes.Node:  # noqa: N802
        return self.visit_ScopedEvalContextModifier(node)

    def _made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return node if _is_literal(node) else _call("made", node)


def _is_literal(node: nodes.Node) -> bool:
    """Whether a value is spelled out, so that it is not larger than the template."""
    return isinstance(node, nodes.Const) or (
        isinstance(node, _LITERALS) and all(map(_is_literal, node.iter_child_nodes()))
    )


def _read(node: nodes.Expr) -> nodes.Expr:
    return node if _is_literal(node) else _call("read", node)


def _call(name: str, *args: Any) -> nodes.Expr:
    """Return a call of a method of the environment."""
    hook = nodes.EnvironmentAttribute(f"hook_{name}")
    line = args[0].lineno if args else 0
    return nodes.Call(hook, list(args), [], None, None, lineno=line)
