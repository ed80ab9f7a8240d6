"""Packages of a limited size: types by measured error, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rdrr
from rdrr._convert import calibration_text
from rdrr._report_view import read_report
from rdrr.importance import measure_importance
from rdrr_converter.allocation import SHORT_LADDER
from rdrr_converter.convert import convert
from rdrr_converter.export.imatrix import Activations, Origin, write_imatrix
from rdrr_converter.sources import open_source
from rdrr_format.errors import FormatError, UsageError
from support.checkpoints import make_model, save_checkpoint
from support.commands import EXAMPLE, ROOT, error_line
from support.commands import rdrr as run
from support.tiny_models import TINY_MODELS

HELD_OUT = ROOT / "tests/data/text/heldout.txt"
UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def sensitivity(tmp_path_factory):
    """A package of the example in F32, and the sensitivities of its weights over a short text."""
    folder = tmp_path_factory.mktemp("sensitivity")
    rdrr.convert(EXAMPLE, folder / "plain", quantize="f32")
    text = calibration_text()
    measure_importance(
        folder / "plain", text, folder / "m.gguf", window=128, limit=256, sensitivity=True
    )
    return folder / "plain", folder / "m.gguf"


def divergence(package, plain, text):
    from rdrr.evaluate import compare

    with rdrr.load(package, backend="cpu") as model, rdrr.load(plain, backend="cpu") as base:
        return compare(model, base, text, window=128, limit=256).mean_divergence


@pytest.mark.thorough
@pytest.mark.parametrize("layout", [{}, {"transpose_weights": True, "fuse_gate_up": True}])
def test_a_package_of_the_same_size_loses_less_than_the_usual_mix(tmp_path, sensitivity, layout):
    plain, imatrix = sensitivity
    usual = rdrr.convert(EXAMPLE, tmp_path / "usual", **layout)
    better = rdrr.convert(
        EXAMPLE, tmp_path / "better", size=usual.total_size, imatrix=imatrix, **layout
    )
    assert better.total_size <= usual.total_size
    text = HELD_OUT.read_text(encoding="utf-8")
    lost = [divergence(tmp_path / name, plain, text) for name in ("usual", "better")]
    assert lost[1] < 0.75 * lost[0]


def test_the_plan_of_a_package_gives_its_bytes_again(tmp_path, rng):
    model = make_model(TINY_MODELS[0], rng, num_hidden_layers=1)
    source = save_checkpoint(model, tmp_path / "source", dtype="float32")
    imatrix = made_importance(tmp_path / "m.gguf", model, None)
    rdrr.convert(source, tmp_path / "a", bits_per_weight=6, imatrix=imatrix)
    plan = tmp_path / "a/conversion-report.json"
    rdrr.convert(source, tmp_path / "b", plan=plan, imatrix=imatrix)
    shards = [next((tmp_path / name).glob("*.bin")).read_bytes() for name in ("a", "b")]
    assert shards[0] == shards[1]
    manifest = json.loads((tmp_path / "a/manifest.json").read_text(encoding="utf-8"))
    assert manifest["conversion"]["options"]["bitsPerWeight"] == 6
    bits = (
        8
        * manifest["totalSize"]
        / sum(int(np.prod(tensor["shape"])) for tensor in manifest["tensors"].values())
    )
    assert 5.8 < bits <= 6
    reports = [read_report(tmp_path / name) for name in ("a", "b")]
    costs = [[tensor.divergence for tensor in report.tensors] for report in reports]
    said = next(note for note in reports[0].notes if "estimated divergence" in note)
    total = sum(filter(None, costs[0]))
    assert f"estimated divergence {total:.3g} nats" in said
    assert not any(costs[1])  # nothing was estimated where the types were given


def made_importance(path, model, sensitive):
    """An importance matrix in which one tensor counts a million times as much as the others."""
    entries = {
        name: Activations(np.ones(k) * factor, 1, np.ones(n) * factor * k / n)
        for name, (n, k) in (
            (name, tuple(weight.shape))
            for name, weight in model.state_dict().items()
            if weight.dim() == 2
        )
        for factor in [1e6 if name == sensitive else 1.0]
    }
    write_imatrix(path, entries, Origin("made", 1, 1))
    return path


@pytest.mark.parametrize(
    ("sensitive", "other"),
    [(UP, DOWN), pytest.param(DOWN, UP, marks=pytest.mark.thorough)],
)
def test_the_bits_go_to_what_counts(tmp_path, rng, sensitive, other):
    model = make_model(TINY_MODELS[0], rng, num_hidden_layers=1)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    imatrix = made_importance(tmp_path / "m.gguf", model, sensitive)
    result = convert(
        tmp_path / "source", tmp_path / "out", bits_per_weight=6.5, imatrix=imatrix, dry_run=True
    )
    types = {tensor.name: tensor.dtype for tensor in result.tensors}
    sizes = {"Q4_K": 4, "Q5_K": 5, "Q6_K": 6, "Q8_0": 8, "F16": 16}
    assert sizes[types[sensitive]] > sizes[types[other]]
    assert any("chosen by measured error" in note for note in result.notes)


def types_within(tmp_path, rng, bits, **options):
    """Return the types by projection of a model whose keys and values have 128 outputs."""
    model = make_model(TINY_MODELS[0], rng, num_hidden_layers=1)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    imatrix = made_importance(tmp_path / "m.gguf", model, None)
    result = convert(
        tmp_path / "source", tmp_path / "out", bits_per_weight=bits, imatrix=imatrix, dry_run=True,
        **options,
    )  # fmt: skip
    return {tensor.name.split(".")[-2]: tensor.dtype for tensor in result.tensors}


@pytest.mark.parametrize("bits", [4.6, pytest.param(6.5, marks=pytest.mark.thorough)])
def test_blocks_of_256_are_not_padded_where_smaller_ones_lose_less(tmp_path, rng, bits):
    types = types_within(tmp_path, rng, bits, transpose_weights=True)
    assert {types["k_proj"], types["v_proj"]} <= {*SHORT_LADDER, "Q8_0"}
    assert not {types[name] for name in ("q_proj", "o_proj", "down_proj")} & set(SHORT_LADDER)


def test_types_of_small_blocks_are_left_out_where_nothing_is_padded(tmp_path, rng):
    types = types_within(tmp_path, rng, 4.6)
    assert types["k_proj"] in {"Q4_K", "Q5_K"}
    assert not set(types.values()) & set(SHORT_LADDER)


def test_types_that_the_user_states_stay(tmp_path, rng):
    model = make_model(TINY_MODELS[0], rng, num_hidden_layers=1)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    imatrix = made_importance(tmp_path / "m.gguf", model, UP)
    result = convert(
        tmp_path / "source", tmp_path / "out", bits_per_weight=8, imatrix=imatrix, dry_run=True,
        tensor_types={"up_proj": "Q4_K"},
    )  # fmt: skip
    assert {t.dtype for t in result.tensors if t.name == UP} == {"Q4_K"}


def test_options_that_cannot_be_obeyed_are_refused(tmp_path):
    imatrix = tmp_path / "m.gguf"
    entries = {
        name: Activations(np.ones(tensor.shape[1]), 1, np.ones(tensor.shape[0]))
        for name, tensor in open_source(EXAMPLE).tensors.items()
        if len(tensor.shape) == 2
    }
    write_imatrix(imatrix, entries, Origin("made", 1, 1))
    plain = tmp_path / "columns.gguf"
    write_imatrix(plain, {UP: Activations(np.ones(256), 1)}, Origin("made", 1, 1))
    refused = [
        ({"size": "1 MB", "imatrix": imatrix}, "does not fit into that size"),
        ({"size": "9 MB", "bits_per_weight": 5, "imatrix": imatrix}, "one of `size`"),
        ({"size": "9 MB", "imatrix": imatrix, "q4k_layout": "flat"}, "rows or columns"),
        ({"size": "9 MB", "imatrix": imatrix, "profile": "doppler"}, "contradicts `size`"),
        ({"size": "9 MB", "imatrix": plain}, "sensitivit"),
        ({"imatrix": plain, "transpose_weights": True}, "sensitivit"),
        ({"size": "9 MB", "imatrix": imatrix, "text": HELD_OUT}, "`text` is only read"),
        ({"text": HELD_OUT}, "`text` is only read"),
    ]
    for options, message in refused:
        with pytest.raises(UsageError, match=message):
            convert(EXAMPLE, tmp_path / "out", dry_run=True, **options)


def test_a_plan_of_another_model_is_refused(tmp_path, rng):
    model = make_model(TINY_MODELS[0], rng, num_hidden_layers=1)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    convert(tmp_path / "source", tmp_path / "out")
    plan = tmp_path / "out/conversion-report.json"
    with pytest.raises(UsageError, match="another model"):
        convert(EXAMPLE, tmp_path / "b", plan=plan, dry_run=True)
    plan.write_text("{}", encoding="utf-8")
    with pytest.raises(FormatError, match="conversion report"):
        convert(EXAMPLE, tmp_path / "b", plan=plan, dry_run=True)


@pytest.mark.thorough
def test_the_command_measures_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("rdrr._convert.TOKENS", 512)
    done = run("convert", EXAMPLE, tmp_path / "out", "--size", "4400KiB", "--json", code=0)
    assert done.json()["total_size"] <= 4400 << 10
    words = ["convert", EXAMPLE, tmp_path / "out", "--size", "4400KiB"]
    assert "exists" in error_line(run(*words))  # before anything is measured
