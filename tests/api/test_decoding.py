"""Ways of decoding as a generation asks for them, and as they are read from flags."""

from __future__ import annotations

import pytest
from rdrr import Speculative, Wedlm
from rdrr._backends import OpenedBackend
from rdrr._decoding import Drafts
from rdrr.cli._decoding import DecodeFlags
from rdrr_format.errors import UsageError
from rdrr_runtime.decode import wedlm
from rdrr_runtime.decode.drafts import ModelDraft, NgramDraft
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.packages import llama_manifest, write_random_package

DRAWN = SamplingParams(temperature=0.5)


def test_a_manifest_says_which_token_is_the_mask(tmp_path, rng):
    package = write_random_package(tmp_path, llama_manifest() | {"mask_token_id": 9}, rng)
    way = Wedlm(window=4, tau=None, slope=0.1, max_per_step=2, entropy="scaled")
    options = wedlm.WedlmOptions(4, None, 0.1, 2, scaled_entropy=True)
    assert way.strategy(package, DRAWN) == wedlm.Wedlm(9, options, DRAWN)
    assert Wedlm().strategy(package, DRAWN) == wedlm.Wedlm(9, wedlm.WedlmOptions(), DRAWN)


def test_a_model_without_a_mask_or_with_sliding_windows_is_refused(tmp_path, rng):
    package = write_random_package(tmp_path / "none", llama_manifest(), rng)
    with pytest.raises(UsageError, match="not trained to fill masks"):
        Wedlm().strategy(package, DRAWN)
    manifest = llama_manifest() | {"mask_token_id": 9}
    manifest["inference"]["attention"]["slidingWindow"] = 16
    package = write_random_package(tmp_path / "sliding", manifest, rng)
    with pytest.raises(UsageError, match="sliding windows"):
        Wedlm().strategy(package, DRAWN)


def test_flags_make_a_way_of_decoding():
    assert DecodeFlags("ar").read() is None
    assert DecodeFlags("wedlm").read() == Wedlm()
    given = DecodeFlags("wedlm", 8, "none", 0.5, 3, "scaled")
    assert given.read() == Wedlm(8, None, 0.5, 3, "scaled")
    assert DecodeFlags("wedlm", tau="0.6").read() == Wedlm(tau=0.6)
    assert DecodeFlags("speculative").read() == Speculative("ngram", 5)
    guessed = DecodeFlags("speculative", draft="small", draft_tokens=3)
    assert guessed.read() == Speculative("small", 3)


def test_a_draft_is_loaded_once_beside_the_model_and_has_its_tokens(tmp_path, rng):
    package = write_random_package(tmp_path / "model", llama_manifest("F16"), rng)
    drafts = Drafts(package, OpenedBackend(CpuBackend(package, context=40), "", ()))
    way = Speculative(tmp_path / "model", 3).strategy(drafts, DRAWN)
    again = Speculative(tmp_path / "model", 3).strategy(drafts, DRAWN)
    assert isinstance(way.draft, ModelDraft)
    assert way.draft.backend is again.draft.backend
    assert (way.tokens, way.draft.backend.info.context) == (3, 40)
    assert isinstance(Speculative().strategy(drafts, DRAWN).draft, NgramDraft)
    manifest = llama_manifest("F16")
    manifest["architecture"]["vocabSize"] -= 1
    manifest["tensors"]["model.embed_tokens.weight"]["shape"][0] -= 1
    manifest["tensors"]["model.embed_tokens.weight"]["size"] -= 2 * 384
    write_random_package(tmp_path / "other", manifest, rng)
    with pytest.raises(UsageError, match="the model's tokens"):
        Speculative(tmp_path / "other").strategy(drafts, DRAWN)
    drafts.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"decode": "ar", "window": 8}, "--window"),
        ({"decode": "ar", "slope": 0.1}, "--lambda"),
        ({"decode": "ar", "entropy": "raw"}, "--entropy-temp"),
        ({"decode": "wedlm", "tau": "low"}, "--tau"),
        ({"decode": "wedlm", "draft": "ngram"}, "--draft"),
        ({"decode": "speculative", "max_per_step": 2}, "--max-per-step"),
    ],
)
def test_a_flag_of_another_way_or_no_number_is_wrong_usage(flags, message):
    with pytest.raises(UsageError, match=message):
        DecodeFlags(**flags).read()
