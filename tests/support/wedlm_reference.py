"""A reference of WeDLM's decoding in NumPy, in float64 and straight from its definition.

The model is a Llama given by its tensors. Rows are in physical order with explicit positions, and
each pass records how many rows it had and how many masks it filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F64 = np.float64


@dataclass
class Llama:
    """A Llama in float64: weights by name, and sizes from a manifest's architecture."""

    weights: dict[str, Any]
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    theta: float
    eps: float
    cache: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @staticmethod
    def of(package) -> Llama:
        tensors = {
            name: np.array(package.dequantize(name), F64) for name in package.manifest.tensors
        }
        sizes, graph = package.manifest.architecture, package.graph
        return Llama(
            tensors,
            sizes.num_attention_heads,
            sizes.num_key_value_heads,
            sizes.head_dim,
            sizes.num_layers,
            graph.ropes[0].theta,
            graph.ops[-2].eps,
        )

    def forward(self, ids, positions, base: int):
        w, n = self.weights, len(ids)
        x = w["model.embed_tokens.weight"][np.asarray(ids)]
        for layer in range(self.layers):
            x = x + self._attend(layer, x, np.asarray(positions), base)
            head = f"model.layers.{layer}."
            h = self._norm(x, w[f"{head}post_attention_layernorm.weight"])
            gate, up = (h @ w[f"{head}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{head}mlp.down_proj.weight"].T
        assert x.shape[0] == n
        return self._norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T

    def _attend(self, layer: int, x, positions, base: int):
        w, n, head = self.weights, len(x), f"model.layers.{layer}."
        h = self._norm(x, w[f"{head}input_layernorm.weight"])
        q, k, v = (
            (h @ w[f"{head}self_attn.{part}_proj.weight"].T).reshape(n, -1, self.head_dim)
            for part in "qkv"
        )
        q, k = self._rope(q, positions), self._rope(k, positions)
        if base:
            k, v = (
                np.concatenate([old[:base], new])
                for old, new in zip(self.cache[layer], (k, v), strict=True)
            )
        self.cache[layer] = (k, v)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("nhd,mhd->hnm", q, k) / np.sqrt(self.head_dim)
        hidden = np.arange(base + n)[None, :] > (base + np.arange(n))[:, None]
        scores[:, hidden] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hnm,mhd->nhd", shares, v).reshape(n, -1)
        return mixed @ w[f"{head}self_attn.o_proj.weight"].T

    def _norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def _rope(self, x, positions):
        size = x.shape[-1]
        angles = np.outer(positions, 1.0 / self.theta ** (np.arange(0, size, 2) / size))
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def picks(logits):
    """Return the argmax ids and the entropies in nats of the rows of logits."""
    below = logits - logits.max(-1, keepdims=True)
    weights = np.exp(below)
    total = weights.sum(-1)
    return logits.argmax(-1), np.log(total) - (below * weights).sum(-1) / total


@dataclass
class Result:
    """The decoded ids, and for each pass its rows, the ids it added and the masks it filled."""

    ids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    added: list[list[int]] = field(default_factory=list)
    filled: list[int] = field(default_factory=list)
    closest: float = np.inf
    """Smallest distance of an entropy from a decision, or of the second logit from the first."""


def decode(
    model: Llama,
    prompt: Sequence[int],
    *,
    mask: int,
    window: int,
    tau: float | None,
    slope: float,
    max_tokens: int,
    stops: Sequence[int] = (),
    cap: int | None = None,
) -> Result:
    """Decode a prompt by WeDLM's definition, one pass per step."""
    result = Result()
    length = len(prompt)
    model.forward(prompt, np.arange(length), 0)
    tokens = [mask] * min(window, max_tokens)
    masked = [True] * len(tokens)
    issued = len(tokens)
    while True:
        ready = masked.index(True) if True in masked else len(tokens)
        more = min(ready, max_tokens - issued)
        tokens, masked, issued = tokens + [mask] * more, masked + [True] * more, issued + more
        known = [at for at, id_ in enumerate(masked) if not id_]
        order = known + [at for at, id_ in enumerate(masked) if id_]
        positions = [length + at for at in order]
        logits = model.forward([tokens[at] for at in order], positions, length)
        result.rows.append(len(order))
        length += ready
        tokens, masked = tokens[ready:], masked[ready:]
        open_slots = [at for at, id_ in enumerate(masked) if id_]
        ids, entropy = picks(logits[len(known) :])
        raised = entropy + slope * (np.array(open_slots) - open_slots[0])
        chosen = [] if tau is None else np.flatnonzero(raised < tau)[:cap].tolist()
        chosen = chosen or [int(raised.argmin())]
        result.closest = min(result.closest, _margin(logits[len(known) :], raised, tau))
        result.filled.append(len(chosen))
        for index in chosen:
            tokens[open_slots[index]] = int(ids[index])
            masked[open_slots[index]] = False
        result.added.append([])
        for token in tokens[: [*masked, True].index(True)]:
            result.ids.append(token)
            result.added[-1].append(token)
            if token in stops or len(result.ids) == max_tokens:
                return result


def _margin(logits, raised, tau: float | None) -> float:
    ordered = np.sort(logits, -1)
    gaps = [(ordered[:, -1] - ordered[:, -2]).min()]
    if len(raised) > 1:
        gaps.append(np.diff(np.sort(raised)[:2])[0])
    if tau is not None:
        gaps.append(np.abs(raised - tau).min())
    return float(min(gaps))
