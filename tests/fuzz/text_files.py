"""Cases of tokenizers, conversations, reports and other JSON."""

from __future__ import annotations

import json
from typing import Any

from fuzz import weight_files
from fuzz.jinja_texts import SOUND
from fuzz.json_edits import VALUES, base, edited_text
from hypothesis import strategies as st

# tokenizers -------------------------------------------------------------------------------------

_LETTERS = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "ab": 5, "Ġa": 6, "<0x0A>": 7}
_ADDED = [
    {"id": 1, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
     "normalized": False, "special": True},
    {"id": 8, "content": "<|end|>", "single_word": False, "lstrip": True, "rstrip": False,
     "normalized": True, "special": True},
]  # fmt: skip
_NORMALIZERS: list[Any] = [
    {"type": "NFC"},
    {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "_"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
    {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
     "strip_accents": None, "lowercase": True},
    {"type": "Precompiled", "precompiled_charsmap": ""},
    {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="},
]  # fmt: skip
_PRETOKENIZERS: list[Any] = [
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    {"type": "Split", "pattern": {"Regex": "\\s+|a"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithNext", "invert": True},
    {"type": "Digits", "individual_digits": True},
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "Whitespace"},
    {"type": "UnicodeScripts"},
    {"type": "CharDelimiterSplit", "delimiter": "a"},
    {"type": "FixedLength", "length": 2},
]
_POST: list[Any] = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
     "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
     "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]},
    {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True,
     "add_prefix_space": True},
]  # fmt: skip
_DECODERS: list[Any] = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
    {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "CTC", "pad_token": "<s>", "word_delimiter_token": "a", "cleanup": True},
    {"type": "BPEDecoder", "suffix": "</w>"},
]
_MODELS: list[Any] = [
    {"type": "BPE", "vocab": _LETTERS, "merges": ["a b"], "unk_token": "<unk>", "fuse_unk": True,
     "byte_fallback": True, "ignore_merges": False, "dropout": None,
     "continuing_subword_prefix": None, "end_of_word_suffix": None},
    {"type": "BPE", "vocab": _LETTERS, "merges": [["a", "b"]]},
    {"type": "WordPiece", "vocab": _LETTERS, "unk_token": "<unk>",
     "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    {"type": "WordLevel", "vocab": _LETTERS, "unk_token": "<unk>"},
    {"type": "Unigram", "vocab": [[token, -float(at)] for token, at in _LETTERS.items()],
     "unk_id": 0, "byte_fallback": True},
]  # fmt: skip
_PATTERNS = ["(a+)+(?=b)$", "(?i:a)|\\p{L}+", "", "(", "a{1000}{1000}", "(?<=a)b", "\\1", "^|$"]


def _tokenizer(model: Any, normalizer: Any, pre: Any, post: Any, decoder: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _ADDED,
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": post,
        "decoder": decoder,
        "model": model,
    }


def _sequence(key: str, parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: parts}


_TOKENIZERS = [
    _tokenizer(model, _NORMALIZERS[at], _PRETOKENIZERS[at], _POST[at % 2], _DECODERS[at])
    for at, model in enumerate(_MODELS)
] + [
    _tokenizer(
        _MODELS[0],
        _sequence("normalizers", _NORMALIZERS[:4]),
        _sequence("pretokenizers", _PRETOKENIZERS[2:6]),
        _sequence("processors", [_POST[1], _POST[0]]),
        _sequence("decoders", _DECODERS[1:5]),
    )
]
SOUND_TOKENIZERS = tuple(json.dumps(document).encode() for document in _TOKENIZERS)
_STEPS = st.sampled_from([*_NORMALIZERS, *_PRETOKENIZERS, *_POST, *_DECODERS, *_MODELS])
TOKENIZERS = edited_text(
    [base(document) for document in _TOKENIZERS],
    st.one_of(
        VALUES,
        _STEPS,
        st.lists(_STEPS, max_size=3),
        st.sampled_from(_PATTERNS),
        st.integers(-2, 12),
        st.sampled_from([{"String": ""}, {"Regex": "(a+)+(?=b)$"}, "Removed", "Longest"]),
    ),
)

# conversations ----------------------------------------------------------------------------------

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0},
           "b": {"$ref": "#/$defs/c"}, "d": {"enum": ["x", 1, None]}}, "required": ["a"],
           "$defs": {"c": {"type": "array", "items": {"type": "string", "pattern": "^a+$"},
                           "maxItems": 3}}, "additionalProperties": False}  # fmt: skip
