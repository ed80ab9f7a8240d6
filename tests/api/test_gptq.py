"""`--quality gptq`: packages of the same size with predictions nearer to those of the source."""

from __future__ import annotations

import numpy as np
import pytest
import rdrr
import torch
from rdrr._calibration import calibration_windows
from rdrr._gptq import _Compensation, _Moments
from rdrr._refining import Draft, refine
from rdrr_converter.convert import convert
from rdrr_format.errors import UsageError
from rdrr_manifests.package import open_package
from support.commands import ROOT, error_line
from support.commands import rdrr as run
from support.drafts import draft_of

HELD_OUT = ROOT / "tests/data/text/heldout.txt"
LAYOUTS = {"rows": {}, "transposed": {"transpose_weights": True, "fuse_gate_up": True}}


@pytest.fixture
def windows(monkeypatch, rng):
    """Random tokens in place of calibration texts, for models without a tokenizer."""
    ids = torch.from_numpy(rng.integers(3, 96, (8, 24)))
    monkeypatch.setattr("rdrr._gptq.calibration_windows", lambda *_: ids)


def test_a_conversion_stores_the_compensated_blocks_and_says_so(
    shallow_checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setattr("rdrr._calibration.WINDOWS", 2)
    monkeypatch.setattr("rdrr._calibration.WINDOW", 32)
    options = LAYOUTS["transposed"]
    plain = convert(shallow_checkpoint, tmp_path / "plain", **options)
    result = rdrr.convert(shallow_checkpoint, tmp_path / "out", quality="gptq", **options)
    before, after = open_package(tmp_path / "plain"), open_package(tmp_path / "out")
    assert after.manifest.conversion.options["quality"] == "gptq"
    assert any("64 tokens that the model wrote" in note for note in result.notes)
    assert result.total_size == plain.total_size
    assert [t.dtype for t in result.tensors] == [t.dtype for t in plain.tensors]
    changed = {
        t.name for t in plain.tensors if not np.array_equal(*map(_read(t.name), (before, after)))
    }
    assert changed
    assert all("proj" in name for name in changed)


def _read(name):
    return lambda package: package.read(name)


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS)
def test_predictions_are_nearer_to_those_of_the_source(shallow_checkpoint, tmp_path, layout):
    options = {**LAYOUTS[layout], "measure": HELD_OUT}
    measured = rdrr.convert(
        shallow_checkpoint, tmp_path / "out", quality="gptq", **options
    ).measured
    assert measured.package.mean < 0.9 * measured.usual.mean


TRANSPOSED = pytest.param("transposed", marks=pytest.mark.thorough)


@pytest.mark.thorough
@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("layout", ["rows", TRANSPOSED])
def test_the_same_bytes_come_again_and_only_matrices_change(tmp_path, rng, layout):
    draft = draft_of("llama", rng, tmp_path, **LAYOUTS[layout])
    encoded = refine(draft, ["gptq"])
    changed = {path.name: path.read_bytes() for path in encoded.folder.iterdir()}
    assert changed
    assert all("proj" in name or "lm_head" in name for name in changed)
    again = Draft(draft.plain, draft.unrefined, tmp_path / "again")
    assert refine(again, ["gptq"]).notes == encoded.notes
    for name, content in changed.items():
        assert (again.folder / name).read_bytes() == content
        assert draft.values(name).shape == draft.source_values(name).shape
        assert content != draft.package.read(name).tobytes()


@pytest.mark.thorough
@pytest.mark.usefixtures("windows")
def test_experts_are_compensated_by_the_tokens_that_reach_them(tmp_path, rng):
    draft = draft_of("qwen3_moe", rng, tmp_path)
    names = {path.name for path in refine(draft, ["gptq"]).folder.iterdir()}
    for part in ("gate_proj", "up_proj", "down_proj"):
        assert any(".experts." in name and part in name for name in names)


