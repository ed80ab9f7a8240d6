"""Tables that stay in the package, from which the host reads the rows of the tokens of a pass.

Gemma's models for small devices have a table with inputs of each layer for every token, which is
the larger part of their weights. A pass needs only the rows of its tokens, so the table can stay on
disk: local shards are mapped into memory, and each row is read, decoded and uploaded when its token
runs. For this the host must know every token before its pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_format.codecs import CODECS
from rdrr_format.errors import FormatError
from rdrr_format.hub import HubStore
from rdrr_format.layouts import Layout
from rdrr_format.stores import LocalStore
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import Embed
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.decision import Decision

F32 = npt.NDArray[np.float32]

_TYPES = {2: np.float16, 4: np.float32}
"""The type of activations by their bytes."""


@dataclass(frozen=True)
class HostTable:
    """A table on the host, and the buffer for the rows of a pass.

    Attributes:
        package: The package that holds the table.
        op: The op that looks it up.
        rows: Buffer of the rows of the tokens of a pass, [rows, width].
        value_bytes: Bytes per element of an activation.
        content: The table's bytes, uint8 [table rows, bytes per row], if its shards are not on this
            machine; None if rows are read from the shards.
    """

    package: Package
    op: Embed
    rows: BufferSlice
    value_bytes: int
    content: npt.NDArray[np.uint8] | None = None

    def write(self, device: Device, tokens: Sequence[int]) -> None:
        """Upload the rows of tokens; one beyond the table has row 0, as in `Embed`."""
        count = self.op.weight.shape[0]
        valid = [token if 0 <= token < count else 0 for token in tokens]
        unique, index = np.unique(np.asarray(valid, np.int64), return_inverse=True)
        values = self._decoded(unique.tolist()) * np.float32(self.op.scale)
        device.write(self.rows, np.ascontiguousarray(values[index], _TYPES[self.value_bytes]))

    def _decoded(self, tokens: Sequence[int]) -> F32:
        """Return the decoded rows of tokens, f32 [len(tokens), width]."""
        name, width = self.op.weight.name, self.op.weight.shape[1]
        if self.content is not None:
            raw = self.content[list(tokens)]
        else:
            raw = np.concatenate([self.package.read_rows(name, token, 1) for token in tokens])
        dtype = self.package.tensor(name).parsed_dtype()
        decoded: F32 = CODECS[dtype.name].dequantize(np.ascontiguousarray(raw), width)
        return decoded


@dataclass(frozen=True)
class HostTables:
    """The tables of a model that stay on the host."""

    tables: tuple[HostTable, ...]

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.tables)

    @property
    def buffers(self) -> Mapping[str, BufferSlice]:
        """The buffer of the rows of each table, by its name."""
        return {table.op.weight.name: table.rows for table in self.tables}

    def write(self, device: Device, tokens: Sequence[int]) -> None:
        """Upload the rows of the tokens of a pass."""
        for table in self.tables:
            table.write(device, tokens)

    def decisions(self) -> tuple[Decision, ...]:
        """Return where the tables are, for explanations."""
        return tuple(
            Decision(
                "load",
                table.op.weight.name,
                "on the host",
                "the host reads the rows of each pass from the package, so it waits for every "
                "token (layer_inputs)",
            )
            for table in self.tables
        )


def host_tables(
    arena: Arena, package: Package, graph: Graph, rows: int, value_bytes: int
) -> HostTables:
    """Return the tables of a graph that can stay on the host, with buffers for their rows.

    Args:
        arena: Owner of the buffers.
        package: The package that holds the tables.
        graph: The graph.
        rows: Most token rows of a pass.
        value_bytes: Bytes per element of an activation.

    Raises:
        FormatError: A table is not stored row by row.
        ShardError: Bytes of a remote table are missing.
    """
    tables = []
    for op in graph.further_tables:
        name, width = op.weight.name, op.weight.shape[1]
        tensor = package.tensor(name)
        if tensor.parsed_layout() is not Layout.ROW or tensor.shape != op.weight.shape:
            raise FormatError(
                "the host can read only tables that are stored row by row",
                where=name,
                expected=f"layout row, shape {list(op.weight.shape)}",
                found=f"layout {tensor.parsed_layout()}, shape {list(tensor.shape)}",
                hint="use `layer_inputs` gpu",
            )
        content = None
        is_local = isinstance(package.store, LocalStore | HubStore)
        if not is_local and not isinstance(arena, DryRunArena):
            content = package.read(name).reshape(op.weight.shape[0], -1)
        buffer = arena.empty(f"rows of {name}", value_bytes * rows * width)
        tables.append(HostTable(package, op, buffer, value_bytes, content))
    return HostTables(tuple(tables))
