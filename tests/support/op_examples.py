"""An example of every op of the graph, for tests that lower each op by itself."""

from __future__ import annotations

from dataclasses import replace

from rdrr_manifests.graph.ops import (
    Activation,
    AppendStream,
    Attention,
    ChannelFactors,
    Clamp,
    CombineStreams,
    Concat,
    DeltaRule,
    Embed,
    Experts,
    GatedActivation,
    Head,
    LatentAttention,
    Linear,
    Norm,
    PositionEmbed,
    PositionScale,
    Recall,
    Residual,
    Rope,
    Router,
    Scale,
    ShortConvolution,
    SigmoidGate,
    Slice,
    Sparsify,
    StateSpace,
    StreamCoefficients,
    WeightKind,
    WeightUse,
)
from support.single_ops import CONTEXT, HEAD_DIM, HIDDEN, KV_HEADS, VOCAB, Example

K, INNER, HEADS, EXPERTS = 64, 48, 4, 5
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM


def vector(name: str, *shape: int) -> WeightUse:
    return WeightUse(name, shape, WeightKind.VECTOR)


def experts(part: str, *shape: int, count: int = EXPERTS) -> tuple[WeightUse, ...]:
    return tuple(WeightUse(f"{part}.{at}", shape, WeightKind.EXPERT) for at in range(count))


def routed(router: Router) -> Example:
    """Return a mixture of experts with this router."""
    shapes = {"gate": (INNER, K), "up": (INNER, K), "down": (K, INNER)}
    stacks = [experts(part, *shape, count=router.experts) for part, shape in shapes.items()]
    return Example((router, Experts("x", "routes", "y", *stacks, "gelu_tanh", INNER)), {"x": K})


