"""Small phases whose shaders the tests write themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Work
from rdrr_runtime.phases.phase import Phase, Record, choice


@dataclass(frozen=True, kw_only=True)
class FakeRecord(Record):
    """The parameters of a phase with a given shader.

    Attributes:
        text: WGSL of the phase.
        full: The value of `fills`.
    """

    shader = "fake"

    threads: int = 64
    text: str = choice()
    full: bool = choice(default=True)

    @property
    def fills(self) -> bool:
        return self.full

    @cached_property
    def source(self) -> str:
        return self.text


def fake_phase(
    body: str,
    *declared: str,
    fills: bool = True,
    label: str = "fake",
    **buffers: BufferSlice,
) -> Phase:
    """Return a phase whose function consists of `body`.

    Args:
        body: Statements.
        declared: Declarations of the storage buffers, e.g. `read x: array<f32>`; an access of
            `write` stands for `read_write`.
        fills: Whether it writes all of its outputs.
        label: Name of the phase.
        buffers: The buffers by name.
    """
    lines = []
    for declaration in declared:
        access, variable = declaration.split(" ", 1)
        lines.append(f"var<storage, {'read' if access == 'read' else 'read_write'}> {variable};")
    text = "\n".join((*lines, f"fn phase(item: u32) {{\n    {body}\n}}"))
    return Phase(FakeRecord(text=text, full=fills), buffers, Work(1), label)


def reader(memory: BufferSlice, type_: str = "f32") -> Phase:
    """Return a phase that only reads a value."""
    return fake_phase("_ = x[item];", f"read x: array<{type_}>", label="reader", x=memory)


def writer(memory: BufferSlice, type_: str = "f32", *, fills: bool = True) -> Phase:
    """Return a phase that only writes a value."""
    body = f"x[item] = {type_}();"
    return fake_phase(body, f"write x: array<{type_}>", fills=fills, label="writer", x=memory)


def changer(memory: BufferSlice, *, fills: bool = True) -> Phase:
    """Return a phase that changes a value in place."""
    body = "x[item] = x[item] + 1.0;"
    return fake_phase(body, "write x: array<f32>", fills=fills, label="changer", x=memory)
