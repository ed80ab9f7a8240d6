"""Decoding strategies: given to a generation, and read from flags."""

from __future__ import annotations

import pytest
from rdrr import Speculative, Wedlm
from rdrr._backends import OpenedBackend
from rdrr._decoding import DraftModels
from rdrr.cli._decoding import DecodeFlags
from rdrr_format.errors import UsageError
from rdrr_runtime.decode.backend_lock import BackendLock
from rdrr_runtime.decode.drafts import ModelDraft, NgramDraft
from rdrr_runtime.decode.strategies import options_named
from rdrr_runtime.decode.wedlm import WedlmDecoding
from rdrr_runtime.reference.backend import CpuBackend
from support.packages import llama_manifest, write_random_package


def drafts_of(package) -> DraftModels:
    opened = OpenedBackend(CpuBackend(package, context=40), "", ())
    return DraftModels(package, opened, BackendLock())


def test_a_manifest_says_which_token_is_the_mask(tmp_path, rng):
    manifest = llama_manifest("F16") | {"mask_token_id": 9}
    models = drafts_of(write_random_package(tmp_path, manifest, rng))
    options = Wedlm(window=4, tau=None, slope=0.1, max_per_step=2, entropy="scaled")
    assert options.strategy(models) == WedlmDecoding(9, options)
    assert Wedlm().strategy(models) == WedlmDecoding(9, Wedlm())


def test_a_model_without_a_mask_or_with_sliding_windows_is_refused(tmp_path, rng):
    package = write_random_package(tmp_path / "none", llama_manifest("F16"), rng)
    with pytest.raises(UsageError, match="not trained to fill masks"):
        Wedlm().strategy(drafts_of(package))
    manifest = llama_manifest("F16") | {"mask_token_id": 9}
    manifest["inference"]["attention"]["slidingWindow"] = 16
    package = write_random_package(tmp_path / "sliding", manifest, rng)
    with pytest.raises(UsageError, match="sliding windows"):
        Wedlm().strategy(drafts_of(package))


def flags(decode: str, **given) -> DecodeFlags:
    return DecodeFlags(decode=decode, **{f"decode_{name}": value for name, value in given.items()})


def test_flags_make_the_options_of_a_strategy():
    assert flags("ar").read() is None
    assert flags("wedlm").read() == Wedlm()
    given = {"window": 8, "tau": "none", "lambda": 0.5, "max_per_step": 3, "entropy_temp": "scaled"}
    assert flags("wedlm", **given).read() == Wedlm(8, None, 0.5, 3, "scaled")
    assert flags("wedlm", tau="0.6").read() == Wedlm(tau=0.6)
    assert flags("speculative").read() == Speculative("ngram", 5)
    assert flags("speculative", draft="small", draft_tokens=3).read() == Speculative("small", 3)


def test_a_strategy_may_be_given_by_its_name():
    assert options_named("ar") is None
    assert options_named("wedlm") == Wedlm()
    with pytest.raises(UsageError, match=r"ar, wedlm, speculative.*found lookahead"):
        options_named("lookahead")


def test_a_draft_model_is_loaded_once_and_must_have_the_same_vocabulary(tmp_path, rng):
    package = write_random_package(tmp_path / "model", llama_manifest("F16"), rng)
    drafts = drafts_of(package)
    strategy = Speculative(tmp_path / "model", 3).strategy(drafts)
    again = Speculative(tmp_path / "model", 3).strategy(drafts)
    assert isinstance(strategy.draft, ModelDraft)
    assert strategy.draft.backend is again.draft.backend
    assert (strategy.tokens, strategy.draft.backend.info.context) == (3, 40)
    assert isinstance(Speculative().strategy(drafts).draft, NgramDraft)
    manifest = llama_manifest("F16")
    manifest["architecture"]["vocabSize"] -= 1
    manifest["tensors"]["model.embed_tokens.weight"]["shape"][0] -= 1
    manifest["tensors"]["model.embed_tokens.weight"]["size"] -= 2 * 384
    write_random_package(tmp_path / "other", manifest, rng)
    with pytest.raises(UsageError, match="another vocabulary"):
        Speculative(tmp_path / "other").strategy(drafts)
    drafts.close()


@pytest.mark.parametrize(
    ("decode", "given", "message"),
    [
        ("ar", {"window": 8}, "--window"),
        ("ar", {"lambda": 0.1}, "--lambda"),
        ("ar", {"entropy_temp": "raw"}, "--entropy-temp"),
        ("wedlm", {"tau": "low"}, "--tau"),
        ("wedlm", {"draft": "ngram"}, "--draft"),
        ("speculative", {"max_per_step": 2}, "--max-per-step"),
    ],
)
def test_a_flag_of_another_strategy_or_a_word_for_a_number_is_wrong_usage(decode, given, message):
    with pytest.raises(UsageError, match=message):
        flags(decode, **given).read()