XIELU = (vector("alpha_p", 1), vector("alpha_n", 1), vector("beta", 1), vector("eps", 1))
NORM = Norm("x", "y", vector("gain", K), eps=0.5, unit_offset=True)
EXAMPLES = {
    "embed": Example((Embed("y", WeightUse("w", (VOCAB, K), WeightKind.TABLE), 0.5),), {}),
    "recall": Example((Recall("y", HIDDEN),), {}),
    "norm": Example((NORM,), {"x": K}),
    "norm of heads": Example((replace(NORM, weight=vector("gain", 16), groups=4),), {"x": K}),
    "norm of heads with a weight each": Example(
        (replace(NORM, weight=vector("gain", 4, 16), bias=vector("b", 4, 16), groups=4),), {"x": K}
    ),
    "norm without a weight": Example(
        (replace(NORM, weight=None, unit_offset=False, groups=4, elements=16),), {"x": K}
    ),
    "layer norm": Example((replace(NORM, centred=True, bias=vector("b", K)),), {"x": K}),
    "layer norm and residual": Example(
        (replace(NORM, centred=True, out="branch"), Residual("s", "branch", "y")),
        {"x": K, "s": K},
    ),
    "types": Example(
        (PositionEmbed("x", "y", WeightUse("w", (CONTEXT, K), WeightKind.TABLE), 1, by_type=True),),
        {"x": K},
    ),
    "positions": Example(
        (PositionEmbed("x", "y", WeightUse("w", (CONTEXT + 2, K), WeightKind.TABLE), 2),), {"x": K}
    ),
    "linear": Example((Linear("x", "y", WeightUse("w", (20, K)), vector("b", 20)),), {"x": K}),
    "rope": Example((Rope("x", "y", HEADS, 0),), {"x": Q}),
    "interleaved rope": Example((Rope("x", "y", HEADS, 0, interleaved=True),), {"x": Q}),
    "position scale": Example((PositionScale("x", "y", 0.5, 2, offset=3),), {"x": K}),
    "attention": Example(
        (Attention("q", "k", "v", "y", 0, HEADS, KV_HEADS, HEAD_DIM, 0.5, window=2, softcap=2.0),),
        {"q": Q, "k": KV, "v": KV},
    ),
    "attention with a bias by distance": Example(
        (
            Attention(
                *("q", "k", "v", "y", 0, HEADS, KV_HEADS, HEAD_DIM, 0.5),
                window=2,
                causal=False,
                bias=vector("bias", 8, HEADS),
                bias_distance=3,
            ),
        ),
        {"q": Q, "k": KV, "v": KV},
    ),
    "attention with ALiBi": Example(
        (
            Attention(
                *("q", "k", "v", "y", 0, HEADS, KV_HEADS, HEAD_DIM, 0.5),
                window=2,
                causal=False,
                alibi=8.0,
            ),
        ),
        {"q": Q, "k": KV, "v": KV},
    ),
    "latent attention": Example(
        (
            LatentAttention(
                *("q", "kv", "y", vector("gain", 48), WeightUse("up", (5 * (24 + 20), 48)), 0, 5),
                key_dim=24,
                rope_dim=HEAD_DIM,
                value_dim=20,
                table=0,
                interleaved=True,
                eps=0.5,
                scale=0.5,
            ),
        ),
        {"q": 5 * (24 + HEAD_DIM), "kv": 48 + HEAD_DIM},
    ),
    "activation": Example(
        (GatedActivation("gate", "up", "y", "gelu_tanh", INNER),), {"gate": INNER, "up": INNER}
    ),
    "clamped activation": Example(
        (GatedActivation("gate", "up", "y", "silu", INNER, Clamp(0.8, 1.7, 0.5)),),
        {"gate": INNER, "up": INNER},
    ),
    "activation of a part": Example(
        (GatedActivation("gate", "up", "y", "silu", INNER, up_parts=3, up_part=1),),
        {"gate": INNER, "up": 3 * INNER},
    ),
    "activation of one value": Example(
        (GatedActivation("gate", None, "y", "silu", INNER),), {"gate": 2 * INNER}
    ),
    "attention with sinks": Example(
        (
            Attention(
                *("q", "k", "v", "y", 0, HEADS, KV_HEADS, HEAD_DIM, 0.5),
                window=2,
                sinks=vector("sinks", HEADS),
                chunk=3,
            ),
        ),
        {"q": Q, "k": KV, "v": KV},
    ),
    "experts with biases": Example(
        (
            Router(
                *("x", "routes", WeightUse("router", (EXPERTS, K)), 2),
                normalize=True,
                bias=vector("router bias", EXPERTS),
            ),
            Experts(
                *("x", "routes", "y"),
                *(experts("gate", INNER, K), experts("up", INNER, K), experts("down", K, INNER)),
                *("silu", INNER, Clamp(0.8, 1.7, 0.5)),
                *(vector("gate bias", EXPERTS, INNER), vector("up bias", EXPERTS, INNER)),
                vector("down bias", EXPERTS, K),
            ),
        ),
        {"x": K},
    ),
    "experts with gate and up in one matrix": Example(
        (
            Router(*("x", "routes", WeightUse("router", (EXPERTS, K)), 2), normalize=True),
            Experts(
                *("x", "routes", "y", (), experts("gate up", 2 * INNER, K)),
                *(experts("down", K, INNER), "silu", INNER),
                gate_bias=vector("gate bias", EXPERTS, INNER),
                up_bias=vector("up bias", EXPERTS, INNER),
                fused=True,
            ),
        ),
        {"x": K},
    ),
    "activation with parameters": Example(
        (Activation("x", "y", "xielu", INNER, XIELU),), {"x": INNER}
    ),
    "activation with a limit": Example(
        (Activation("x", "y", "clip", INNER, limit=0.4),), {"x": INNER}
    ),
    "activation without a gate": Example((Activation("x", "y", "relu2", INNER),), {"x": INNER}),
    "experts with factors": routed(
        Router(
            *("x", "routes", WeightUse("router", (EXPERTS, K)), 2),
            normalize=True,
            expert_scale=vector("factors", EXPERTS),
        )
    ),
    "experts": routed(Router("x", "routes", WeightUse("router", (EXPERTS, K)), 2, normalize=True)),
    "experts of near logits": routed(
        Router(
            *("x", "routes", WeightUse("router", (EXPERTS, K)), 2),
            normalize=False,
            scoring="sparsemixer",
            expert_scale=vector("factors", EXPERTS),
            scale=1.5,
            margin=0.9,
        )
    ),
    "experts without gates": Example(
        (
            Router("x", "routes", WeightUse("router", (EXPERTS, K)), 2, normalize=True),
            Experts(
                *("u", "routes", "y", (), experts("up", INNER, 40), experts("down", 40, INNER)),
                *("relu2", INNER),
                down_bias=vector("down bias", EXPERTS, 40),
            ),
        ),
        {"x": K, "u": 40},
    ),
    "experts of sigmoid scores": routed(
        Router(
            *("x", "routes", WeightUse("router", (24, K)), 8),
            normalize=True,
            bias=vector("b", 24),
            scoring="sigmoid",
            selection_bias=vector("s", 24),
            groups=8,
            top_groups=3,
            group_score="top2",
            scale=2.5,
        )
    ),
    "sigmoid gate": Example(
        (SigmoidGate("x", "branch", "y", vector("w", 1, K)),), {"x": K, "branch": 20}
    ),
    "concat": Example((Concat("x", "y", "z"),), {"x": K, "y": 20}),
    "slice": Example((Slice("x", "y", 4, 16, 4, 8),), {"x": K}),
    "short convolution": Example(
        (ShortConvolution("x", "y", vector("w", 36, 1, 3), vector("b", 36), 0, "silu"),),
        {"x": 36},
    ),
    "gated short convolution": Example(
        (ShortConvolution("x", "y", vector("w", 12, 1, 4), None, 0, "silu", 3),), {"x": 36}
    ),
    "short convolution with factors": Example(
        (
            ShortConvolution(
                *("x", "y", vector("w", 36, 1, 3), vector("b", 36), 0, "silu"),
                factors=ChannelFactors((10, 20, 6), (0.5, 3.0, 1e-05)),
            ),
        ),
        {"x": 36},
    ),
    "activation of a scaled gate": Example(
        (GatedActivation("gate", "up", "y", "silu", INNER, gate_scale=0.3),),
        {"gate": INNER, "up": INNER},
    ),
    "delta rule": Example(
        (
            DeltaRule(
                *("qkv", "decay", "strength", "y"),
                *(vector("rate", 4), vector("bias", 4), 0),
                *(2, 4, 12, 8),
                eps=2.0,
            ),
        ),
        {"qkv": 80, "decay": 4, "strength": 4},
    ),
    "norm of groups with a long weight": Example(
        (replace(NORM, weight=vector("gain", K), groups=4, elements=16),), {"x": K}
    ),
    "state space": Example(
        (
            StateSpace(
                *("xbc", "step", "y"),
                *(vector("rate", 6), vector("bias", 6), vector("skip", 6), 0),
                *(6, 8, 2, 12),
                least_step=0.4,
                most_step=0.9,
                step_scale=0.7,
            ),
        ),
        {"xbc": 96, "step": 6},
    ),
    "residual": Example((Residual("x", "branch", "y", 0.5),), {"x": K, "branch": K}),
    "scale": Example((Scale("x", "y", 0.5, vector("w", K)),), {"x": K}),
    "scale of a whole row": Example((Scale("x", "y", 0.5, vector("w", 1)),), {"x": K}),
    "scale and bias": Example((Scale("x", "y", 0.5, vector("w", K), vector("b", K)),), {"x": K}),
    "bias": Example((Scale("x", "y", bias=vector("b", K)),), {"x": K}),
    "scale by a constant": Example((Scale("x", "s", 0.5), Residual("x", "s", "y")), {"x": K}),
    "attention over older keys": Example(
        (
            Attention("q", "k", "v", "a", 0, HEADS, KV_HEADS, HEAD_DIM, 0.5, window=2),
            Attention("r", None, None, "y", 0, HEADS, KV_HEADS, HEAD_DIM, 0.25, 3, 4.0),
            Residual("a", "y", "z"),
        ),
        {"q": Q, "k": KV, "v": KV, "r": Q},
    ),
    "sparse activation": Example((Sparsify("x", "y", 0.7),), {"x": K}),
    "streams": Example(
        (
            AppendStream("x", "u", "xx", 4.0),
            StreamCoefficients("x", "c", vector("r", 2, K), vector("p", 4, 2), 3.0),
            CombineStreams("xx", "mixed", "mix", 2, coefficients="c"),
            StreamCoefficients("u", "d", vector("r", 2, K), vector("q", 2, 2), 3.0),
            CombineStreams("mixed", "corrected", "correct", 2, 0, "u", "d"),
            CombineStreams("corrected", "y", "add", 2, 1, "x"),
        ),
        {"x": K, "u": K},
    ),
    "a small stream": Example(
        (Scale("u", "s", 1e-3), AppendStream("x", "s", "y", 1e-5)), {"x": K, "u": K}
    ),
    "mean of streams": Example((CombineStreams("x", "y", "mean", 4),), {"x": 4 * K}),
    "head": Example(
        (replace(NORM, out="final"), Head("final", "y", WeightUse("w", (VOCAB, K)), 0.5, 2.0)),
        {"x": K},
    ),
    "head with a bias": Example(
        (
            replace(NORM, out="final", centred=True),
            Head("final", "y", WeightUse("w", (VOCAB, K)), 0.5, bias=vector("b", VOCAB)),
        ),
        {"x": K},
    ),
}


OPTIONAL_WEIGHTS = ("sinks", "bias", "down_bias", "expert_scale")
OTHERS = {"silu": "gelu_tanh", "gelu_tanh": "silu", "softmax": "sigmoid", "sigmoid": "softmax"}
OTHERS |= {"sparsemixer": "softmax", "max": "top2", "top2": "max", "relu2": "relu"}
