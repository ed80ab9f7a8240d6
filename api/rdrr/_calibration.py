"""The tokens on which methods of `quality` see what a model computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from rdrr_manifests.package import Package
from rdrr_runtime.reference.stack import TextStack
from rdrr_runtime.reference.threads import memory_of
from torch import Tensor

from rdrr._convert import calibration_text
from rdrr._loaded_package import text_codec
from rdrr._measurement import spread

WINDOW, WINDOWS = 256, 128
"""Tokens of a window, and number of windows."""

CACHES, CACHES_SHARE = 1 << 31, 8
"""Bytes of the caches of texts that are sampled together: on the CPU, and as a part of CUDA's."""

SAMPLED_WEIGHTS = 1 << 31
"""A model with more weights samples no text, because its weights must be in memory for that."""


def calibration_windows(
    source: Package, text: str | None, device: str, count: int | None = None
) -> Tensor:
    """Return windows of a text, or of texts that the model itself writes, int [windows, tokens].

    Its own texts are what it has learnt: they say more of what it will compute than a text of
    others. Each begins with a token of the text that comes with rdrr, so that no two are alike.

    Args:
        source: The model in F32.
        text: The text; None for the model's own texts.
        device: Device of torch.
        count: Number of windows, or fewer if the text is shorter; WINDOWS when None.
    """
    count = WINDOWS if count is None else count
    length = min(WINDOW, source.manifest.architecture.max_seq_len)
    codec, graph = text_codec(source), source.graph
    size = sum(int(np.prod(use.shape)) for use in graph.weights())
    if text is not None or not graph.is_causal or size > SAMPLED_WEIGHTS:
        ids = codec.encode(calibration_text() if text is None else text)
        length = min(length, len(ids))
        windows = spread(ids, length * count, length)
        return torch.tensor(windows, device=device).reshape(-1, length)
    prefix = codec.encode("")[:1]
    # Sorted, so that the choice does not depend on the order of the text.
    tokens = sorted(set(codec.encode_as_is(calibration_text())))
    chosen = np.random.default_rng(0).choice(tokens, count)
    starts = torch.tensor([[*prefix, int(token)] for token in chosen], device=device)
    weights: Mapping[str, Tensor] = {
        use.name: torch.from_numpy(np.ascontiguousarray(source.dequantize(use.name))).to(device)
        for use in graph.weights()
    }
    caches = memory_of(device) // CACHES_SHARE if device == "cuda" else CACHES
    parts = starts.split(max(1, caches // max(1, graph.kv_bytes(length, 4))))
    sampled = [
        TextStack(graph, weights, len(part), length, device=device).sample(part, length, seed)
        for seed, part in enumerate(parts)
    ]
    return torch.cat(sampled)
