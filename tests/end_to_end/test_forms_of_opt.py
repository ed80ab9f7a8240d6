"""OPT with an embedding of another width, norms after the residual, or without a final norm."""

from __future__ import annotations

import numpy as np
import pytest
import rdrr
import torch
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_format.errors import SourceError
from rdrr_manifests.package import open_package
from rdrr_manifests.validation import validate
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.packing import EncodedText
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_model, save_checkpoint
from support.classifiers import make_classifier
from support.comparison import relative_error, scored, stepped, transformers_logits
from support.tiny_models import OLDER_MODELS, VOCAB
from transformers import AutoModelForCausalLM

OPT = next(tiny for tiny in OLDER_MODELS if tiny.model_type == "opt")
FORMS = {
    "projections": {"word_embed_proj_dim": 128},
    "a narrow embedding": {"word_embed_proj_dim": 42},
    "norms after the residual": {"do_layer_norm_before": False},
    "no final norm": {"_remove_final_layer_norm": True},
    "projections without norm": {"word_embed_proj_dim": 512, "_remove_final_layer_norm": True},
}
TOKENS, PREFILL, CONTEXT = 48, 40, 64


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def model(request, rng):
    return make_model(OPT, rng, num_hidden_layers=2, **request.param)


def packaged(model, folder, **options):
    save_checkpoint(model, folder / "source", dtype="float32")
    convert(folder / "source", folder / "package", **options)
    return folder / "package"


# The forms change which ops there are, not what one computes on the GPU.
@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_a_backend_computes_what_transformers_does(model, backend, device, tmp_path, rng):
    ids = rng.integers(3, VOCAB, TOKENS).tolist()
    reference = transformers_logits(model, ids)
    assert validate(packaged(model, tmp_path, quantize="f32")).ok
    with open_package(tmp_path / "package") as package, torch.no_grad():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
        if backend == "cpu":
            opened = CpuBackend(package, context=CONTEXT)
        else:
            opened = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
        assert relative_error(scored(opened, ids), reference) <= 1e-4
        assert relative_error(stepped(opened, ids, PREFILL), reference[PREFILL - 1 :]) <= 1e-4
        assert relative_error(*opened.hidden([EncodedText(ids)]), hidden) <= 1e-4
        greedy = opened.greedy(ids[:PREFILL], 0, 1)
        assert greedy == [int(reference[PREFILL - 1].argmax())]
        opened.close()


def test_transformers_computes_the_same_from_the_exported_folder(model, tmp_path, rng):
    export(packaged(model, tmp_path, quantize="f32"), tmp_path / "exported")
    loaded, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "exported", dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    ids = rng.integers(3, VOCAB, 24).tolist()
    assert np.array_equal(transformers_logits(loaded, ids), transformers_logits(model, ids))


@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_a_classifier_reads_the_projected_states(backend, rng, tmp_path):
    options = {"word_embed_proj_dim": 128, "do_layer_norm_before": False}
    model = make_classifier(OPT, rng, tmp_path / "source", 3, **options)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    with rdrr.load(tmp_path / "package", backend=backend, kv_dtype="f32") as loaded:
        ids = torch.tensor([loaded.encode("the quick brown fox")])
        with torch.no_grad():
            wanted = torch.softmax(model(ids).logits[0], 0).numpy()
        scores = list(loaded.classify("the quick brown fox")[0].values())
    assert np.abs(np.array(scores) - wanted).max() <= 1e-3


def test_a_checkpoint_without_its_projection_is_refused(rng, tmp_path):
    model = make_model(OPT, rng, num_hidden_layers=1, word_embed_proj_dim=128)
    model.model.decoder.project_in = None
    save_checkpoint(model, tmp_path / "source")
    with pytest.raises(SourceError, match="project_in"):
        convert(tmp_path / "source", tmp_path / "package")
