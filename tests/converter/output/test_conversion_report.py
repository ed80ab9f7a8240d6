"""The report beside the manifest describes what is on disk, and is reproducible."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.encode import chunks
from rdrr_format.encoding import encode_tensor, stored_rows
from rdrr_format.errors import FormatError
from rdrr_manifests.models.conversion_report import REPORT_NAME, parse_report
from rdrr_manifests.package import open_package, validate
from support.safetensor_files import ODD, from_stored, llama_tensors, to_stored, write_llama


def report_of(folder):
    return parse_report((folder / REPORT_NAME).read_bytes(), folder)


def worst_block(wanted, stored, size):
    """Find row, index and error of the worst block with a plain loop over the blocks."""
    worst = (0.0, 0, 0)
    for row in range(len(wanted)):
        for block, start in enumerate(range(0, wanted.shape[1], size)):
            source = wanted[row, start : start + size].astype(np.float64)
            difference = stored[row, start : start + size] - source
            error = np.sqrt((difference**2).sum() / (source**2).sum())
            worst = max(worst, (error, -row, -block))
    return worst[0], -worst[1], -worst[2]


@pytest.mark.cover
@pytest.mark.parametrize("layout", ["row", "column", "flat"])
@pytest.mark.parametrize("quantize", ["q4_k_m", "q8_0"])
def test_the_worst_block_is_the_one_that_a_slow_search_finds(
    tmp_path, rng, monkeypatch, quantize, layout
):
    monkeypatch.setattr(chunks, "CHUNK_WEIGHTS", 8192)  # so that tensors have several chunks
    tensors = llama_tensors(rng, **ODD)
    source = write_llama(tmp_path / "source", tensors, **ODD)
    convert(source, tmp_path / "out", quantize=quantize, q4k_layout=layout)
    report = report_of(tmp_path / "out")
    with open_package(tmp_path / "out") as package:
        for tensor in report.tensors:
            entry = package.manifest.tensors[tensor.name]
            kind, order = entry.parsed_dtype(), entry.parsed_layout()
            wanted = stored_rows(from_stored(tensors[tensor.name]), order)
            stored = stored_rows(package.dequantize(tensor.name), order)
            size = kind.block_elements if kind.is_block else 256
            lost = np.linalg.norm(stored - wanted) / np.linalg.norm(wanted)
            assert tensor.relative_rmse == pytest.approx(lost, rel=1e-4)
            error, row, block = worst_block(np.array(wanted), np.array(stored), size)
            if error == 0.0:
                assert tensor.worst_block is None
                continue
            assert tensor.worst_block.relative_rmse == pytest.approx(error, rel=1e-5)
            assert (tensor.worst_block.row, tensor.worst_block.block) == (row, block), tensor.name


def test_a_lost_block_is_reported_although_the_tensor_hardly_changes(tmp_path, rng):
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = llama_tensors(rng)
    values = from_stored(tensors[name]).copy()
    values[5] = 1e-9 * rng.standard_normal(values.shape[1])  # below the smallest scale of Q8_0
    tensors[name] = to_stored(values, "F32")
    source = write_llama(tmp_path / "source", tensors)
    convert(source, tmp_path / "out", quantize="q8_0")
    tensor_report = next(
        tensor for tensor in report_of(tmp_path / "out").tensors if tensor.name == name
    )
    assert tensor_report.relative_rmse < 0.01
    assert (tensor_report.worst_block.row, tensor_report.worst_block.relative_rmse) == (5, 1.0)
    same = next(t for t in report_of(tmp_path / "out").tensors if t.name != name and t.worst_block)
    assert same.worst_block.relative_rmse < 0.05


def test_the_report_describes_every_tensor(tmp_path, rng):
    name = "model.layers.0.mlp.down_proj.weight"
    tensors = llama_tensors(rng, **ODD)
    values = from_stored(tensors[name]).copy()
    values[0, 0] = 1e7
    tensors[name] = to_stored(values, "F32")
    source = write_llama(tmp_path / "source", tensors, **ODD)
    result = convert(source, tmp_path / "out", fuse_gate_up=True)
    report = report_of(tmp_path / "out")
    assert validate(tmp_path / "out", deep=True).faults == ()
    assert [tensor.name for tensor in report.tensors] == [tensor.name for tensor in result.tensors]
    by_name = {tensor.name: tensor for tensor in report.tensors}
    assert by_name[name].overflowed
    assert [tensor.name for tensor in report.tensors if tensor.overflowed] == [name]
    fused = by_name["model.layers.0.mlp.gate_up_proj.weight"]
    stem = "model.layers.0.mlp"
    assert [part.name for part in fused.sources] == [
        f"{stem}.gate_proj.weight",
        f"{stem}.up_proj.weight",
    ]
    assert (fused.dtype, fused.padding) == ("Q4_K", 640 * 64)
    assert report.padding == result.padding
    assert sum(total.bytes for total in report.by_dtype.values()) == sum(
        len(encode_tensor(np.zeros(tensor.shape), *_storage(tmp_path, tensor.name)))
        for tensor in report.tensors
    )
    worst = max(tensor.relative_rmse for tensor in report.tensors if tensor.dtype == "Q4_K")
    assert report.by_dtype["Q4_K"].relative_rmse == worst


def _storage(folder, name):
    with open_package(folder / "out") as package:
        entry = package.manifest.tensors[name]
    return entry.parsed_dtype(), entry.parsed_layout()


def test_the_report_depends_on_neither_paths_nor_workers(tmp_path, rng):
    tensors = llama_tensors(rng)
    first = write_llama(tmp_path / "here" / "model", tensors)
    second = write_llama(tmp_path / "there" / "model", tensors)
    convert(first, tmp_path / "a", workers=1)
    convert(second, tmp_path / "b", workers=3)
    text = (tmp_path / "a" / REPORT_NAME).read_text(encoding="utf-8")
    assert text == (tmp_path / "b" / REPORT_NAME).read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    convert(first, tmp_path / "c", quantize="q8_0")
    assert text != (tmp_path / "c" / REPORT_NAME).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [({"version": 2}, "another version"), ({"tensors": 3}, "tensors"), ({}, None)],
)
def test_a_damaged_report_is_refused_in_one_line(tmp_path, rng, change, words):
    convert(write_llama(tmp_path / "source", llama_tensors(rng)), tmp_path / "out")
    data = json.loads((tmp_path / "out" / REPORT_NAME).read_bytes()) | change
    raw = json.dumps(data).encode()
    if words is None:
        assert parse_report(raw, "here").model_id == "source"
        return
    with pytest.raises(FormatError, match=words):
        parse_report(raw, "here")
