"""The ops of a mixture of experts: the router, and the experts that it chooses."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.row_ops import Clamp
from rdrr_manifests.graph.weights import Value, WeightUse


@dataclass(frozen=True)
class Router:
    """The experts of each row and their routing weights.

    out holds `top_k` pairs of expert and routing weight for each row, computed at least in float32:

        score(e)   softmax(x W^T + bias)[e] or sigmoid(x W^T + bias)[e], as `scoring` says
        choice(e)  score(e) + selection_bias[e], only in the `top_groups` best groups
        weight(e)  score(e), with `normalize` divided by their sum over the selected, times `scale`
                   and expert_scale[e]

    The `top_k` experts of largest choice are selected, in falling order, ties to the lower expert.
    With `normalize`, a softmax over all experts gives the same as one over the selected ones.

    With `sparsemixer` scoring (arXiv 2409.12136) the logits select the experts. The weight of one
    is its softmax among the experts that were not selected before it and whose logits l are near
    its own logit t: t - l <= margin * max(|l|, t). There are neither groups nor a selection bias.

    Attributes:
        weight: [experts, features of x].
        top_k: Experts selected for each row.
        normalize: Whether the routing weights of a row are divided by their sum.
        bias: Added to the logits, [experts].
        scoring: `softmax`, `sigmoid` or `sparsemixer`.
        selection_bias: Added to the scores for the selection only, [experts].
        groups: Groups of consecutive experts, of equal size.
        top_groups: Groups of which experts may be selected, those of the largest group score.
        group_score: `max`, the largest choice of a group, or `top2`, the sum of its largest two.
        scale: Factor on the routing weights.
        expert_scale: Further factor on the routing weight of each expert, [experts].
        margin: Relative distance of the logits that compete with `sparsemixer`; else 0.
    """

    x: Value
    out: str
    weight: WeightUse
    top_k: int
    normalize: bool
    bias: WeightUse | None = None
    scoring: str = "softmax"
    selection_bias: WeightUse | None = None
    groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    scale: float = 1.0
    expert_scale: WeightUse | None = None
    margin: float = 0.0

    @property
    def experts(self) -> int:
        """Number of experts to select from."""
        return self.weight.shape[0]


@dataclass(frozen=True)
class Experts:
    """out = sum of weight * down(activation(gate(x)) * up(x)) over the experts of each row.

    Experts without gates compute down(activation(up(x))).

    Attributes:
        router: Value of the `Router` that selects the experts and their routing weights.
        gates: Gate projection of each expert, [width, features of x]; empty if ups hold them, or if
            there are none, and then there is no clamp, no bias of gates or ups, and inputs are not
            scaled.
        ups: Up projection of each expert, [width, features of x]; with `fused` the gate projection
            and then the up projection, [2 width, features of x].
        downs: Down projection of each expert, [features of x, width].
        activation: Activation, as in `GatedActivation`.
        width: Width of an expert's inner layer.
        clamp: As in `GatedActivation`.
        gate_bias: Biases of the gate projections, [experts, width]; None for none.
        up_bias: Biases of the up projections, [experts, width]; None exactly if `gate_bias` is.
        down_bias: Biases of the down projections, [experts, features of x]; None for none.
        scales_inputs: Whether the routing weight multiplies the input of an expert, and not its
            output.
        fused: Whether gate and up are one matrix of each expert.
    """

    x: Value
    router: Value
    out: str
    gates: tuple[WeightUse, ...]
    ups: tuple[WeightUse, ...]
    downs: tuple[WeightUse, ...]
    activation: str
    width: int
    clamp: Clamp | None = None
    gate_bias: WeightUse | None = None
    up_bias: WeightUse | None = None
    down_bias: WeightUse | None = None
    scales_inputs: bool = False
    fused: bool = False

    @property
    def is_gated(self) -> bool:
        """Whether experts have gates, as matrices of their own or not."""
        return bool(self.gates) or self.fused
