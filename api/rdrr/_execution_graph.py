"""Which of rdrr's kernels does what a step of a public execution graph does.

rdrr often computes several steps in one kernel. Then each of these steps names that kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdrr_manifests.doppler import ExecutionStep
    from rdrr_runtime.compile.choice.decision import Decision

OPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed": ("embed",),
        "input_norm": ("attn_in", "qkv"),
        "q_proj": ("q_proj", "qkv"),
        "k_proj": ("k_proj", "qkv"),
        "v_proj": ("v_proj", "qkv"),
        "rope_q": ("q_proj.norm.rope", "q_proj.rope", "attn.place", "attention"),
        "rope_k": ("k_proj.norm.rope", "k_proj.rope", "attn.place", "attention"),
        "attention": ("attn", "attention"),
        "o_proj": ("o_proj",),
        "attn_residual": ("attn_residual", "attn_post+residual", "o_proj"),
        "post_attn_norm": ("ffn_in", "act"),
        "gate_proj": ("gate_proj", "act"),
        "up_proj": ("up_proj", "act"),
        "activation": ("act",),
        "down_proj": ("down_proj",),
        "ffn": ("down_proj",),
        "ffn_residual": ("ffn_residual", "ffn_post+residual", "down_proj"),
        "final_norm": ("final norm", "head"),
        "lm_head": ("head",),
        "lm_head_prefill": ("head",),
        "sample": ("argmax",),
    }
)
"""The ops that may do what a step does, the one that does nothing else first."""

_LAYER = re.compile(r"(?:l(?P<short>\d+)\.|layer (?P<long>\d+) )(?P<op>.+)")


@dataclass(frozen=True)
class ServedStep:
    """A step of the manifest's execution graph, and what rdrr runs for it.

    Attributes:
        step: The step.
        op: The op of rdrr that does it; None if there is none.
        kernels: The kernels of that op, which may differ between layers.
    """

    step: ExecutionStep
    op: str | None
    kernels: tuple[str, ...]

    @property
    def kernel(self) -> str:
        """The public kernel: its file and entry point."""
        return f"{self.step.file}:{self.step.entry}" if self.step.file else "not listed"

    def as_dict(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        step = self.step
        return {
            "stage": step.stage,
            "step": step.name,
            "kernel": step.file,
            "entry": step.entry,
            "layers": None if step.layers is None else list(step.layers),
            "op": self.op,
            "served_by": list(self.kernels),
        }


def served_steps(
    steps: Iterable[ExecutionStep], choices: Iterable[Decision]
) -> tuple[ServedStep, ...]:
    """Return what rdrr runs for each step.

    Args:
        steps: The steps of an execution graph.
        choices: The kernels that rdrr chooses for the ops of decode and prefill.
    """
    chosen: dict[tuple[str, str], dict[int | None, str]] = {}
    for choice in choices:
        layer, op = _split(choice.op)
        chosen.setdefault((choice.step, op), {})[layer] = choice.kernel
    return tuple(_served(step, chosen) for step in steps)


def _served(
    step: ExecutionStep, chosen: Mapping[tuple[str, str], Mapping[int | None, str]]
) -> ServedStep:
    pass_name = "prefill" if "prefill" in (step.stage, step.name.rpartition("_")[2]) else "decode"
    for op in OPS.get(step.name, ()):
        kernels = chosen.get((pass_name, op), {})
        served = dict.fromkeys(
            kernel
            for layer, kernel in kernels.items()
            if step.layers is None or layer in step.layers
        )
        if served:
            return ServedStep(step, op, tuple(served))
    return ServedStep(step, None, ())


def _split(op: str) -> tuple[int | None, str]:
    """Return the layer in the name of an op, None outside the layers, and the rest of the name."""
    match = _LAYER.fullmatch(op)
    if match is None:
        return None, op
    return int(match["short"] or match["long"]), match["op"]
