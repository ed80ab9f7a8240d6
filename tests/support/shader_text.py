"""Reading back what a module that was made for a launch declares."""

from __future__ import annotations

import re

from rdrr_device.shaders import Access, Binding

_DECLARATION = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var<storage,\s*(read_write|read)>\s*(\w+)\s*:"
)


def bindings(source: str) -> tuple[Binding, ...]:
    """Return the storage buffers that a module declares, by binding number.

    Raises:
        ValueError: The numbers are not 0, 1, 2...
    """
    found = sorted(
        (int(number), Binding(name, Access.READ if access == "read" else Access.READ_WRITE))
        for number, access, name in _DECLARATION.findall(source)
    )
    if [number for number, _ in found] != list(range(len(found))):
        raise ValueError(f"bindings are not numbered 0, 1, 2...: {found}")
    return tuple(binding for _, binding in found)
