"""Codecs give the same bytes as ggml's C code for the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rdrr_format.codecs import CODECS

_FILE = Path(__file__).parents[1] / "data" / "ggml" / "blocks.npz"
BLOCKS = dict(np.load(_FILE))
KINDS = sorted({name.split("/")[0] for name in BLOCKS if name.endswith("/x")})
CASES = sorted(name for name in BLOCKS if name.count("/") >= 1 and not name.endswith("/x"))


def worst_block(decoded, expected, rows, codec):
    """Describe the block whose values differ most, for the failure message."""
    size = codec.dtype.block_bytes
    different = (decoded != expected).reshape(-1, size).any(axis=1)
    K = rows.shape[1]
    error = np.abs(codec.dequantize(decoded, K) - codec.dequantize(expected, K))
    by_block = error.reshape(-1, codec.dtype.block_elements).max(axis=1)
    worst = int(np.where(different, by_block, -1).argmax())
    at = np.flatnonzero((decoded != expected).reshape(-1, size)[worst])
    return (
        f"{different.sum()} of {different.size} blocks differ; worst is block {worst}: "
        f"bytes {at.tolist()}, largest difference of a weight {by_block[worst]:.3g}"
    )


def test_the_data_covers_every_block_type_and_the_difficult_inputs():
    types = {case.split("/")[1] for case in CASES}
    assert types == {name for name, codec in CODECS.items() if codec.dtype.is_block}
    assert {"normal", "zero", "constant", "negative", "sparse", "denormal", "large"} <= set(KINDS)


@pytest.mark.parametrize("case", CASES)
def test_quantized_blocks_are_those_of_ggml(case):
    kind, name, *weighted = case.split("/")
    codec, rows = CODECS[name], BLOCKS[f"{kind}/x"]
    blocks = codec.quantize(rows, BLOCKS["importance"] if weighted else None)
    expected = BLOCKS[case]
    assert np.array_equal(blocks, expected), worst_block(blocks, expected, rows, codec)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "Q4_0", "Q4_1"])
def test_importance_changes_the_blocks(name):
    rows = BLOCKS["normal/x"]
    plain = CODECS[name].quantize(rows)
    assert not np.array_equal(plain, CODECS[name].quantize(rows, BLOCKS["importance"]))


def test_q8_0_ignores_importance_as_ggml_does():
    rows = BLOCKS["normal/x"]
    weighted = CODECS["Q8_0"].quantize(rows, BLOCKS["importance"])
    assert np.array_equal(weighted, BLOCKS["normal/Q8_0"])


def test_the_worst_block_report_names_the_changed_block():
    codec, rows = CODECS["Q4_K"], BLOCKS["normal/x"]
    changed = BLOCKS["normal/Q4_K"].copy()
    changed[0, 2 * 144 + 20] ^= 7
    assert "1 of 4 blocks differ; worst is block 2: bytes [20]" in worst_block(
        changed, BLOCKS["normal/Q4_K"], rows, codec
    )
