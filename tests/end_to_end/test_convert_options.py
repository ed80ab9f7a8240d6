"""Options of `rdrr convert` for storage types and quantization, given on the command line."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device.adapters import list_adapters
from support.commands import error_line, rdrr
from support.imatrix_files import write_gguf_imatrix
from support.safetensor_files import llama_tensors, write_llama


@pytest.fixture
def source(tmp_path, rng):
    return write_llama(tmp_path / "source", llama_tensors(rng))


def dtypes(done):
    assert done.code == 0, done.err
    return {tensor["name"]: tensor["dtype"] for tensor in done.json()["tensors"]}


def test_tensor_types_mix_quality_and_importance_can_be_combined(tmp_path, source):
    ones = (np.ones((1, 256)), np.array([1]))
    imatrix = write_gguf_imatrix(tmp_path / "m.gguf", {"blk.0.attn_q.weight": ones})
    words = ["convert", source, tmp_path / "out", "--json", "--quantize", "q5_k_s"]
    words += ["--tensor-type", "o_proj=Q4_0", "--tensor-type", r"layers\.1.*o_proj=q8_0"]
    best = dtypes(rdrr(*words, "--quality", "best", "--imatrix", imatrix))
    assert best["model.layers.0.self_attn.o_proj.weight"] == "Q4_0"
    assert best["model.layers.1.self_attn.o_proj.weight"] == "Q8_0"
    assert best["model.layers.0.self_attn.q_proj.weight"] == "Q5_K"
    assert rdrr("validate", tmp_path / "out", "--deep").code == 0


def test_the_profile_is_an_option(tmp_path, source):
    words = ["convert", source, tmp_path / "out", "--dry-run", "--json"]
    assert set(dtypes(rdrr(*words, "--profile", "doppler")).values()) == {"Q4_K", "F16"}
    assert set(dtypes(rdrr(*words)).values()) == {"Q4_K", "Q6_K", "F32"}


def test_a_key_that_nothing_reads_can_be_allowed(tmp_path, rng):
    source = write_llama(tmp_path / "source", llama_tensors(rng), sliding_window=64, new_key=1)
    words = ["convert", source, tmp_path / "out", "--dry-run", "--allow-unread", "new_key"]
    done = rdrr(*words)
    assert "sliding_window: 64" in error_line(done, 1)
    assert "new_key: 1" not in error_line(done)
    done = rdrr(*words, "--allow-unread", "sliding_window", code=0)
    assert "sliding_window is ignored" in done.out


def test_a_device_encodes_and_is_named_in_the_output_and_not_in_the_package(tmp_path, source):
    adapter = list_adapters()[0].name
    words = ["convert", source, tmp_path / "out", "--device", "wgpu", "--adapter", adapter]
    done = rdrr(*words, code=0)
    blocks = rdrr("convert", source, tmp_path / "cpu", "--json").json()["encoded_blocks"]
    assert f"blocks encoded: {blocks['cpu']:,} by wgpu, 0 by the CPU" in done.err
    again = rdrr(*words, "--json", "--overwrite").json()
    assert again["encoded_blocks"] == {"wgpu": blocks["cpu"], "cpu": 0}
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "cpu").iterdir()}


@pytest.mark.parametrize(
    "words",
    [
        ["--tensor-type", "o_proj"],
        ["--tensor-type", "o_proj=Q3_K"],
        ["--tensor-type", "nothing=Q8_0"],
        ["--quality", "good"],
        ["--profile", "doppler", "--quantize", "q8_0"],
        ["--profile", "doppler", "--compress", "zstd"],
        ["--size", "9MB", "--bits-per-weight", "5"],
        ["--device", "tpu"],
        ["--device", "wgpu", "--adapter", "abacus"],
        ["--device", "wgpu", "--engine", "ray"],
        ["--adapter", "llvmpipe"],
    ],
)
def test_invalid_values_are_refused_and_nothing_is_written(tmp_path, source, words):
    done = rdrr("convert", source, tmp_path / "out", *words)
    assert error_line(done, 2)
    assert not (tmp_path / "out").exists()
    assert rdrr("convert", source, tmp_path / "out", "--dry-run").code == 0
