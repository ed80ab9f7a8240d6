"""Reading does not import packages that only writing needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_DECODE = (
    "import sys, numpy as np, rdrr_format.stores, rdrr_format.shards, rdrr_format.encoding\n"
    "from rdrr_format.codecs import CODECS\n"
    "for c in CODECS.values(): c.dequantize(np.zeros((1, c.row_bytes(256)), np.uint8), 256)\n"
)
_LOADED = "print([m for m in ('numba', 'torch', 'fsspec') if m in sys.modules])"


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        (_DECODE, "[]"),
        pytest.param(
            _DECODE + "CODECS['Q4_K'].quantize(np.ones((1, 256), np.float32))\n",
            "['numba']",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["decoding loads nothing heavy", "quantizing loads numba"],
)
def test_imports(code, loaded):
    done = subprocess.run(
        [sys.executable, "-c", code + _LOADED],
        env={**os.environ, "PYTHONPATH": str(_ROOT / "format")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == loaded


def test_quantizing_works_where_no_cache_can_be_written():
    """Without a writable folder for its cache, numba compiles again in every process."""
    code = (
        "import numba, numba.core.caching, numpy as np\n"
        "numba.core.caching.CacheImpl._locator_classes = []\n"
        "def control(): pass\n"
        "try: numba.njit(cache=True)(control)\n"
        "except RuntimeError: print('no cache')\n"
        "from rdrr_format.codecs import CODECS\n"
        "print(CODECS['Q8_0'].quantize(np.ones((1, 32), np.float32)).shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(_ROOT / "format")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["no cache", "(1, 34)"]
