"""No key of a configuration is ignored silently."""

from __future__ import annotations

import json

import pytest
from rdrr_converter.architectures import ARCHITECTURES, Config
from rdrr_converter.architectures._ignored_keys import IGNORED, IGNORED_AT, is_ignored
from rdrr_converter.convert import convert
from rdrr_converter.reading.model import read_model
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError, SourceError, UsageError
from support.checkpoints import make_checkpoint, make_multimodal, write_tokenizer
from support.gguf_files import write_gguf
from support.safetensor_files import llama_tensors, write_llama
from support.tiny_models import ALL_MODELS, COVERING, TinyModel, covering

RULES = {rule.name: rule for rule in ARCHITECTURES}
LLAMA_4 = {
    "rope_theta": 1e4,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "llama_4_scaling_beta": 0.1,
}


def edited(folder, **values):
    """Change values of a configuration; a value of `...` removes the key."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(
        json.dumps({key: value for key, value in config.items() if value is not ...}),
        encoding="utf-8",
    )
    return folder


def dry(folder, **options):
    return convert(folder, "nowhere", dry_run=True, **options)


@pytest.fixture
def llama(tmp_path, rng):
    return write_llama(tmp_path / "model", llama_tensors(rng))


@pytest.mark.parametrize(
    ("key", "value", "harmless"),
    [
        ("partial_rotary_factor", 0.5, 1.0),
        ("sliding_window", 64, None),
        ("use_sliding_window", True, False),
        ("attn_logit_softcapping", 30.0, None),
        ("residual_multiplier", 0.22, None),
        ("num_experts", 1, 0),
        ("layer_types", ["full_attention", "sliding_attention"], ["full_attention"] * 2),
        ("something_new", 0, None),
    ],
)
def test_a_key_that_nothing_reads_is_refused_by_name(llama, key, value, harmless):
    assert dry(edited(llama, **{key: harmless})).notes == ()
    with pytest.raises(ConversionError, match=f"llama does not use.*{key}: .*allow_unread="):
        dry(edited(llama, **{key: value}))
    result = dry(llama, allow_unread=(key,))
    assert result.notes == (f"{key} is ignored, as `allow_unread` says",)
    with pytest.raises(ConversionError, match=key):
        dry(llama, allow_unread=("another_key",))


def test_all_keys_that_nothing_reads_are_named_at_once(llama):
    edited(llama, first_new_key=1, second_new_key=[2] * 100)
    with pytest.raises(ConversionError, match=r"2 keys.*first_new_key: 1, second_new_key: \[2, 2"):
        dry(llama)
    assert len(dry(llama, allow_unread=["second_new_key", "first_new_key"]).notes) == 2


@pytest.mark.parametrize("form", ["rope_parameters", "rope_scaling"])
def test_keys_inside_the_rope_are_not_ignored_either(llama, form):
    control = {"rope_theta": 1e4, "rope_type": "default", "factor": 1.0}
    assert dry(edited(llama, **{form: control})).notes == ()
    edited(llama, **{form: LLAMA_4})
    with pytest.raises(ConversionError, match=rf"{form}\.llama_4_scaling_beta: 0\.1"):
        dry(llama)
    dry(llama, allow_unread=(f"{form}.llama_4_scaling_beta",))


def test_a_rope_of_a_kind_of_layers_that_the_architecture_does_not_have_is_refused(llama):
    plain = {"rope_theta": 1e4, "rope_type": "default"}
    dry(edited(llama, rope_parameters={"full_attention": plain}))
    both = {"full_attention": plain, "sliding_attention": {**plain, "rope_theta": 1e6}}
    with pytest.raises(ConversionError, match=r"rope_parameters\.sliding_attention"):
        dry(edited(llama, rope_parameters=both))


def test_allowed_keys_are_in_the_manifest_only_if_there_are_any(llama, tmp_path):
    convert(llama, tmp_path / "plain")
    convert(edited(llama, new_key=1), tmp_path / "allowed", allow_unread=("new_key", "a", "a"))
    plain, allowed = (
        json.loads((tmp_path / name / "manifest.json").read_text(encoding="utf-8"))["conversion"][
            "options"
        ]
        for name in ("plain", "allowed")
    )
    assert allowed.pop("allowUnread") == ["a", "new_key"]
    assert allowed == plain


@pytest.mark.parametrize("value", ["sliding_window", (1,), 3])
def test_allowed_keys_are_a_sequence_of_names(llama, value):
    with pytest.raises(UsageError, match=r"`allow_unread`.*wrong type"):
        dry(llama, allow_unread=value)


def test_ministral_3_inside_the_wrapper_of_mistral_3_is_not_taken_for_mistral(tmp_path, rng):
    rope = {"rope_theta": 1e4, "rope_type": "default"}
    for kind, parameters in (("mistral", rope), ("ministral3", LLAMA_4)):
        model = make_multimodal("mistral3", rng, model_type=kind, rope_parameters=parameters)
        model.save_pretrained(tmp_path / kind)
        write_tokenizer(tmp_path / kind)
    for kind in ("mistral", "ministral3"):
        assert dry(tmp_path / kind).architecture == kind
    with pytest.raises(ConversionError, match=r'not that of a mistral model.*model_type: "minis'):
        dry(tmp_path / "ministral3", arch="mistral")
    # Its scaling of the queries by position is found even if the family is allowed.
    with pytest.raises(ConversionError, match="llama_4_scaling_beta"):
        dry(tmp_path / "ministral3", arch="mistral", allow_unread=("model_type",))


@pytest.mark.parametrize(
    ("tiny", "arch"),
    [
        (TinyModel("gemma", 256, (("tie_word_embeddings", True),)), "llama"),
        (TinyModel("granite"), "llama"),
        (TinyModel("granite"), "mistral"),
        (TinyModel("mistral", 256, (("sliding_window", 24),)), "llama"),
        (TinyModel("qwen3"), "llama"),
        (TinyModel("smollm3", 256, (("no_rope_layer_interval", 2),)), "llama"),
        (TinyModel("helium"), "llama"),
        (TinyModel("ernie4_5"), "llama"),
        (TinyModel("ministral3"), "mistral"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_another_family_is_refused_whatever_architecture_is_forced(tmp_path, rng, tiny, arch):
    options = {"num_hidden_layers": 2, "max_position_embeddings": 128}
    folder = make_checkpoint(tiny, tmp_path / "model", rng, **options)
    with pytest.raises((ConversionError, SourceError)):
        dry(folder, arch=arch)
    if tiny.model_type in RULES:
        assert dry(folder, arch=tiny.model_type).architecture == tiny.model_type


def test_a_forced_architecture_is_used_if_the_configuration_names_none_or_it_is_allowed(llama):
    assert dry(edited(llama, model_type="my_llama"), arch="llama", allow_unread=("model_type",))
    for names in ({"model_type": "my_llama"}, {"model_type": ..., "architectures": ["MyLlama"]}):
        with pytest.raises(ConversionError, match="not that of a llama model"):
            dry(edited(llama, **names), arch="llama")
    assert dry(edited(llama, model_type=..., architectures=...), arch="llama").notes == ()
    assert dry(edited(llama, model_type="TinyLlama"), arch="llama").notes == ()


def test_the_hint_for_an_unknown_architecture_does_not_recommend_a_wrong_result(llama):
    edited(llama, architectures=["RwkvForCausalLM"], model_type="rwkv")
    with pytest.raises(ConversionError, match=r"unknown architecture.*gives wrong results"):
        dry(llama)


def test_the_rule_holds_for_what_the_metadata_of_a_gguf_say(llama, tmp_path):
    assert dry(write_gguf(llama, tmp_path / "m.gguf")).architecture == "llama"
    edited(llama, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    with pytest.raises(ConversionError, match=r"partial_rotary_factor: 0\.5"):
        dry(write_gguf(llama, tmp_path / "partial.gguf"))
    with pytest.raises(ConversionError, match="not that of a mistral model"):
        dry(tmp_path / "m.gguf", arch="mistral")


GEMMA = TinyModel("gemma3_text", 256, (("sliding_window", 24), ("tie_word_embeddings", True)))


def test_gemma_3_follows_transformers_which_has_no_cap_on_attention_scores(tmp_path, rng):
    folder = make_checkpoint(GEMMA, tmp_path / "model", rng)
    dry(folder)
    edited(folder, attn_logit_softcapping=50.0)
    with pytest.raises(ConversionError, match=r"attn_logit_softcapping: 50\.0"):
        dry(folder)
    source = open_source(folder)
    model = read_model(source, RULES["gemma3"], ("attn_logit_softcapping",))
    assert model.inference.attention.attn_logit_softcapping is None


@pytest.mark.parametrize(
    ("keys", "period"),
    [
        ({}, 6),
        ({"sliding_window_pattern": 2}, 2),
        ({"sliding_window_pattern": 2, "_sliding_window_pattern": 2}, 2),
        ({"_sliding_window_pattern": 6}, 6),
        ({"_sliding_window_pattern": 2}, None),
        ({"sliding_window_pattern": 2, "_sliding_window_pattern": 3}, None),
    ],
)
def test_both_keys_of_gemmas_pattern_are_read_as_transformers_reads_them(keys, period):
    from transformers import Gemma3TextConfig

    rule = RULES["gemma3"]
    config = Config({"num_hidden_layers": 8, **keys}, rule.defaults, "config.json")
    if period is None:  # transformers reads one key, writers meant the other
        with pytest.raises(SourceError, match="_sliding_window_pattern"):
            rule.layer_types(config)
        return
    theirs = Gemma3TextConfig(num_hidden_layers=8, **keys).layer_types
    assert list(rule.layer_types(config)) == theirs
    assert theirs.index("full_attention") == period - 1


def test_two_names_of_one_size_must_have_one_value():
    rule = RULES["mixtral"].experts["num_experts"]
    for keys in ({"num_experts": 4}, {"num_experts": 4, "num_local_experts": 4}):
        assert rule(Config(keys, RULES["mixtral"].defaults, "config.json")) == 4
    assert rule(Config({}, RULES["mixtral"].defaults, "config.json")) == 8
    with pytest.raises(SourceError, match=r"num_experts.*as num_local_experts states"):
        rule(Config({"num_experts": 4, "num_local_experts": 8}, {}, "config.json"))


@pytest.mark.parametrize("tiny", covering(ALL_MODELS, COVERING[:6]))
def test_a_configuration_with_all_keys_that_transformers_knows_is_accepted(tmp_path, rng, tiny):
    """transformers leaves out keys with default values when it saves a configuration."""
    from transformers import AutoConfig

    folder = make_checkpoint(tiny, tmp_path / "model", rng)
    whole = AutoConfig.from_pretrained(folder).to_dict()
    dry(edited(folder, **{key: value for key, value in whole.items() if key != "dtype"}))


def test_no_key_is_in_the_table_twice_and_a_flag_is_no_number():
    assert not IGNORED & IGNORED_AT.keys()
    assert is_ignored("partial_rotary_factor", 1, {})
    assert not is_ignored("partial_rotary_factor", True, {})
    assert not is_ignored("num_experts", False, {})
    assert not is_ignored("layer_types", [], {})
    assert is_ignored("sliding_window_size", 8, {"sliding_window": 8})
    assert not is_ignored("sliding_window_size", 8, {"sliding_window": 9})


def test_a_model_that_the_gpu_cannot_run_is_noted(tmp_path, rng):
    for name, sizes, note in (
        ("control", {}, None),
        ("inner", {"intermediate_size": 510}, None),
        ("head", {"head_dim": 30}, "the head dimension is 30"),
    ):
        result = dry(write_llama(tmp_path / name, llama_tensors(rng, **sizes), **sizes))
        assert [note in text for text in result.notes] == ([] if note is None else [True])
        assert all("only the backend `cpu`" in text for text in result.notes)


def test_an_end_of_sequence_id_outside_the_vocabulary_is_refused_or_noted(llama):
    assert dry(edited(llama, eos_token_id=299)).notes == ()
    (note,) = dry(edited(llama, eos_token_id=310)).notes  # a row of the padded embedding
    assert "id 310 is no token" in note
    with pytest.raises(ConversionError, match=r"eos_token_id.*0 to 319, found 320"):
        dry(edited(llama, eos_token_id=320))


def test_a_missing_or_unusable_tokenizer_is_noted_or_refused(llama):
    assert dry(llama).notes == ()
    path = llama / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({**content, "model": {**content["model"], "type": "Unheard"}}), encoding="utf-8"
    )
    with pytest.raises(ConversionError, match="cannot be read as a tokenizer"):
        dry(llama)
    path.rename(llama / "tokenizer.model")  # which is no SentencePiece model
    reason, note = dry(llama).notes
    assert "not a SentencePiece model" in reason
    assert "no tokenizer that can be loaded" in note
