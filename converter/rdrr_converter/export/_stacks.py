"""Stacking tensors that checkpoints store as one tensor, the inverse of `rdrr_converter.stacks`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rdrr_manifests.logical import LogicalTensor

from rdrr_converter.architectures.base import StackRule

Stack = tuple[str, tuple[LogicalTensor, ...]]
"""A name in the checkpoint, and the tensors that are stacked under it, from the top down."""


_EXPERT = re.compile(r"(?P<stem>.+\.experts)\.(?P<number>\d+)\.(?P<part>.+)")


def is_expert_stack(name: str) -> bool:
    """Return whether a name from `join_experts` stands for all experts of a layer."""
    return ".experts." in name


def join_experts(stacks: Iterable[Stack]) -> list[Stack]:
    """Stack the experts of each layer under one name without the index of the expert."""
    found: dict[str, dict[int, tuple[LogicalTensor, ...]]] = {}
    for name, parts in stacks:
        match = _EXPERT.fullmatch(name)
        own = name if match is None else f"{match['stem']}.{match['part']}"
        found.setdefault(own, {})[int(match["number"]) if match else 0] = parts
    return [
        (name, tuple(part for number in sorted(numbers) for part in numbers[number]))
        for name, numbers in found.items()
    ]


def stacked(tensors: Sequence[LogicalTensor], rules: Sequence[StackRule]) -> Iterator[Stack]:
    """Yield every tensor or the stack that it belongs to, in the order of their first parts.

    Experts are not stacked, because published checkpoints store them separately and every reader
    accepts that.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    done: set[str] = set()
    for tensor in tensors:
        if tensor.name in done:
            continue
        name, parts = _stack_of(tensor.name, rules)
        done.update(parts)
        yield name, tuple(by_name[part] for part in parts)


def _stack_of(name: str, rules: Sequence[StackRule]) -> tuple[str, tuple[str, ...]]:
    for rule in rules:
        if any("{expert}" in part for part in rule.parts):
            continue
        for part in rule.parts:
            match = re.fullmatch(re.escape(part).replace(r"\{layer\}", r"(\d+)"), name)
            if match is not None:
                layer = match[1]
                return rule.name.format(layer=layer), tuple(
                    one.format(layer=layer) for one in rule.parts
                )
    return name, (name,)
