"""Multi-head latent attention in plain torch, which expands the keys and values of all tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rdrr_manifests.graph.ops import LatentAttention
from torch import Tensor

from rdrr_runtime.reference.run import ReferencePass

Attend = Callable[..., Tensor]


def expanded(
    op: LatentAttention, latents: Tensor, shared: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the keys [heads, slots, key_dim + rope_dim] and values [heads, slots, value_dim].

    Args:
        op: Sizes of the heads.
        latents: Normed latents, [slots, latent].
        shared: Rotated keys that all heads share, [slots, rope_dim].
        up: The op's `up`, [heads * (key_dim + value_dim), latent].
    """
    up_projected = (
        (latents @ up.T).unflatten(-1, (op.heads, op.key_dim + op.value_dim)).transpose(0, 1)
    )
    content, values = up_projected.split((op.key_dim, op.value_dim), dim=-1)
    return torch.cat([content, shared.expand(op.heads, -1, -1)], dim=-1), values


def attend_to_latents(
    run: ReferencePass, op: LatentAttention, norm: Attend, rope: Attend, attention: Attend
) -> Tensor:
    """Store the latents and shared keys of the pass, then attend to all valid slots.

    Args:
        run: The pass.
        op: The op.
        norm: `ops.rms_norm`.
        rope: `ops.rope`.
        attention: `ops.attention`.
    """
    table, end = run.memory.ropes[op.table], run.base + len(run.ids)

    def rotated(x: Tensor) -> Tensor:
        return rope(x, run.positions, table, interleaved=op.interleaved)

    latent, shared = run.values[op.kv].split((op.latent, op.rope_dim), dim=-1)
    latents, keys = (part[0] for part in run.memory.cache[op.layer])
    latents[run.base : end] = norm(latent, run.weight(op.norm), op.eps)
    keys[run.base : end] = rotated(shared.unsqueeze(1)).squeeze(1)
    run.observe(op.up, latents[run.base : end])
    q = run.values[op.q].unflatten(-1, (op.heads, op.key_dim + op.rope_dim))
    content, rope_part = q.split((op.key_dim, op.rope_dim), dim=-1)
    k, v = expanded(op, latents[:end], keys[:end], run.weight(op.up))
    query = torch.cat([content, rotated(rope_part)], dim=-1)
    return attention(query, k, v, op.scale, base=run.base).flatten(-2)
