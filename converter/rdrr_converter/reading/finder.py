"""Finding the tensors of a checkpoint: by name, within a stack, or stored row by row."""

from __future__ import annotations

from math import prod

from rdrr_format.errors import SourceError

from rdrr_converter.architectures import ArchitectureRule
from rdrr_converter.architectures.base import BODY, Arrangement, StackRule
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.reading.expected_tensors import ExpectedTensor, Shapes
from rdrr_converter.reading.grouped_rows import Piece, rows_of_parts, with_rows
from rdrr_converter.reading.interleaved import stacked_shape, take_apart
from rdrr_converter.reading.stacks import (
    by_expert,
    join_rows,
    transposed,
    unstack,
    unstack_groups,
    with_head_gates,
)


class Finder:
    """A lookup of tensors by canonical name that also finds parts of stacked tensors."""

    def __init__(self, source: Source, rule: ArchitectureRule, shapes: Shapes) -> None:
        self.used: set[str] = set()
        self._path = source.path
        self._rule = rule
        self._tensors = source.tensors
        self._stacks = rule.stacks
        self._rows = {row.name: row for row in rule.tensors}
        self._dimensions = shapes.dimensions
        self._shape = shapes.shape
        self._parts: dict[str, SourceTensor] = {}
        self._prefix = _prefix(source, rule)

    def name_in_source(self, name: str) -> str:
        """Return the name that this checkpoint uses for the usual name in checkpoints."""
        body = self._rule.body
        return self._prefix + name.removeprefix(body) if name.startswith(body) else name

    def names_in_source(self, expected: ExpectedTensor) -> dict[str, str]:
        """Return the names that this checkpoint may have for a tensor, by the usual names."""
        published, canonical = self._rule.published_name(expected.rule.name), expected.rule.name
        # A GGUF is read with canonical names, and in the usual order of rows and columns.
        names = dict.fromkeys((published, canonical, *expected.rule.aliases))
        return {name: self.name_in_source(expected.fill(name)) for name in names}

    def find(self, expected: ExpectedTensor) -> SourceTensor | None:
        """Find a tensor; return None if the checkpoint does not have it.

        Raises:
            SourceError: The tensor, or the stack that contains it, has the wrong shape.
        """
        published, canonical = self._rule.published_name(expected.rule.name), expected.rule.name
        for name, stored in self.names_in_source(expected).items():
            tensor = self._tensors.get(stored)
            if tensor is not None:
                self.used.add(tensor.name)
                tensor = self._gated(tensor, expected)
                if name == published and self._rule.is_transposed(canonical):
                    tensor = transposed(tensor)
                tensor.need_shape(self._shape(expected.rule, expected.layer))
                return tensor
        name = expected.fill(canonical)
        if name not in self._parts:
            for stack in self._stacks:
                if canonical in stack.parts:
                    self._unstack(stack, expected)
        if name not in self._parts:
            self._join_rows(expected)
        return self._parts.get(name)

    def join(self, expected: ExpectedTensor) -> SourceTensor | None:
        """Join the scalars that a tensor consists of, [scalars, 1]; None if one is missing.

        Raises:
            SourceError: One is no scalar.
        """
        joined = self._rule.joined.get(expected.rule.name, ())
        names = [self.name_in_source(expected.fill(name)) for name in joined]
        parts = [self._tensors[name] for name in names if name in self._tensors]
        if not names or len(parts) < len(names):
            return None
        for part in parts:
            part.need_shape(())
        self.used.update(names)
        return join_rows(expected.fill(expected.rule.name), parts)

    def _gated(self, tensor: SourceTensor, expected: ExpectedTensor) -> SourceTensor:
        """Return a matrix with the gates of its heads, if the checkpoint has them apart."""
        name = self._rule.head_gate(expected.fill(expected.rule.name))
        gates = None if name is None else self._tensors.get(self.name_in_source(name))
        if gates is None:
            return tensor
        rows, columns = self._shape(expected.rule, expected.layer)
        tensor.need_shape((rows // 2, columns))
        gates.need_shape((self._dimensions["heads"], columns))
        self.used.add(gates.name)
        return with_head_gates(tensor, gates)

    def _join_rows(self, expected: ExpectedTensor) -> None:
        """Join the tensors that are the rows of a tensor, if the checkpoint has the first."""
        name, shape = expected.fill(expected.rule.name), self._shape(expected.rule, expected.layer)
        # With more rows than there are tensors, some are missing, however many are named.
        rows = min(shape[0] if shape else 1, len(self._tensors) + 1)
        names = [self.name_in_source(row) for row in self._rule.row_names(name, rows)]
        if not names or names[0] not in self._tensors:
            return
        missing = [row for row in names if row not in self._tensors]
        if missing:
            raise SourceError(
                "a tensor is missing", where=self._path, expected=missing[0], found=names[0]
            )
        parts = [self._tensors[row] for row in names]
        for part in parts:
            part.need_shape(shape[1:])
        self.used.update(names)
        self._parts[name] = join_rows(name, parts)

    def _unstack(self, stack: StackRule, expected: ExpectedTensor) -> None:
        whole = self._tensors.get(self.name_in_source(expected.fill(stack.name)))
        if whole is None:
            return
        if stack.pieces:
            self._parts |= self._in_pieces(stack, whole, expected)
            return
        if self._rows[stack.parts[0]].is_per_expert:
            whole = by_expert(whole, self._dimensions["experts"])
        arrangement = stack.arrangement
        if arrangement is not None and not (
            arrangement.or_plain and whole.shape == self._plain_shape(stack, expected)
        ):
            self._parts |= self._arranged(stack, arrangement, whole, expected)
            return
        parts, stored = stack.parts, whole
        if stack.transposed:
            whole = transposed(whole)
        is_per_expert = self._rows[parts[0]].is_per_expert
        numbers = range(self._dimensions["experts"]) if is_per_expert else (None,)
        names = [
            part.format(layer=expected.layer, expert=number) for number in numbers for part in parts
        ]
        shapes = [self._shape(self._rows[part], expected.layer) for _ in numbers for part in parts]
        self.used.add(stored.name)
        groups = self._dimensions["kv_heads"] if stack.by_head else 1
        if len(shapes[0]) == 1 or groups > 1:
            total = sum(shape[0] for shape in shapes)
            whole.need_shape((total, *shapes[0][1:]))
            self._parts |= dict(zip(names, unstack_groups(whole, shapes, groups), strict=True))
            return
        columns = shapes[0][-1]
        rows = sum(prod(shape[:-1]) for shape in shapes)
        leading = (len(numbers), rows // len(numbers)) if is_per_expert else (rows,)
        whole.need_shape((*leading, columns))
        matrices = unstack(whole, [(prod(shape[:-1]), columns) for shape in shapes])
        self._parts |= dict(zip(names, matrices, strict=True))

    def _plain_shape(self, stack: StackRule, expected: ExpectedTensor) -> tuple[int, ...]:
        """Return the shape of a stack of experts whose rows follow each other."""
        shapes = [self._shape(self._rows[part], expected.layer) for part in stack.parts]
        return self._dimensions["experts"], sum(shape[0] for shape in shapes), shapes[0][-1]

    def _in_pieces(
        self, stack: StackRule, whole: SourceTensor, expected: ExpectedTensor
    ) -> dict[str, SourceTensor]:
        """Return the parts of a stack whose rows alternate in pieces, by their names."""
        shapes = [self._shape(self._rows[part], expected.layer) for part in stack.parts]
        whole.need_shape((sum(shape[0] for shape in shapes), shapes[0][-1]))
        self.used.add(whole.name)
        pieces = [Piece(part, self._dimensions[size]) for part, size in stack.pieces]
        rows = rows_of_parts(pieces, self._dimensions[stack.groups])
        return {
            expected.fill(part): with_rows(
                whole, part_rows, part.rpartition(".")[0].rpartition(".")[2]
            )
            for part, part_rows in zip(stack.parts, rows, strict=True)
        }

    def _arranged(
        self,
        stack: StackRule,
        arrangement: Arrangement,
        whole: SourceTensor,
        expected: ExpectedTensor,
    ) -> dict[str, SourceTensor]:
        """Return the parts of a stack by their names."""
        is_per_expert = self._rows[stack.parts[0]].is_per_expert
        experts = self._dimensions["experts"] if is_per_expert else None
        names = [
            part.format(layer=expected.layer, expert=number)
            for number in range(experts or 1)
            for part in stack.parts
        ]
        shapes = [self._shape(self._rows[part], expected.layer) for part in stack.parts]
        matrices = [(prod(shape[:-1]), shape[-1]) for shape in shapes]
        whole.need_shape(stacked_shape(arrangement, matrices, experts))
        self.used.add(whole.name)
        parts = take_apart(whole, matrices, arrangement, experts or 1)
        return dict(zip(names, parts, strict=True))


def _prefix(source: Source, rule: ArchitectureRule) -> str:
    """Return the prefix of a checkpoint: that of its embedding, else of its final norm."""
    for module in ("embed_tokens", "norm"):
        name = rule.published_name(f"{BODY}{module}.weight").removeprefix(rule.body)
        for prefix in rule.prefixes:
            if f"{prefix}{name}" in source.tensors:
                return prefix
    return rule.prefixes[0]
