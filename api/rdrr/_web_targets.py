"""The kinds of devices that `rdrr web` plans for: what browsers offer on different machines.

A browser takes the first program whose needs its adapter meets. Programs that come out equal are
written once, so a further target costs a small model nothing.
"""

from __future__ import annotations

from rdrr_device.capabilities import DEFAULT_LIMITS, Capabilities

_LARGE = {
    "max-buffer-size": 4 << 30,
    "max-storage-buffer-binding-size": (2 << 30) - 4,
    "max-storage-buffers-per-shader-stage": 10,
}
_ROOMY = _LARGE | {
    "max-compute-workgroup-storage-size": 32_768,
    "max-compute-invocations-per-workgroup": 1024,
    "max-compute-workgroup-size-x": 1024,
    "max-compute-workgroup-size-y": 1024,
}
_DOTS = frozenset({"packed_4x8_integer_dot_product"})


def _target(limits: dict[str, int], *features: str) -> Capabilities:
    return Capabilities(
        features=frozenset(features), limits={**DEFAULT_LIMITS, **limits}, language=_DOTS
    )


TARGETS = {
    "subgroups, f16, 32 KiB": _target(_ROOMY, "subgroup", "shader-f16"),
    "subgroups, 32 KiB": _target(_ROOMY, "subgroup"),
    "subgroups, default limits": _target({}, "subgroup"),
    "large bindings": _target(_LARGE),
    "default limits": _target({}),
}
"""What is planned for where nothing else is asked for, the best first, by a name for messages."""
