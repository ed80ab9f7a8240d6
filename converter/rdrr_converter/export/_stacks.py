"""Stacking tensors that checkpoints store as one tensor, the inverse of `reading.stacks`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.models import Architecture

from rdrr_converter.architectures.base import StackRule
from rdrr_converter.checkpoint.outgoing import Arrange, Stack
from rdrr_converter.reading.expected_tensors import linear_dimensions
from rdrr_converter.reading.grouped_rows import Piece, Rows, rows_of_parts

_EXPERT = re.compile(r"(?P<stem>.+\.experts)\.(?P<number>\d+)\.(?P<part>.+)")


def is_expert_stack(name: str) -> bool:
    """Return whether a name from `join_experts` stands for all experts of a layer."""
    return ".experts." in name and name.endswith(".weight")


def join_experts(stacks: Iterable[Stack]) -> list[Stack]:
    """Stack the experts of each layer under one name without the index of the expert."""
    numbered: dict[str, dict[int, tuple[LogicalTensor, ...]]] = {}
    for name, parts in stacks:
        match = _EXPERT.fullmatch(name)
        stack = name if match is None else f"{match['stem']}.{match['part']}"
        numbered.setdefault(stack, {})[int(match["number"]) if match else 0] = parts
    return [
        (name, tuple(part for number in sorted(numbers) for part in numbers[number]))
        for name, numbers in numbered.items()
    ]


def stacked(tensors: Sequence[LogicalTensor], rules: Sequence[StackRule]) -> Iterator[Stack]:
    """Yield every tensor or the stack that it belongs to, in the order of their first parts.

    Experts are not stacked, because published checkpoints store them separately and every reader
    accepts that; `written_stacks` has the exceptions.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    done: set[str] = set()
    for tensor in tensors:
        if tensor.name in done:
            continue
        name, parts = _stack_of(tensor.name, rules)
        done.update(parts)
        yield name, tuple(by_name[part] for part in parts)


def written_stacks(
    tensors: Sequence[LogicalTensor], rules: Sequence[StackRule]
) -> Iterator[tuple[StackRule, Stack]]:
    """Yield the stacks that an exported checkpoint must have, in the order of their rules.

    The parts of the first expert come first, then those of the next.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    for rule in rules:
        if rule.arrangement is None or not rule.arrangement.written:
            continue
        stacks: dict[str, list[tuple[int, int, str]]] = {}
        for index, part in enumerate(rule.parts):
            pattern = _pattern(part)
            for name in by_name:
                match = pattern.fullmatch(name)
                if match is not None:
                    fields = match.groupdict()
                    place = (int(fields.get("expert") or 0), index, name)
                    stacks.setdefault(rule.name.format(layer=fields["layer"]), []).append(place)
        for stack, places in stacks.items():
            yield rule, (stack, tuple(by_name[name] for _, _, name in sorted(places)))


def _pattern(part: str) -> re.Pattern[str]:
    """Return the pattern of the names of a part in all layers, and of all experts."""
    text = re.escape(part)
    for word in ("layer", "expert"):
        text = text.replace(rf"\{{{word}\}}", rf"(?P<{word}>\d+)")
    return re.compile(text)


def arrangement(name: str, rules: Sequence[StackRule], sizes: Architecture) -> Arrange | None:
    """Return how the parts of a stack are arranged; None if they are only concatenated.

    Args:
        name: Name of the stack, or of any other tensor.
        rules: The stacks of the architecture.
        sizes: The manifest's `architecture`, by whose heads the parts may alternate.
    """
    for rule in rules:
        if re.fullmatch(re.escape(rule.name).replace(r"\{layer\}", r"\d+"), name):
            if rule.by_head:
                return partial(_alternate, groups=sizes.num_key_value_heads)
            if rule.pieces:
                dimensions = linear_dimensions(sizes)
                pieces = [Piece(part, dimensions[size]) for part, size in rule.pieces]
                return partial(_in_pieces, rows=rows_of_parts(pieces, dimensions[rule.groups]))
            return transpose if rule.transposed else None
    return None


def transpose(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the concatenated rows of all parts, transposed."""
    return np.concatenate(parts).T


def _alternate(parts: Sequence[npt.NDArray[Any]], groups: int) -> npt.NDArray[Any]:
    """Return the rows of all parts group by group; those of vectors are their elements."""
    columns = 1 if parts[0].shape[0] == 1 else parts[0].shape[1]
    return np.concatenate([part.reshape(groups, -1, columns) for part in parts], axis=1)


def _in_pieces(parts: Sequence[npt.NDArray[Any]], rows: Sequence[Rows]) -> npt.NDArray[Any]:
    """Return the stack of which each part consists of some rows."""
    joined = np.concatenate(parts)
    whole = np.empty_like(joined)
    whole[np.concatenate(rows)] = joined
    return whole


def _stack_of(name: str, rules: Sequence[StackRule]) -> tuple[str, tuple[str, ...]]:
    for rule in rules:
        if rule.arrangement is not None or any("{expert}" in part for part in rule.parts):
            continue
        for part in rule.parts:
            match = _pattern(part).fullmatch(name)
            if match is not None:
                layer = match.groupdict().get("layer")
                return rule.name.format(layer=layer), tuple(
                    member.format(layer=layer) for member in rule.parts
                )
    return name, (name,)
