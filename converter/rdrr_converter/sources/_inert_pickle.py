"""Read the pickle of a torch file without running any of it.

A pickle is a program for a small stack machine, which can call functions of any module. Here calls
become records of the function's name and its arguments. Every operation takes a constant amount of
memory, except that it may copy text of the pickle; nothing is hashed but plain values, and nothing
recurses, so that nesting costs nothing.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 64 << 20
MAX_OPERATIONS = 1 << 22
"""Limits of a pickle. A tensor takes some 40 operations and 150 bytes."""

_MODULES = {
    "torch", "torch._tensor", "torch._utils", "torch.nn.parameter", "torch.serialization",
    "torch.storage",
}  # fmt: skip
_FUNCTIONS = {
    "collections.OrderedDict", "collections.Counter", "_codecs.encode",
    "builtins.bytearray", "builtins.set", "builtins.complex",
    "__builtin__.bytearray", "__builtin__.set", "__builtin__.complex",
}  # fmt: skip
"""What files of weights name, of other modules than torch's."""

_KEYS = (str, int, float, bytes, type(None))


class NotWeightsError(ValueError):
    """The pickle names a function that no file of weights needs."""


@dataclass(frozen=True)
class Name:
    """A function or a class that a pickle names, such as `torch.FloatStorage`."""

    path: str


@dataclass(frozen=True)
class Call:
    """A call that a pickle asks for, and that is never made.

    Attributes:
        path: Name of the function with its module, if it was a name.
        args: The arguments.
    """

    path: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Reference:
    """A reference to something beside the pickle, which for torch is a storage."""

    value: Any


def read_pickle(content: bytes) -> Any:
    """Return the value that a pickle describes, with calls as records.

    Raises:
        NotWeightsError: It names a function that no file of weights needs.
        ValueError: It is damaged, exceeds a limit, or has operations that torch does not write.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count >= MAX_OPERATIONS:
                raise ValueError(f"more than {MAX_OPERATIONS} operations")
            if opcode.name == "STOP":
                return machine.pop()
            machine.run(opcode.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"damaged: {error!r}") from error
    raise ValueError("it has no end")


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    marked: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _OPERATIONS:
            _OPERATIONS[name](self, argument)
        elif name not in _IGNORED:
            raise ValueError(f"it has the operation {name}")

    def pop(self) -> Any:
        return self.stack.pop()

    def mark(self, _: Any) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marked.pop()
        return items

    def put(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def tuple_of(self, count: int | None) -> None:
        items = self.since_mark() if count is None else [self.pop() for _ in range(count)][::-1]
        self.stack.append(tuple(items))

    def name(self, text: str) -> None:
        module, _, function = text.partition(" ")
        path = f"{module}.{function}"
        if module not in _MODULES and path not in _FUNCTIONS:
            raise NotWeightsError(path)
        self.stack.append(Name(path))

    def name_on_stack(self, _: Any) -> None:
        function, module = self.pop(), self.pop()
        if not isinstance(function, str) or not isinstance(module, str):
            raise TypeError("a name is not a text")
        self.name(f"{module} {function}")

    def call(self, _: Any) -> None:
        args, function = self.pop(), self.pop()
        path = function.path if isinstance(function, Name) else ""
        args = args if isinstance(args, tuple) else (args,)
        is_dictionary = path == "collections.OrderedDict" and not args
        self.stack.append({} if is_dictionary else Call(path, args))

    def refer(self, _: Any) -> None:
        self.stack.append(Reference(self.pop()))

    def extend(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                if not isinstance(key, _KEYS):
                    raise ValueError(f"a key is a {type(key).__name__}")
                target[key] = value


_PUSHED = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
_IGNORED = {"PROTO", "FRAME"}
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_OPERATIONS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE": _Machine.tuple_of,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_on_stack,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BINPERSID": _Machine.refer,
    "BUILD": lambda machine, _: machine.stack.pop(),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
}
"""The operations that torch writes; all others are refused."""
