"""The decode modes by name, and which of them is to be how much faster than which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from rdrr_device.submission import OURS, Submission
from rdrr_format.errors import UsageError
from rdrr_runtime.decode.interval import AHEAD

if TYPE_CHECKING:
    from rdrr_runtime.decode.base import Strategy


@dataclass(frozen=True)
class Mode:
    """A way of decoding.

    Attributes:
        name: As `--mode` takes it.
        submission: What reaches the queue, and how.
        interval: Tokens between two readbacks.
        sampler: Where the likeliest token is chosen; on the CPU all logits are read back.
        ahead: Passes that are issued before a readback; the published modes have none.
    """

    name: str
    submission: Submission
    interval: int = 1
    sampler: Literal["gpu", "cpu"] = "gpu"
    ahead: int = 0

    def strategy(self) -> Strategy:
        """The strategy that decodes so."""
        from rdrr_runtime.decode.greedy import Greedy
        from rdrr_runtime.decode.greedy_on_host import GreedyOnHost

        return GreedyOnHost() if self.sampler == "cpu" else Greedy(self.interval, self.ahead)


_WEBLLM = Submission(
    submit_per_op=True, uniforms="fresh", fresh_bind_groups=True, fresh_staging=True
)
_CACHE = replace(_WEBLLM, uniforms="cached")

MODES: Mapping[str, Mode] = MappingProxyType(
    {
        one.name: one
        for one in (
            Mode("webllm", _WEBLLM),
            Mode("webllm+cache", _CACHE),
            Mode("webllm+cache+interval", _CACHE, 4),
            *(Mode(f"ours-x{x}", OURS, x) for x in (1, 2, 4, 8)),
            *(Mode(f"ahead-x{x}", OURS, x, ahead=AHEAD) for x in (1, 8)),
        )
    }
)
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"ours": tuple(name for name in MODES if name.startswith("ours")), "all": tuple(MODES)}
)


@dataclass(frozen=True)
class Gate:
    """That one mode is to be faster than another.

    Attributes:
        fast: Name of the mode.
        slow: Of the other.
        least: Ratio that is to be reached.
        published: Ratio that the published system states.
    """

    fast: str
    slow: str
    least: float
    published: float | None = None


GATES = (
    Gate("webllm+cache", "webllm", 1.05, 1.18),
    Gate("webllm+cache+interval", "webllm", 1.5, 1.88),
    Gate("webllm+cache+interval", "webllm+cache", 1.15, 1.59),
    Gate("ours-x1", "webllm", 1.2),
    Gate("ours-x4", "webllm", 1.5, 1.88),
    Gate("ours-x2", "ours-x1", 0.97),
    Gate("ours-x4", "ours-x2", 0.97),
    Gate("ours-x8", "ours-x4", 0.97),
    Gate("ours-x4", "ours-x1", 1.15),
    Gate("ahead-x1", "ours-x1", 1.0),
    Gate("ahead-x8", "ours-x8", 1.0),
)


def chosen(
    names: Iterable[str],
    *,
    submit: str | None = None,
    sampler: Literal["cpu", "gpu"] | None = None,
) -> list[Mode]:
    """The modes of some names, `ours` and `all` included.

    Args:
        names: As given on the command line.
        submit: `per-op` or `per-token` instead of what each mode says.
        sampler: `cpu` or `gpu` instead of what each mode says.

    Raises:
        UsageError: There is no such mode.
    """
    found: dict[str, Mode] = {}
    for name in names:
        for member in GROUPS.get(name, (name,)):
            if member not in MODES:
                known = ", ".join([*MODES, *GROUPS])
                raise UsageError("unknown mode", expected=f"one of {known}", found=member)
            found[member] = MODES[member]
    modes = list(found.values())
    if submit is not None:
        per_op = submit == "per-op"
        modes = [
            replace(one, submission=replace(one.submission, submit_per_op=per_op)) for one in modes
        ]
    if sampler is not None:
        modes = [replace(one, sampler=sampler) for one in modes]
    return modes