REQUEST = {
    "template": SOUND[0],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "user", "content": "And?"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": _SCHEMA}}],
    "variables": {"enable_thinking": True},
    "settings": {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "chat_template": [
            {"name": "default", "template": SOUND[1]},
            {"name": "tool_use", "template": SOUND[2]},
        ],
    },
    "response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
}
_REQUESTS = [
    REQUEST,
    {**REQUEST, "response_format": {"type": "regex", "regex": "a(b|c)*d{2,3}"}},
    {**REQUEST, "response_format": {"type": "json_object"}, "template": SOUND[2]},
    {**REQUEST, "template": None},
]
SOUND_REQUESTS = tuple(json.dumps(document).encode() for document in _REQUESTS)
REQUESTS = edited_text(
    [base(document) for document in _REQUESTS],
    st.one_of(
        VALUES,
        st.sampled_from(["user", "assistant", "tool", "json_schema", "regex", "array", "object"]),
        st.sampled_from(_PATTERNS),
        st.sampled_from(
            [{"$ref": "#"}, {"$ref": "#/$defs/c"}, {"type": "integer"}, True, {"not": {}}]
        ),
    ),
)

# other JSON -------------------------------------------------------------------------------------

REPORT = {
    "version": 1, "modelId": "m", "architecture": "llama", "sourceFormat": "safetensors",
    "tool": "rdrr 0.1.0", "options": {"quantize": "Q8_0"}, "parameters": 96, "totalSize": 204,
    "padding": 0, "byDtype": {}, "notes": ["a note"], "tensors": [],
}  # fmt: skip

ADAPTER = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
    "rank_pattern": {"layers.0.q_proj": 8, "^model\\.layers\\.(0|1)\\.v": 2},
    "alpha_pattern": {".*q_proj": 16}, "use_rslora": False, "use_dora": False, "bias": "none",
    "fan_in_fan_out": False, "modules_to_save": None, "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "base",
}  # fmt: skip
SOUND_ADAPTERS = (json.dumps(ADAPTER).encode(),)
ADAPTERS = edited_text(
    [base(ADAPTER)],
    VALUES
    | st.sampled_from([*_PATTERNS, "a|b", "[^a-z]{2,5}", "(?P<x>a)", "x" * 5000, "((((a))))"]),
)

_ROPES = [
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32},
    {"type": "linear", "factor": 2.0},
]  # fmt: skip
_CONFIGS = [
    {**weight_files.CONFIG, "vocab_size": 40, "hidden_size": 64, "intermediate_size": 96,
     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
     "tie_word_embeddings": True, "max_position_embeddings": 128, "rope_theta": 1e4,
     "rope_scaling": rope, "bos_token_id": 1, "eos_token_id": [2, 3], "attention_bias": False,
     "sliding_window": None, "torch_dtype": "bfloat16"}
    for rope in (None, *_ROPES)
]  # fmt: skip
SOUND_CONFIGS = tuple(json.dumps(document).encode() for document in _CONFIGS)
CONFIGS = edited_text(
    [base(document) for document in _CONFIGS],
    VALUES | st.sampled_from([*_ROPES, "gelu", "LlamaForCausalLM", "Qwen3ForCausalLM", ["x"],
                              "Gemma3ForCausalLM", {"quant_method": "gptq", "bits": 4}]),
)  # fmt: skip

REPORT |= {
    "byDtype": {"Q8_0": {"tensors": 1, "weights": 96, "bytes": 204, "relativeRmse": 0.004}},
    "tensors": [
        {"name": "layers.0.q_proj.weight", "role": "matmul", "group": "q", "dtype": "Q8_0",
         "sources": [{"name": "model.layers.0.q_proj.weight", "dtype": "BF16"}], "shape": [3, 32],
         "layout": "row", "why": "the recipe", "bytes": 204, "padding": 0, "overflowed": False,
         "relativeRmse": 0.004,
         "worstBlock": {"row": 1, "block": 0, "relativeRmse": 0.01}},
    ],
}  # fmt: skip
SOUND_REPORTS = (json.dumps(REPORT).encode(),)
REPORTS = edited_text([base(REPORT)])
