"""What the files beside tokenizer.json state is obeyed as transformers does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rdrr
from rdrr_converter.sources import open_source
from rdrr_converter.tokenizer.stated import with_stated_tokens
from rdrr_format.errors import ManifestError, SourceError
from rdrr_format.tokenizer_settings import SETTINGS
from rdrr_runtime.text.tokenizer import TextCodec
from support import tiny_tokenizers as tiny
from support.scripted_models import write_scripted
from transformers import AutoTokenizer

UNKNOWN, BEGIN, END, MARK = range(4)
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
TEXT = "hello<|im_end|>hello <think> hello<think>hello</s>"


def added(text: str, *, special: bool) -> dict[str, object]:
    return {
        key: value for key, value in tiny.added(text, 0, special=special).items() if key != "id"
    }


def checkpoint(folder: Path, settings: dict, *listed: str, **files) -> Path:
    """Write a checkpoint whose tokenizer.json has the tokens of `listed` that are not special."""
    tokenizer = tiny.byte_level(["hello"])
    size = len(tokenizer["model"]["vocab"])
    for index, text in enumerate(listed):
        tokenizer["added_tokens"].append(tiny.added(text, size + index, special=False))
    files = {"tokenizer_config": settings, **files}
    return write_scripted(folder, tokenizer, [5, 6], end=END, **files)


NEXT = len(tiny.byte_level(["hello"])["model"]["vocab"])
IM_END, THINK = added("<|im_end|>", special=True), added("<think>", special=False)


@pytest.mark.parametrize(
    ("settings", "listed", "files"),
    [
        pytest.param(
            {"added_tokens_decoder": {str(NEXT): IM_END, str(NEXT + 1): THINK}},
            (),
            {},
            id="decoder",
        ),
        pytest.param(
            {}, (), {"added_tokens": {"<|im_end|>": NEXT, "<think>": NEXT + 1}}, id="older file"
        ),
        pytest.param({"additional_special_tokens": ["<|im_end|>"]}, (), {}, id="additional"),
        pytest.param(
            {"extra_special_tokens": [IM_END | {"__type": "AddedToken"}]}, (), {}, id="extra"
        ),
        pytest.param({"extra_special_tokens": {"turn_token": "<|im_end|>"}}, (), {}, id="named"),
        pytest.param({"turn_token": "<|im_end|>"}, (), {}, id="a name of its own"),
        pytest.param({"eos_token": "<|im_end|>"}, ("<|im_end|>",), {}, id="eos not special"),
        pytest.param(
            {"added_tokens_decoder": {str(NEXT): IM_END}}, ("<|im_end|>",), {}, id="said special"
        ),
        pytest.param(
            {"added_tokens_decoder": {str(NEXT): THINK}},
            ("<think>",),
            {"special_tokens_map": {"pad_token": "<think>"}},
            id="an older file that is not read",
        ),
        *(
            pytest.param(
                {"added_tokens_decoder": {str(NEXT): THINK | {flag: True}}},
                ("<think>",),
                {},
                id=f"another {flag}",
            )
            for flag in ("lstrip", "rstrip", "single_word", "normalized")
        ),
        pytest.param(
            {"pad_token": None}, (), {"special_tokens_map": {"pad_token": "<think>"}}, id="null"
        ),
        pytest.param({}, ("<|im_end|>",), {}, id="nothing more"),
    ],
)
def test_ids_and_texts_equal_those_of_transformers(tmp_path, settings, listed, files):
    folder = checkpoint(tmp_path / "source", FAST | settings, *listed, **files)
    reference = AutoTokenizer.from_pretrained(folder)
    content = with_stated_tokens(open_source(folder)).content("tokenizer.json")
    codec = TextCodec(content)
    ids = reference(TEXT, add_special_tokens=False)["input_ids"]
    assert codec.encode_as_is(TEXT) == ids
    assert codec.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_files_that_agree_are_copied_unchanged(tmp_path):
    decoder = {str(NEXT): THINK, str(END): added("</s>", special=True)}
    settings = FAST | {"added_tokens_decoder": decoder}
    folder = checkpoint(tmp_path / "source", settings, "<think>")
    assert with_stated_tokens(open_source(folder)).generated == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"split_special_tokens": True}, "split_special_tokens is not supported"),
        ({"bos_token": 5}, "bos_token cannot be used"),
    ],
)
def test_settings_that_cannot_be_obeyed_are_refused_by_name(tmp_path, settings, said):
    folder = checkpoint(tmp_path / "refused", FAST | settings)
    with pytest.raises(SourceError, match=said):
        with_stated_tokens(open_source(folder))
    with_stated_tokens(open_source(checkpoint(tmp_path / "sound", FAST)))


@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": {"²": {}, "-1": IM_END, "7": 7, "8": {"content": 8}, "": None}},
        {"extra_special_tokens": [None, 7, {"content": []}], "model_specific_special_tokens": 1},
        {"extra_special_tokens": {"a": 1, "b": None}, "image_token": ["<x>"]},
        {"pad_token": "", "chat_template": 5},
    ],
)
def test_settings_of_a_stranger_add_tokens_or_nothing(tmp_path, settings):
    source = open_source(checkpoint(tmp_path / "source", FAST | settings))
    with_stated_tokens(source).content("tokenizer.json")


@pytest.mark.parametrize(
    "parts",
    [
        {"added_tokens": [7, {"id": "1", "content": "<a>"}, {"content": "<b>"}]},
        {"added_tokens": {}, "model": []},
        {"model": {"type": "Unigram", "vocab": [7, [], [None], {}, ["a", 0.0]]}},
    ],
)
def test_a_damaged_tokenizer_is_left_to_the_library(tmp_path, parts):
    folder = checkpoint(tmp_path / "source", FAST | {"pad_token": "<think>"})
    path = folder / "tokenizer.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | parts), encoding="utf-8"
    )
    with_stated_tokens(open_source(folder)).content("tokenizer.json")


def prefixed() -> dict[str, object]:
    """Return a tokenizer of older files, whose normalizer puts a space in front."""
    steps = [{"type": "Prepend", "prepend": "▁"}]
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    normalizer = {"type": "Sequence", "normalizers": steps}
    return tiny.sentencepiece() | {"pre_tokenizer": None, "normalizer": normalizer}


@pytest.mark.parametrize(
    ("kind", "tokenizer", "stated"),
    [
        ("GPT2Tokenizer", tiny.byte_level(), True),
        ("GPT2Tokenizer", tiny.byte_level(), False),
        ("PreTrainedTokenizerFast", tiny.byte_level(), True),
        ("LlamaTokenizer", tiny.sentencepiece(), True),
        ("LlamaTokenizer", tiny.sentencepiece(), False),
        ("LlamaTokenizer", tiny.sentencepiece(), None),
        ("LlamaTokenizerFast", tiny.sentencepiece("never", strip=False), True),
        ("LlamaTokenizerFast", tiny.sentencepiece("never", strip=False), False),
        ("LlamaTokenizer", prefixed(), False),
        ("PreTrainedTokenizerFast", tiny.sentencepiece(), False),
    ],
)
def test_the_space_in_front_is_that_of_the_class(tmp_path, kind, tokenizer, stated):
    settings = {"tokenizer_class": kind, "add_prefix_space": stated, "legacy": False}
    settings |= {"eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    folder = write_scripted(
        tmp_path / "source", tokenizer, [5, 6], end=END, tokenizer_config=settings
    )
    reference = AutoTokenizer.from_pretrained(folder)
    codec = TextCodec(with_stated_tokens(open_source(folder)).content("tokenizer.json"))
    for text in ("an ab", " a<|end|>n"):
        ids = reference(text, add_special_tokens=False)["input_ids"]
        assert codec.encode_as_is(text) == ids
        assert codec.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "CodeLlamaTokenizerFast"])
@pytest.mark.parametrize("legacy", [{"legacy": True}, {"legacy": False}, {"legacy": None}, {}])
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_legacy_decides_where_a_class_puts_a_space(tmp_path, kind, legacy, model_type):
    settings = {"tokenizer_class": kind, "unk_token": "<unk>", "bos_token": "<s>", **legacy}
    for name, tokenizer in (("old", prefixed()), ("new", tiny.sentencepiece("always"))):
        files = {"tokenizer_config": settings, "config": {"model_type": model_type}}
        folder = write_scripted(tmp_path / name, tokenizer, [5, 6], end=END, **files)
        reference = AutoTokenizer.from_pretrained(folder)
        codec = TextCodec(with_stated_tokens(open_source(folder)).content("tokenizer.json"))
        for text in ("an<|end|>ab an", " an", "<|end|> an"):
            ids = reference(text, add_special_tokens=False)["input_ids"]
            assert codec.encode_as_is(text) == ids
            assert codec.decode(ids) == reference.decode(ids, skip_special_tokens=True)


UNCLEAN = "do not . do n't ! a ' n ' a , a 'm  . an ' s ' ve ?"
FORCED = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"


@pytest.mark.parametrize(
    ("tokenizer", "settings", "is_cleaned"),
    [
        pytest.param(tiny.text_words(UNCLEAN, tiny.WORD_PIECE), {}, True, id="WordPiece"),
        pytest.param(tiny.text_words(UNCLEAN, None), {}, True, id="no decoder"),
        pytest.param(tiny.unigram(), {}, True, id="Unigram"),
        pytest.param(tiny.sentencepiece(), {}, False, id="BPE"),
        pytest.param(tiny.byte_level(), {FORCED: True}, True, id="BPE by force"),
        pytest.param(
            tiny.unigram(), {"clean_up_tokenization_spaces": False}, False, id="not asked for"
        ),
    ],
)
def test_spaces_are_cleaned_up_as_transformers_does_it(tmp_path, tokenizer, settings, is_cleaned):
    settings = {"clean_up_tokenization_spaces": True, **settings}
    folder = checkpoint(tmp_path / "source", FAST | settings)
    (folder / "tokenizer.json").write_bytes(tiny.content(tokenizer))
    reference = AutoTokenizer.from_pretrained(folder)
    source = with_stated_tokens(open_source(folder))
    codec = TextCodec(source.content("tokenizer.json"))
    ids = reference(UNCLEAN, add_special_tokens=False)["input_ids"]
    text = reference.decode(ids, skip_special_tokens=True)
    assert codec.encode_as_is(UNCLEAN) == ids
    assert codec.decode(ids) == text == codec.continuation([], ids)
    assert (text != reference.decode(ids, clean_up_tokenization_spaces=False)) is is_cleaned
    # An export has the steps too, so its settings must not ask for them once more.
    asked = json.loads(source.content("tokenizer_config.json"))["clean_up_tokenization_spaces"]
    assert asked is (not is_cleaned and settings["clean_up_tokenization_spaces"])


NAMES = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ image_token }}|{{ turn_token }}"


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        pytest.param({"image_token": "<image>"}, {}, id="a name of its own"),
        pytest.param({"image_token": IM_END | {"__type": "AddedToken"}}, {}, id="an object"),
        pytest.param({"extra_special_tokens": {"turn_token": "<turn>"}}, {}, id="extra, named"),
        pytest.param(
            {"bos_token": None}, {"special_tokens_map": {"bos_token": "<s>"}}, id="hidden by null"
        ),
        pytest.param(
            {"bos_token": "<s>"}, {"special_tokens_map": {"bos_token": None}}, id="null in the map"
        ),
        pytest.param(
            {"added_tokens_decoder": {}},
            {"special_tokens_map": {"bos_token": "<s>"}},
            id="a map that is not read",
        ),
        pytest.param({"tokenizer_class": "GPT2Tokenizer"}, {}, id="defaults of a class"),
        pytest.param(
            {"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "</s>"}, {}, id="other defaults"
        ),
    ],
)
def test_the_template_sees_the_tokens_that_transformers_names(tmp_path, settings, files):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": NAMES, **settings}
    folder = checkpoint(tmp_path / "source", settings, **files)
    messages = [{"role": "user", "content": "hello"}]
    right = AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False)
    rdrr.convert(folder, tmp_path / "package", quantize="f32")
    with rdrr.load(tmp_path / "package", backend="cpu") as model:
        assert model.chat_template().render(messages) == right


@pytest.mark.parametrize(
    ("config", "right"),
    [
        ({"model_type": "qwen2"}, "<|endoftext|>"),
        ({"tokenizer_class": "GemmaTokenizer"}, "<eos>"),
        ({"model_type": "llama"}, None),
    ],
)
def test_the_class_is_that_of_the_model_where_the_settings_name_none(tmp_path, config, right):
    folder = checkpoint(tmp_path / "source", {"chat_template": NAMES})
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | config), encoding="utf-8"
    )
    settings = json.loads(with_stated_tokens(open_source(folder)).content(SETTINGS))
    assert settings.get("eos_token") == right


def write_templates(folder: Path, kind: str) -> None:
    """Write a default template and one for tools, in one of the ways there are."""
    templates = {"default": "plain", "tool_use": "tools", "rag": "rag"}
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    path = folder / SETTINGS
    settings = json.loads(path.read_text(encoding="utf-8"))
    if kind == "files":
        (folder / "additional_chat_templates").mkdir()
        (folder / "chat_template.jinja").write_text(templates.pop("default"), encoding="utf-8")
        for name, text in templates.items():
            (folder / f"additional_chat_templates/{name}.jinja").write_text(text, encoding="utf-8")
    elif kind == "older file":
        (folder / "chat_template.json").write_text(
            json.dumps({"chat_template": templates}), encoding="utf-8"
        )
    else:
        settings["chat_template"] = listed if kind == "list" else templates
    path.write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize("kind", ["files", "list", "object", "older file"])
def test_templates_with_names_are_used_however_they_are_stated(tmp_path, kind):
    folder = checkpoint(tmp_path / "source", FAST)
    write_templates(folder, kind)
    rdrr.convert(folder, tmp_path / "package", quantize="f32")
    rdrr.export(tmp_path / "package", tmp_path / "exported")
    exported = AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert exported.get_chat_template(tools=[{}]) == "tools"
    with rdrr.load(tmp_path / "package", backend="cpu") as model:
        assert model.chat_template().source == "plain"
        assert model.chat_template(tools=True).source == "tools"
        assert model.chat_template("rag").source == "rag"


def test_a_single_template_of_the_older_file_is_used(tmp_path):
    folder = checkpoint(tmp_path / "source", FAST)
    (folder / "chat_template.json").write_text(
        json.dumps({"chat_template": "older"}), encoding="utf-8"
    )
    rdrr.convert(folder, tmp_path / "package", quantize="f32")
    with rdrr.load(tmp_path / "package", backend="cpu") as model:
        assert model.chat_template().source == "older"


def test_a_package_whose_templates_have_no_default_names_them(tmp_path):
    templates = [{"name": "rag", "template": "rag"}]
    folder = checkpoint(tmp_path / "source", FAST | {"chat_template": templates})
    rdrr.convert(folder, tmp_path / "package", quantize="f32")
    with rdrr.load(tmp_path / "package", backend="cpu") as model:
        assert model.chat_template("rag").source == "rag"
        with pytest.raises(ManifestError, match=r"called default .*rag"):
            model.chat_template()
