"""`inference.session`: the settings of a run that DOPPLER reads from the manifest.

DOPPLER refuses a manifest that lacks one of these fields. They are its defaults, except that
activations and the arithmetic are in f32, in which it computes the same tokens as rdrr.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_CACHE_BYTES = 128 << 20

SESSION: Mapping[str, Any] = MappingProxyType(
    {
        "compute": {
            "defaults": {
                "activationDtype": "f32",
                "mathDtype": "f32",
                "accumDtype": "f32",
                "outputDtype": "f32",
            }
        },
        "kvcache": {
            "kvDtype": "f16",
            "layout": "contiguous",
            "tiering": {
                "mode": "off",
                "gating": {"mode": "auto"},
                "compression": {"mode": "none"},
            },
            "quantization": {"mode": "none"},
        },
        "decodeLoop": {
            "batchSize": 1,
            "stopCheckMode": "batch",
            "readbackInterval": 1,
            "readbackMode": "sequential",
            "disableCommandBatching": False,
        },
        "perLayerInputs": {
            "materialization": "auto",
            "rowCache": {
                "mode": "lru",
                "maxRows": 256,
                "maxBytes": _CACHE_BYTES,
                "decodedDtype": "f32",
            },
            "prefetch": {"mode": "next_token", "rowsAhead": 1},
            "gpuUpload": {"mode": "per_step_slices", "stagingRows": 2},
            "hotCache": {
                "mode": "prepared_tokens",
                "maxTokens": 1024,
                "maxBytes": _CACHE_BYTES,
                "outputDtype": "f32",
            },
        },
    }
)
"""`perLayerInputs` concerns models with per-layer embeddings, and is required of all the same."""
