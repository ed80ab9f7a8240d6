"""Compile and render a chat template in a sandbox that bounds its time and memory.

Jinja's own sandbox keeps a template from reaching the machine, but bounds neither time nor memory.
Here the syntax tree is rewritten before it is compiled: loops, literals, slices, comparisons, `~`
and all output go through the environment, as calls, filters, tests and arithmetic already do. The
environment charges each operation to the budget before it runs, so no single operation can be long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from types import CodeType
from typing import Any

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError, UndefinedError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, missing
from rdrr_format.errors import ManifestError

from rdrr_runtime.text.template_arithmetic import check_arithmetic
from rdrr_runtime.text.template_budget import TemplateBudget
from rdrr_runtime.text.template_costs import (
    CONSTANT_COST_FILTERS,
    CONSTANT_COST_METHODS,
    FILTERS,
    METHODS,
    CostCheck,
    check_contains,
)
from rdrr_runtime.text.template_meter import metered
from rdrr_runtime.text.template_words import LAZY, PLAIN, word_for

MAX_SOURCE = 1 << 17
"""Most characters of a template; the longest published ones have a quarter of this."""


@dataclass(frozen=True)
class CompiledTemplate:
    """A compiled template.

    Attributes:
        code: Python code of the template.
        steps: Steps of one call that evaluates the whole template.
        where: File that the template was read from, for error messages.
    """

    code: CodeType
    steps: int
    where: str

    def render(self, values: Mapping[str, Any], helpers: Mapping[str, Any]) -> str:
        """Return the text that the template renders.

        Args:
            values: Variables of the template; plain JSON values.
            helpers: Functions by name; those named in `FILTERS` are filters.

        Raises:
            GenerationError: The rendering exceeds its budget.
            Exception: Any other exception that the code of the template raises.
        """
        environment = _Environment(TemplateBudget(self.where), self.steps, helpers)
        template = Template.from_code(environment, self.code, environment.make_globals(None))
        return template.render(dict(values))


def compile_template(
    source: str, helpers: Mapping[str, Callable[..., Any]], where: str
) -> CompiledTemplate:
    """Compile a template.

    Args:
        source: Jinja source of the template.
        helpers: Functions by name; those named in `FILTERS` are filters.
        where: File that the source was read from, for error messages.

    Raises:
        ManifestError: The source is too long or is not a valid template.
    """
    if len(source) > MAX_SOURCE:
        raise ManifestError(
            "the chat template is too long",
            where=where,
            expected=f"at most {MAX_SOURCE} characters",
            found=len(source),
        )
    environment = _Environment(TemplateBudget(where), 1, helpers)
    try:
        tree, steps = metered(environment.parse(source))
        return CompiledTemplate(environment.compile(tree), steps, where)
    except Exception as error:  # of Jinja, or of Python, which compiles the code Jinja generates
        raise ManifestError(
            "cannot be read as a chat template",
            where=where,
            found=str(error) or type(error).__name__,
        ) from None


def literal_text(source: str, helpers: Mapping[str, Callable[..., Any]], where: str) -> str:
    """Return the texts that a template holds, with a null character between them.

    Args:
        source: Jinja source of a template that `compile_template` has compiled.
        helpers: Functions by name.
        where: File that the source was read from.
    """
    tree = _Environment(TemplateBudget(where), 1, helpers).parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(texts)


@pass_context  # also keeps Jinja from evaluating constant output while it compiles
def _printed(context: Context, value: Any) -> str:
    """Return a value as output text, charged to the budget."""
    budget: TemplateBudget = context.environment.budget  # type: ignore[attr-defined]
    budget.check_plain(value)
    budget.charge_string(budget.size(value))
    return str(value)


class _Missing(Undefined):
    """An undefined value, whose message names the kind of an object and not its class."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: str | None = None,
        exc: type[TemplateRuntimeError] = UndefinedError,
    ) -> None:
        if hint is None and obj is not missing and not isinstance(obj, (*PLAIN, *METHODS)):
            hint = f"{word_for(obj)} has no attribute {name!r}"
        super().__init__(hint, obj, name, exc)


