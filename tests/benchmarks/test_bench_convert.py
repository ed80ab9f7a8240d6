"""`bench_convert.py` and `bench_compress.py` on a tiny shape."""

from __future__ import annotations

import bench_compress
import bench_convert
from rdrr_format.codecs import Codec
from shapes import SHAPES
from synthesize import synthesize


def test_every_step_of_a_conversion_is_timed_and_its_function_restored(tmp_path):
    synthesize(SHAPES["tiny"], tmp_path / "tiny", workers=1)
    before = Codec.quantize
    result, seconds = bench_convert.measure(tmp_path / "tiny", {"workers": 1})
    assert Codec.quantize is before
    assert result.parameters > 0
    assert {name for name, _, _ in bench_convert.STEPS} | {"all", "wall"} == set(seconds)
    assert all(seconds[name] > 0 for name, _, _ in bench_convert.STEPS)
    assert 0.9 * seconds["all"] > seconds["quantize"] > seconds["  of it, the search of Q4_K"]


def test_compression_is_measured_on_the_bytes_of_a_package(tmp_path):
    synthesize(SHAPES["tiny"], tmp_path / "tiny", workers=1)
    content = bench_compress.content_of(tmp_path / "tiny", "f16")
    row = bench_compress.measure(content, 1, 1)
    assert 0 < row["size"] < 0.95
    assert row["write"] > 0
    assert row["read"] > 0
