"""A weight that is no number ends every use of a model, with the advice what to do."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import rdrr
from rdrr_format.errors import GenerationError
from support.checkpoints import make_model, write_tokenizer
from support.classifiers import make_classifier
from support.packages import replace_first
from support.sentence_checkpoints import add_modules
from support.tiny_models import TinyModel

NORM = "model.norm.weight"
TINY = TinyModel("qwen3", 256)


def _generator(folder, rng):
    make_model(TINY, rng).save_pretrained(folder)
    write_tokenizer(folder)


def _embedder(folder, rng):
    make_model(TINY, rng).model.save_pretrained(folder)
    write_tokenizer(folder)
    add_modules(folder, 256, "mean")


def _classifier(folder, rng):
    make_classifier(TINY, rng, folder, 1)


USES = {
    "text": (_generator, lambda model: model.generate("a", max_tokens=2).read()),
    "log-likelihoods": (_generator, lambda model: model.loglikelihoods("a", [[3, 4]])),
    "embeddings": (_embedder, lambda model: model.embed("a text")),
    "labels": (_classifier, lambda model: model.classify("a text")),
    "scores": (_classifier, lambda model: model.rank("which?", ["a text"])),
}


@pytest.mark.parametrize("use", USES)
def test_a_broken_weight_ends_every_use(use, rng, tmp_path):
    make, call = USES[use]
    make(tmp_path / "source", rng)
    sound, broken = tmp_path / "sound", tmp_path / "broken"
    rdrr.convert(tmp_path / "source", sound, quantize="f32")
    shutil.copytree(sound, broken)
    replace_first(broken, {NORM: np.nan})
    with rdrr.load(sound, backend="cpu", context=64) as model:
        call(model)
    with (
        rdrr.load(broken, backend="cpu", context=64, verify="none") as model,
        pytest.raises(GenerationError, match="are not finite numbers"),
    ):
        call(model)