class _GenerationBlock(Extension):
    """The block `{% generation %}...{% endgeneration %}`, which only opens a scope."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body of the block as a scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of one rendering, which charges each operation to a budget.

    Args:
        budget: The budget.
        steps: Steps that a call of a macro, a block or a recursive loop is charged.
        helpers: Functions by name; those named in `FILTERS` are filters.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(
        self,
        budget: TemplateBudget,
        steps: int,
        helpers: Mapping[str, Callable[..., Any]],
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # otherwise constant expressions are evaluated while compiling
            finalize=_printed,
            undefined=_Missing,
            extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
        )
        self.budget = budget
        self._steps = steps
        filters = {name: helper for name, helper in helpers.items() if name in FILTERS}
        available = {**self.filters, **filters}
        self.filters = {
            name: self._charged(available[name], cost_check, name in CONSTANT_COST_FILTERS)
            for name, cost_check in FILTERS.items()
        }
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: self._charged(test, None, False) for name, test in tests.items()}
        self.tests["in"] = self._charged(tests["in"], check_contains, False)
        del self.globals["lipsum"]
        self.globals |= {name: helper for name, helper in helpers.items() if name not in FILTERS}

    def hook_iterate(self, values: Iterable[Any], steps: int) -> Iterator[Any]:
        """Yield the items of a loop, each charged."""
        return self.budget.iterate(values, steps)

    def hook_concatenate(self, *values: Any) -> str:
        """Return the operands of `~` as one string, charged before it is created."""
        self.budget.check_plain(*values)
        self.budget.charge_string(sum(map(self.budget.size, values)))
        return "".join(map(str, values))

    def hook_charge_created(self, value: Any) -> Any:
        """Charge a list, dictionary or slice that was created, and return it."""
        self.budget.charge(self.budget.size(value))
        return value

    def hook_charge_read(self, value: Any) -> Any:
        """Charge an operand of a comparison, and return it."""
        if isinstance(value, Collection) and isinstance(value, LAZY):
            self.budget.charge(steps=len(value))
        return self.hook_charge_created(value)

    def hook_contains(self, value: Any, container: Any) -> bool:
        """Return whether a container or a text contains a value, charged before the search."""
        container = self._materialized(container)
        self.budget.charge(self.budget.size(value) + self.budget.size(container))
        self.budget.charge_search(container, value)
        return value in container

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute of an object, or an item of that name."""
        self.budget.charge()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item of an object, or an attribute of that name."""
        self.budget.charge()
        self.budget.check_plain(argument, must_not="be a key")
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Return an undefined value for an attribute that a template may not read."""
        hint = f"access to attribute {attribute!r} of {word_for(obj)} is unsafe"
        return self.undefined(hint, obj=obj, name=attribute, exc=SecurityError)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute; for plain values only `METHODS`."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        kind = _plain_type(obj)
        return kind is None or attr in METHODS[kind]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of a binary operator, charged before it is computed."""
        self.budget.charge()
        for value in (left, right):
            if isinstance(value, LAZY):
                raise SecurityError(f"{word_for(value)} cannot be an operand of {operator}")
        check_arithmetic(self.budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function or method; the parameters are named as in Jinja, to avoid clashes."""
        owner = getattr(__obj, "__self__", None)
        if owner is __self:
            return __obj(*args)  # Jinja adds keywords about the variables of a loop
        if isinstance(__obj, (Macro, BlockReference, LoopContext)):
            __self.budget.charge(steps=__self._steps + len(args) + len(kwargs))
            if isinstance(__obj, LoopContext):
                args = tuple(__self.budget.iterate(argument, __self._steps) for argument in args)
            with __self.budget.call():
                return super().call(__context, __obj, *args, **kwargs)
        if not isinstance(__obj, Undefined):
            __obj = __self._charged_callable(__obj)
        return super().call(__context, __obj, *args, **kwargs)

    def _charged_callable(self, function: Any) -> Callable[..., Any]:
        """Return a wrapper that charges each call of a function or method to the budget.

        Raises:
            SecurityError: Templates may not call this function or method.
        """
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        kind = _plain_type(owner)
        if kind is not None and name in METHODS[kind]:
            return self._charged_method(function, METHODS[kind][name], owner, name)
        is_jinja_helper = isinstance(owner, (LoopContext, Cycler)) or isinstance(function, Joiner)
        if is_jinja_helper or any(function is value for value in self.globals.values()):
            return self._charged(function, None, False)
        raise SecurityError(f"{word_for(function)} cannot be called")

    def _charged_method(
        self, function: Callable[..., Any], cost_check: CostCheck | None, owner: Any, name: str
    ) -> Callable[..., Any]:
        def run(_owner: Any, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        charged = self._charged(run, cost_check, name in CONSTANT_COST_METHODS)
        return lambda *args, **kwargs: charged(owner, *args, **kwargs)

    def _charged(
        self, function: Callable[..., Any], cost_check: CostCheck | None, is_constant_cost: bool
    ) -> Callable[..., Any]:
        """Return a wrapper that charges a filter, test or function before each call."""
        budget = self.budget
        # Jinja passes an argument of its own, which is not charged, before the others.
        first = int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = [self._materialized(argument) for argument in args[first:]]
            named = {name: self._materialized(argument) for name, argument in kwargs.items()}
            read = 0 if is_constant_cost else sum(map(budget.size, (*given, *named.values())))
            budget.charge(read)
            if cost_check is not None:
                cost_check(budget, given, named)
            result = function(*args[:first], *given, **named)
            if isinstance(result, str):
                if not is_constant_cost:
                    budget.check_plain(*given, *named.values())
                budget.charge_string(len(result))
            elif isinstance(result, int):
                budget.check_bits(result.bit_length())
            return result

        return run

    def _materialized(self, value: Any) -> Any:
        is_lazy = isinstance(value, LAZY)
        return self.budget.materialize(value) if is_lazy else value


def _plain_type(value: Any) -> type | None:
    return next((kind for kind in METHODS if isinstance(value, kind)), None)
