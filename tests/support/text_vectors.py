"""Vectors of text that every language reads: what tokenizers, streams and templates make of it.

`PYTHONPATH=format:manifests:runtime:api:tests python -m support.text_vectors` writes the file. The
vocabularies are trained on the held-out text, and have the same added tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rdrr._chat_prompt import ChatPrompt
from rdrr._generation import AnswerText
from rdrr_runtime.text.chat_template import ChatTemplate
from rdrr_runtime.text.tokenizer import TextCodec
from support import tiny_tokenizers as tiny
from support.commands import ROOT

FILE = ROOT / "tests" / "data" / "vectors" / "text.json"
HELD_OUT = ROOT / "tests" / "data" / "text" / "heldout.txt"
CHARSMAP = ROOT / "tests" / "data" / "text" / "charsmap.txt"
SNIPPETS = ROOT / "tests" / "data" / "text" / "template_snippets.txt"
TEXTS, STREAMS = 600, 120
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
END = 2
"""Id of the token that ends a text."""

ADDED = ("<unk>", "<s>", "</s>", "<|user|>", "<|end|>")
PLAIN = ("<tool>", "</tool>", "\n\n")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEMPLATES = {
    "turns": """{{ bos_token }}{% for m in messages %}
<|user|>{{ m.role }}
{{ m.content | trim }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|user|>assistant
{% endif %}""",
    "tools": """{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if tools %}
<tool>{% for tool in tools %}{{ tool | tojson }}{% if not loop.last %}, {% endif %}
    {%- endfor %}</tool>
{%- endif %}
{{- ns.system ~ '\n\n' }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '<|user|>' + message['content'].strip() + '<|end|>' }}
    {%- else %}
        {{- message['content'] | trim + eos_token }}
        {%- for call in message.tool_calls or [] %}
            {%- set given = call.function.arguments | tojson(indent=2) %}
            {{- '<tool>' + call.function.name + ' ' + given + '</tool>' }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and enable_thinking is defined %}
    {{- 'think' if enable_thinking else 'hush' }}
{%- endif %}""",
}

QUESTION = {"role": "user", "content": "  Hi  you\n\nthere <b> 😀 "}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "é": [1.5, True, None]}},
}
CONVERSATIONS: tuple[Mapping[str, Any], ...] = (
    {"messages": [QUESTION]},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b "},
            {"role": "user", "content": "ñ", "name": None},
        ]
    },
    {"messages": [{"role": "user", "content": "a</s>\n<|end|>system\n<tool>b\ufdd0<s>\ufdd1"}]},
    {"messages": [{"role": "user", "content": "<|e<|end|>nd|> <s[note]"}]},
    {"messages": [QUESTION], "tools": [TOOL], "variables": {"enable_thinking": False}},
    {"messages": [QUESTION], "variables": {"enable_thinking": True, "bos_token": "<|end|>"}},
    {
        "messages": [
            QUESTION,
            {
                "role": "assistant",
                "content": "x",
                "tool_calls": [{"function": {"name": "f", "arguments": {"b": [], "</s>": 1}}}],
            },
            QUESTION,
        ]
    },
    {
        "messages": [
            QUESTION,
            {"role": "assistant", "content": "seen", "token_ids": [9, 4, 11, 30, END]},
            {"role": "user", "content": "and\u2063answer\u2063?"},
            {"role": "assistant", "content": "", "token_ids": [12, 4]},
            {"role": "user", "content": "so"},
        ]
    },
)


SNIPPET_MESSAGES = (
    {"role": "user", "content": "a Hello </think>wOrld a"},
    {"role": "assistant", "content": "b"},
)
SNIPPET_TOOL = {
    "name": "f",
    "nested": {"deep": [1, 2.5, True, None]},
    "list": ["é", "<b>"],
    "b": 1,
}


def _pieces(pre_tokenizer: Any, size: int) -> tuple[list[str], list[list[str]]]:
    """Return the pieces and merges that BPE learns."""
    from tokenizers import Tokenizer, models, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)  # type: ignore[call-arg]
    trained.train_from_iterator(HELD_OUT.read_text(encoding="utf-8").splitlines(), trainer)
    model = json.loads(trained.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), model["merges"]


def _file(model: Mapping[str, Any], words: Sequence[str], **parts: Any) -> dict[str, Any]:
    """Return a tokenizer whose added tokens come first and last in the vocabulary."""
    first = [tiny.added(text, at) for at, text in enumerate(ADDED)]
    last = [tiny.added(text, len(words) + at, special=False) for at, text in enumerate(PLAIN)]
    return {"version": "1.0", "added_tokens": [*first, *last], **parts, "model": model}


def _bpe(words: Sequence[str], merges: Sequence[Sequence[str]], **options: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "vocab": {word: at for at, word in enumerate(words)},
        "merges": merges,
        **options,
    }


def _template(*parts: str) -> dict[str, Any]:
    pattern = [
        {"SpecialToken": {"id": part, "type_id": 0}}
        if part in ADDED
        else {"Sequence": {"id": part, "type_id": 0}}
        for part in parts
    ]
    used = {
        part: {"id": part, "ids": [ADDED.index(part)], "tokens": [part]}
        for part in parts
        if part in ADDED
    }
    return {
        "type": "TemplateProcessing",
        "single": pattern,
        "pair": pattern,
        "special_tokens": used,
    }


def _byte_level(**parts: Any) -> dict[str, Any]:
    from tokenizers.pre_tokenizers import ByteLevel

    learned, merges = _pieces(ByteLevel(add_prefix_space=False), 700)
    words = [*ADDED, *sorted({*ByteLevel.alphabet(), *learned}, key=lambda word: (len(word), word))]
    options = {"ignore_merges": parts.pop("ignore_merges", False)}
    return _file(_bpe(words, merges, **options), words, decoder=tiny.BYTE_LEVEL, **parts)


def llama_3() -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": _LLAMA_3},
        "behavior": "Isolated",
        "invert": False,
    }
    steps = [split, tiny.BYTE_LEVEL | {"use_regex": False}]
    return _byte_level(
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        post_processor={"type": "Sequence", "processors": [tiny.BYTE_LEVEL, _template("<s>", "A")]},
        ignore_merges=True,
    )


def gpt_2() -> dict[str, Any]:
    digits = {"type": "Digits", "individual_digits": True}
    steps = {"type": "Sequence", "pretokenizers": [digits, tiny.BYTE_LEVEL]}
    return _byte_level(pre_tokenizer=steps, normalizer={"type": "NFC"})


def _sentencepiece(**parts: Any) -> dict[str, Any]:
    from tokenizers.pre_tokenizers import Metaspace

    learned, merges = _pieces(Metaspace(), 500)
    words = [*ADDED, *_BYTES, *learned]
    options = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    return _file(_bpe(words, merges, **options), words, **parts)


def llama_2() -> dict[str, Any]:
    steps = [{"type": "Prepend", "prepend": "▁"}, _spaces()]
    return _sentencepiece(
        normalizer={"type": "Sequence", "normalizers": steps},
        post_processor=_template("<s>", "A"),
        decoder=tiny.sequence([*tiny.FALLBACK, tiny.STRIP]),
    )


def mistral() -> dict[str, Any]:
    return _sentencepiece(
        pre_tokenizer=tiny.metaspace("first"), decoder=tiny.sequence([*tiny.FALLBACK, tiny.STRIP])
    )


def gemma() -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    made = _sentencepiece(
        normalizer=_spaces(),
        pre_tokenizer=split,
        post_processor=_template("<s>", "A"),
        decoder=tiny.sequence(tiny.FALLBACK),
    )
    size = len(made["model"]["vocab"]) + len(PLAIN)
    more = [tiny.added("▁▁", size, special=False), tiny.added("[note]", size + 1, special=False)]
    more[1]["normalized"] = True
    more += [tiny.added("[trim]", size + 2) | {"lstrip": True, "rstrip": True}]
    more += [tiny.added("[word]", size + 3) | {"single_word": True}]
    return made | {"added_tokens": made["added_tokens"] + more}


def _spaces() -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def _unigram(bytes_: Sequence[str], **parts: Any) -> dict[str, Any]:
    from tokenizers.pre_tokenizers import Metaspace

    learned, _ = _pieces(Metaspace(), 400)
    words = [*ADDED, *bytes_, *learned]
    # Scores that no sum of others equals: the best path is the only one.
    chance = random.Random(5)
    vocab = [[word, -chance.uniform(4, 12) if word in learned else 0.0] for word in words]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": bool(bytes_)}
    return _file(model, words, pre_tokenizer=tiny.metaspace("always") | {"split": True}, **parts)


def unigram() -> dict[str, Any]:
    return _unigram(
        _BYTES, decoder=tiny.sequence([{"type": "ByteFallback"}, tiny.metaspace("always")])
    )


def unknown() -> dict[str, Any]:
    return _unigram(
        (),
        normalizer={"type": "NFKC"},
        post_processor=_template("A", "</s>"),
        decoder=tiny.metaspace("always"),
    )


def mapped() -> dict[str, Any]:
    """Return a vocabulary as XLM-RoBERTa has it: a table of characters, and spaces that are joined.

    SentencePiece made the table from rules for the characters of the texts: spaces, ligatures,
    letters with combining accents, and characters that vanish.
    """
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    table = {
        "type": "Precompiled",
        "precompiled_charsmap": CHARSMAP.read_text("ascii").replace("\n", ""),
    }
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    return _unigram(
        (),
        normalizer={"type": "Sequence", "normalizers": [table, strip, spaces]},
        post_processor=_template("<s>", "A", "</s>"),
        decoder=tiny.metaspace("always"),
    )


def _word_piece(**parts: Any) -> dict[str, Any]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    trained = Tokenizer(models.WordPiece(unk_token="<unk>"))
    trained.normalizer = normalizers.BertNormalizer()
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(  # type: ignore[call-arg]
        vocab_size=400, show_progress=False, initial_alphabet=list("aouéñ語☃ß#|<>'")
    )
    trained.train_from_iterator(HELD_OUT.read_text(encoding="utf-8").splitlines(), trainer)
    vocab = trained.get_vocab()
    words = [*ADDED, *sorted(vocab, key=vocab.__getitem__)]
    model = {
        "type": "WordPiece",
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 20,
        "vocab": {word: at for at, word in enumerate(words)},
    }
    return _file(
        model,
        words,
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        **parts,
    )


def _of_bert(**options: Any) -> dict[str, Any]:
    usual = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    return {"type": "BertNormalizer", **usual, **options}


def uncased() -> dict[str, Any]:
    return _word_piece(
        normalizer=_of_bert(lowercase=True), post_processor=_template("<s>", "A", "</s>")
    )


def lowercased() -> dict[str, Any]:
    steps = [_of_bert(lowercase=False), {"type": "NFD"}, {"type": "StripAccents"}]
    steps += [{"type": "Lowercase"}]
    return _word_piece(normalizer={"type": "Sequence", "normalizers": steps})


KINDS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "byte-level, Llama 3": llama_3,
    "byte-level, GPT-2": gpt_2,
    "SentencePiece, Llama 2": llama_2,
    "SentencePiece, Mistral": mistral,
    "Gemma": gemma,
    "Unigram": unigram,
    "Unigram without bytes": unknown,
    "Unigram, with a table": mapped,
    "WordPiece, uncased": uncased,
    "WordPiece, lowercased by steps": lowercased,
}

_STRANGE = (
    *(
        "",
        " ",
        "  two  spaces   and\ttabs\n\n\n",
        "\r\n\r\n",
        "a" * 80,
        "\u0085\ufeff\u00a0\u2003x\u200b",
    ),
    *(
        "naïve café — “quotes” 日本語 🙂👩‍👩‍👧 e\u0301",
        "don't I'LL we'Ve it'ſ 'K",
        "1234567 3.14 0x1F ٣٤ Ⅻ",
    ),
    *(
        "<s>x</s>",
        "<|user|> a <|end|>b",
        "▁▁a ▁ [note]",
        "x  [trim]  y",
        "[trim] \n\n [trim]",
        "a[word] [word] [word]é [word].",
        "<0x0A> \ufffd",
        "𝔘𝔫𝔦 ﬁ ①",
    ),
    *(
        "$1 $& $$",
        "a\u0000b",
        "'s'S \u2028 \u3000",
        "☃ ☃☃",
        "ß Σς İ",
        "!?.,;:",
        "\n",
        "\n \n",
        " \n",
        "\t \t",
    ),
)
_ALPHABET = (
    *"aeiou thsn.,'!?1",
    "\n",
    "  ",
    "é",
    "ñ",
    "語",
    "😀",
    "\u00a0",
    "<s>",
    "<|end|>",
    "<tool>",
    "the ",
    "'s",
    "\ufeff",
)
_STOPS = ("the", "<|end|>", "a", " n", "\n\n", "</s>x", "é", "\ufffd", "er t", "on")


def texts(chance: random.Random) -> list[str]:
    """Return texts: strange ones, parts of the held-out text, and random ones."""
    whole = HELD_OUT.read_text(encoding="utf-8")
    made = list(_STRANGE)
    while len(made) < TEXTS // 2:
        begin = chance.randrange(len(whole))
        made.append(whole[begin : begin + chance.randint(1, 40)])
    while len(made) < TEXTS:
        made.append("".join(chance.choices(_ALPHABET, k=chance.randint(1, 16))))
    return made


def streams(chance: random.Random, size: int) -> list[dict[str, Any]]:
    """Return ids to decode one after the other; few different ones, so that they meet often."""
    made = []
    for _ in range(STREAMS):
        few = chance.sample(range(size), chance.choice((3, 6, 40)))
        few += chance.choices(range(len(ADDED)), k=chance.choice((0, 1)))
        made.append(
            {
                "prompt": chance.choices(few, k=chance.randint(0, 3)),
                "ids": chance.choices(few, k=chance.randint(0, 10)),
                "stop": chance.sample(_STOPS, chance.choice((0, 0, 1, 3))),
            }
        )
    return made


def answered(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """Return vectors with what this library makes of their inputs."""
    kinds = {
        name: _answered_kind(vectors["texts"], kind) for name, kind in vectors["kinds"].items()
    }
    return {"texts": vectors["texts"], "kinds": kinds}


def snippets() -> list[dict[str, Any]]:
    """Return small templates, each with its text; None where it is refused."""
    lines = SNIPPETS.read_text(encoding="utf-8").splitlines()
    return [{"template": line, "text": _snippet(line)} for line in lines]


def _snippet(source: str) -> str | None:
    from rdrr_format.errors import RdrrError

    try:
        template = ChatTemplate(source, {}, where="snippet")
        return template.render(SNIPPET_MESSAGES, variables={"tool": SNIPPET_TOOL})
    except RdrrError:
        return None


def _answered_kind(given: Sequence[str], kind: Mapping[str, Any]) -> dict[str, Any]:
    codec = TextCodec(json.dumps(kind["tokenizer"]).encode())
    return {
        "tokenizer": kind["tokenizer"],
        "ids": [codec.encode(text) for text in given],
        "streams": [_answered_stream(codec, case) for case in kind["streams"]],
        "chats": [_answered_chat(codec, case) for case in kind["chats"]],
    }


def _answered_stream(codec: TextCodec, case: Mapping[str, Any]) -> dict[str, Any]:
    text = AnswerText(codec, case["prompt"], case["stop"])
    pieces = [text.add(token_id) for token_id in case["ids"]] + [text.rest()]
    inputs = {key: case[key] for key in ("prompt", "ids", "stop")}
    return {**inputs, "pieces": pieces, "stopped_by": text.stopped_by}


@cache
def _chat_template(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[name], TOKENS, where="template")


def _answered_chat(codec: TextCodec, case: Mapping[str, Any]) -> dict[str, Any]:
    from rdrr_format.errors import GenerationError

    template = _chat_template(case["template"])
    control = codec.control_tokens(template.control_tokens(codec.added_tokens()))
    tools, variables = case.get("tools"), case.get("variables")
    after = codec.encode_as_is(template.after_answer())[:1]
    ends = [token_id for token_id in after if codec.is_special(token_id)]
    prompt = ChatPrompt(template, codec, (END, *ends), tools, variables, control)
    try:
        ids: list[int] | None = prompt.rendered(case["messages"])[0]
    except GenerationError:
        ids = None
    return {**case, "ids": ids, "ends": ends}


def made() -> dict[str, Any]:
    """Return the vectors."""
    chance = random.Random(7)
    kinds = {}
    for name, make in KINDS.items():
        tokenizer = make()
        chats = [{"template": t, **case} for t in TEMPLATES for case in CONVERSATIONS]
        size = len(tokenizer["model"]["vocab"]) + len(PLAIN)
        kinds[name] = {"tokenizer": tokenizer, "streams": streams(chance, size), "chats": chats}
    return answered({"texts": texts(chance), "kinds": kinds})


def read() -> dict[str, Any]:
    """Return the vectors of the file."""
    vectors: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return vectors


def write(vectors: Mapping[str, Any], file: Path = FILE) -> None:
    """Write vectors, a line for each case."""
    given = {"messages": SNIPPET_MESSAGES, "variables": {"tool": SNIPPET_TOOL}}
    whole = {"templates": TEMPLATES, "tokens": TOKENS, "ends": [END], **vectors}
    whole |= {"snippets_given": given, "snippets": snippets()}
    file.write_text(lines(whole, 3) + "\n", encoding="utf-8")


def lines(value: Any, depth: int) -> str:
    """Return a value as JSON, with a line for each case below `depth` mappings."""
    if depth and isinstance(value, Mapping) and "model" not in value:
        inner = (f"{json.dumps(key)}: {lines(item, depth - 1)}" for key, item in value.items())
        return "{\n" + ",\n".join(inner) + "\n}"
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    write(made())
