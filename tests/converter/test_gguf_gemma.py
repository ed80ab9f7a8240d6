"""GGUF files of Gemma 4 and Gemma 3n give the package that their checkpoints give."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_format.errors import ConversionError
from rdrr_manifests.package import open_package
from support.checkpoints import GEMMA3N_MODELS, GEMMA4_MODELS, make_model, save_checkpoint
from support.gguf_gemma import LIKE_LLAMA_CPP, write_gemma_gguf

BLOCKS = ("attention", "ffn", "layerPattern", "normalization", "output", "rope")


@pytest.mark.parametrize("tiny", GEMMA4_MODELS + GEMMA3N_MODELS, ids=lambda tiny: tiny.name)
def test_a_gguf_gives_the_package_of_its_checkpoint(tmp_path, rng, tiny):
    model = make_model(tiny, rng, **LIKE_LLAMA_CPP.get(tiny.model_type, {}))
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    path = write_gemma_gguf(tmp_path / "source", tmp_path / "m.gguf", model.config)
    convert(tmp_path / "source", tmp_path / "theirs", quantize="f32")
    convert(path, tmp_path / "ours", quantize="f32")
    ours, theirs = (
        json.loads((tmp_path / one / "manifest.json").read_text()) for one in ("ours", "theirs")
    )
    norms = [one["inference"]["normalization"].pop("rmsNormEps") for one in (ours, theirs)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    for block in BLOCKS:
        assert ours["inference"][block] == theirs["inference"][block]
    for key in ("architecture", "moeConfig"):
        assert ours[key] == theirs[key]
    with open_package(tmp_path / "ours") as a, open_package(tmp_path / "theirs") as b:
        assert set(a.manifest.tensors) == set(b.manifest.tensors)
        for name in b.manifest.tensors:
            np.testing.assert_array_equal(a.dequantize(name), b.dequantize(name), err_msg=name)
    with pytest.raises(ConversionError, match=r"cannot export gemma.* as GGUF"):
        export(tmp_path / "ours", tmp_path / "out.gguf", to="gguf")
