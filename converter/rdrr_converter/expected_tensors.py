"""The tensors that an architecture allows in a model, layer by layer and expert by expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rdrr_manifests.models import MoeConfig

from rdrr_converter.architectures import ArchitectureRule, Config, TensorRule


@dataclass(frozen=True)
class ExpectedTensor:
    """A tensor that the architecture allows, for one layer and expert."""

    rule: TensorRule
    layer: int | None = None
    expert: int | None = None

    def fill(self, name: str) -> str:
        """Insert the indices of this layer and expert into a name."""
        return name.format(layer=self.layer, expert=self.expert)


def expected_tensors(
    rule: ArchitectureRule, config: Config, layers: int, moe: MoeConfig | None
) -> Iterator[ExpectedTensor]:
    """Yield every tensor that the model may have, in storage order."""
    per_layer = [row for row in rule.tensors if row.is_per_layer]
    first = rule.tensors.index(per_layer[0])
    yield from (ExpectedTensor(row) for row in rule.tensors[:first])
    owners = {row.name: frozenset(row.layers(config)) for row in per_layer if row.layers}
    for layer in range(layers):
        own = [row for row in per_layer if layer in owners.get(row.name, (layer,))]
        for is_per_expert, rows in groupby(own, lambda row: row.is_per_expert):
            numbers = range(moe.num_experts) if is_per_expert and moe else (None,)
            kept = list(rows)
            yield from (ExpectedTensor(row, layer, number) for number in numbers for row in kept)
    yield from (ExpectedTensor(row) for row in rule.tensors[first:] if not row.is_per_layer)


def is_required(rule: TensorRule, config: Config) -> bool:
    """Return whether a configuration requires a tensor."""
    return rule.required(config) if callable(rule.required) else rule.required
