"""Compiling and rendering a chat template so that each of its operations is paid for.

Jinja's sandbox keeps a template away from the machine; it bounds neither time nor memory. Here the
syntax tree is changed before it is compiled: loops, literals, slices, comparisons, `~` and all
output go through the environment, which also makes all calls, filters, tests and arithmetic. Each
asks the budget first, so that no single operation can be long either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import wraps
from types import CodeType
from typing import Any

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner
from rdrr_format.errors import ManifestError

from rdrr_runtime.text.template_arithmetic import check_arithmetic
from rdrr_runtime.text.template_budget import TemplateBudget
from rdrr_runtime.text.template_costs import (
    BRIEF,
    BRIEF_METHODS,
    FILTERS,
    METHODS,
    Bound,
)
from rdrr_runtime.text.template_meter import metered

MAX_SOURCE = 1 << 17
"""Characters of a template; the longest published ones have a quarter of it."""

_LAZY: tuple[type, ...] = (Iterator, AbstractSet, range, type({}.values()))
_PRINTED = (str, int, float, list, tuple, dict, Undefined, type(None))


@dataclass(frozen=True)
class CompiledTemplate:
    """A template that was compiled.

    Attributes:
        code: Its Python code.
        steps: Steps of a call that evaluates all of it.
        where: Where the template is from, for errors.
    """

    code: CodeType
    steps: int
    where: str

    def render(self, values: Mapping[str, Any], more: Mapping[str, Any]) -> str:
        """Return the text that the template makes of some values.

        Args:
            values: Variables, of JSON values.
            more: Functions, and filters by the names `FILTERS` has for them.

        Raises:
            GenerationError: It costs too much.
            Exception: Whatever else the code of a template may raise.
        """
        environment = _Environment(TemplateBudget(self.where), self.steps, more)
        template = Template.from_code(environment, self.code, environment.make_globals(None))
        return template.render(dict(values))


def compile_template(
    source: str, more: Mapping[str, Callable[..., Any]], where: str
) -> CompiledTemplate:
    """Compile the text of a template.

    Args:
        source: The text.
        more: Functions, and filters by the names `FILTERS` has for them.
        where: Where the text is from, for errors.

    Raises:
        ManifestError: It is too long, or no template.
    """
    if len(source) > MAX_SOURCE:
        raise ManifestError(
            "the chat template is too long",
            where=where,
            expected=f"at most {MAX_SOURCE} characters",
            found=len(source),
        )
    environment = _Environment(TemplateBudget(where), 1, more)
    try:
        tree, steps = metered(environment.parse(source))
        return CompiledTemplate(environment.compile(tree), steps, where)
    except Exception as error:  # Jinja's, and those of Python, which compiles what Jinja wrote
        raise ManifestError(
            "cannot be read as a chat template",
            where=where,
            found=str(error) or type(error).__name__,
        ) from None


@pass_context  # which also keeps Jinja from computing output while it compiles
def _printed(context: Context, value: Any) -> str:
    """Turn a value into output."""
    budget: TemplateBudget = context.environment.budget  # type: ignore[attr-defined]
    if not isinstance(value, _PRINTED):
        raise TemplateRuntimeError(f"a {type(value).__name__} cannot be printed")
    budget.write(budget.size(value))
    return str(value)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, a scope and no more."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """Runs the operations of one rendering, within a budget.

    Args:
        budget: The budget.
        steps: Steps of calling a macro, a block or a recursive loop.
        more: Functions, and filters.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(
        self, budget: TemplateBudget, steps: int, more: Mapping[str, Callable[..., Any]]
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # it would evaluate constant expressions while compiling
            finalize=_printed,
            extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
        )
        self.budget = budget
        self._steps = steps
        offered = {**self.filters, **{name: more[name] for name in more if name in FILTERS}}
        self.filters = {
            name: self._paid(offered[name], bound, name in BRIEF) for name, bound in FILTERS.items()
        }
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: self._paid(test, None, False) for name, test in tests.items()}
        del self.globals["lipsum"]
        self.globals |= {name: more[name] for name in more if name not in FILTERS}

    def hook_each(self, values: Iterable[Any], steps: int) -> Iterator[Any]:
        """Take the items of a loop."""
        return self.budget.each(values, steps)

    def hook_concatenated(self, *values: Any) -> str:
        """Join the operands of `~`."""
        self.budget.write(sum(map(self.budget.size, values)))
        return "".join(map(str, values))

    def hook_made(self, value: Any) -> Any:
        """Take a list, dictionary or slice that was made."""
        self.budget.spend(self.budget.size(value))
        return value

    hook_read = hook_made  # an operand of a comparison

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or item."""
        self.budget.spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item or attribute."""
        self.budget.spend()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may have an attribute: of plain values only methods in the table."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        kind = _plain_type(obj)
        return kind is None or attr in METHODS[kind]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute with two values."""
        self.budget.spend()
        check_arithmetic(self.budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function or method; named as Jinja's, so that no keyword can clash."""
        owner = getattr(__obj, "__self__", None)
        if owner is __self:
            return __obj(*args)  # the keywords are Jinja's, of variables in loops
        if isinstance(__obj, (Macro, BlockReference, LoopContext)):
            __self.budget.spend(steps=__self._steps)
            if isinstance(__obj, LoopContext):
                args = tuple(__self.budget.each(one, __self._steps) for one in args)
            with __self.budget.call():
                return super().call(__context, __obj, *args, **kwargs)
        if not isinstance(__obj, Undefined):
            __obj = __self._paid_callable(__obj)
        return super().call(__context, __obj, *args, **kwargs)

    def _paid_callable(self, function: Any) -> Callable[..., Any]:
        """Return a function or method that a template may call, so that calling it is paid for.

        Raises:
            SecurityError: A template may not call it.
        """
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        kind = _plain_type(owner)
        if kind is not None and name in METHODS[kind]:
            return self._paid_method(function, METHODS[kind][name], owner, name)
        is_offered = isinstance(owner, (LoopContext, Cycler)) or isinstance(function, Joiner)
        if is_offered or any(function is one for one in self.globals.values()):
            return self._paid(function, None, False)
        raise SecurityError(f"a {type(function).__name__} cannot be called")

    def _paid_method(
        self, function: Callable[..., Any], bound: Bound | None, owner: Any, name: str
    ) -> Callable[..., Any]:
        def run(_owner: Any, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        paid = self._paid(run, bound, name in BRIEF_METHODS)
        return lambda *args, **kwargs: paid(owner, *args, **kwargs)

    def _paid(
        self, function: Callable[..., Any], bound: Bound | None, is_brief: bool
    ) -> Callable[..., Any]:
        """Return a filter, test or function that is paid for before it runs."""
        budget = self.budget
        first = int(hasattr(function, "jinja_pass_arg"))  # Jinja's own argument comes before

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = [self._listed(one) for one in args[first:]]
            named = {name: self._listed(one) for name, one in kwargs.items()}
            read = 0 if is_brief else sum(map(budget.size, (*given, *named.values())))
            budget.spend(read)
            if bound is not None:
                bound(budget, given, named)
            found = function(*args[:first], *given, **named)
            if isinstance(found, str):
                budget.write(len(found))
            elif isinstance(found, int):
                budget.check_bits(found.bit_length())
            return found

        return run

    def _listed(self, value: Any) -> Any:
        is_lazy = isinstance(value, _LAZY)
        return self.budget.listed(value) if is_lazy else value


def _plain_type(value: Any) -> type | None:
    return next((kind for kind in METHODS if isinstance(value, kind)), None)