def held_out_rows(rng, factors, inputs):
    """Rows in which all inputs rise and fall together; in the last quarter by `factors`."""
    rows = rng.standard_normal((256, 1)) + 0.1 * rng.standard_normal((256, inputs))
    rows[192:] *= factors
    return torch.from_numpy(rows.astype(np.float32))


@pytest.mark.usefixtures("windows")
def test_blocks_are_compensated_only_where_that_helps_on_rows_it_has_not_seen(tmp_path, rng):
    draft = draft_of("llama", rng, tmp_path)
    draft.folder.mkdir()
    use = next(use for use in draft.package.graph.weights() if "up_proj" in use.name)
    weight, before = (np.array(draft.source_values(use.name)), np.array(draft.values(use.name)))
    alternating = np.where(np.arange(use.shape[1]) % 2, -1, 1)
    changed = {}
    for name, factors in (("alike", np.ones(use.shape[1])), ("other", alternating)):
        rows = held_out_rows(rng, factors, use.shape[1])
        _Compensation(draft)._improve(use, _Moments(rows, None))
        after = np.array(draft.values(use.name))
        losses = [
            (((weight - kind) @ rows[192:].numpy().T) ** 2).mean(1) for kind in (before, after)
        ]
        assert (losses[1] <= losses[0] * (1 + 1e-4)).all()
        changed[name] = (after != before).any(1).mean()
        (draft.folder / use.name).unlink(missing_ok=True)
    # Errors that cancel where inputs are alike do not where every second one has another sign.
    assert changed["other"] < 0.7 < 0.85 < changed["alike"]


@pytest.mark.usefixtures("windows")
def test_a_package_without_blocks_is_left_as_it_is(tmp_path, rng):
    draft = draft_of("llama", rng, tmp_path, quantize="f16")
    encoded = refine(draft, ["gptq"])
    assert list(encoded.folder.iterdir()) == []
    assert "0 of 0 matrices" in encoded.notes[0]


def test_windows_are_those_of_the_given_text_or_written_by_the_model(
    shallow_checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setattr("rdrr._calibration.WINDOWS", 3)
    monkeypatch.setattr("rdrr._calibration.WINDOW", 8)
    rdrr.convert(shallow_checkpoint, tmp_path / "plain", quantize="f32")
    source = open_package(tmp_path / "plain")
    text = HELD_OUT.read_text(encoding="utf-8")
    with rdrr.load(tmp_path / "plain", backend="cpu") as model:
        ids = model.encode(text)
        prefix = model.encode("")
    given = calibration_windows(source, text, "cpu")
    assert given.shape == (3, 8)
    assert given[0].tolist() == ids[:8]
    written = calibration_windows(source, None, "cpu")
    assert written.shape == (3, 8)
    assert written[:, : len(prefix)].tolist() == [prefix] * 3
    assert torch.equal(written, calibration_windows(source, None, "cpu"))
    monkeypatch.setattr("rdrr._calibration.SAMPLED_WEIGHTS", 1)  # too large to write texts
    assert not torch.equal(written, calibration_windows(source, None, "cpu"))


def test_what_runs_no_model_says_so_and_a_dry_run_has_the_same_plan(shallow_checkpoint, tmp_path):
    with pytest.raises(UsageError, match=r"no `quality` gptq.*rdrr\.convert"):
        convert(shallow_checkpoint, tmp_path / "out", quality="gptq")
    dry = rdrr.convert(shallow_checkpoint, tmp_path / "out", quality="best,gptq", dry_run=True)
    plain = rdrr.convert(shallow_checkpoint, tmp_path / "out", dry_run=True)
    assert list(dry.plan.describe()) == list(plain.plan.describe())
    assert not (tmp_path / "out").exists()
    refused = run("convert", shallow_checkpoint, tmp_path / "out", "--quality", "gptq,ref")
    assert "--quality" in error_line(refused)
    assert np.all([not path.name.startswith("out") for path in tmp_path.iterdir()])
