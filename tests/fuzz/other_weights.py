"""Cases of files of torch.save, of saved sessions, and of adapters with their weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from fuzz.byte_edits import NUMBERS, sometimes_damaged
from fuzz.json_edits import CONTROL, SCALARS, VALUES, base, edited, edited_text, text_of
from fuzz.text_files import ADAPTER
from hypothesis import strategies as st
from support.session_files import content_of
from support.torch_archives import Called, Named, Stored, archive, tensor

# files of torch.save ----------------------------------------------------------------------------

_STORAGES = {"0": np.arange(64, dtype="<f4").tobytes(), "1": bytes(16)}
_SOUND_STATE = {
    "model.embed_tokens.weight": tensor("0", (4, 8), (8, 1)),
    "model.norm.weight": tensor("0", (8,), (1,), offset=32),
    "transposed": tensor("0", (8, 4), (1, 8)),
    "parameter": Called("torch._utils._rebuild_parameter", tensor("1", (4,), (1,)), False, {}),
    "step": 3,
}
SOUND_TORCH = (
    archive(_SOUND_STATE, _STORAGES),
    archive({"state_dict": _SOUND_STATE, "epoch": 1}, _STORAGES, root="model"),
)
_COUNTS = st.sampled_from([0, 1, 1, 2, 4, 8, -1, *NUMBERS])
_SIZES = st.lists(_COUNTS, max_size=4).map(tuple)
_KINDS = st.sampled_from(["Float", "Half", "BFloat16", "Double", "Bool", "ComplexFloat", "", "?"])
_KEYS = st.sampled_from(["0", "0", "1", "x", "", CONTROL])
_PLAIN = st.builds(
    lambda key, shape, strides, offset, kind: tensor(key, shape, strides, offset=offset, kind=kind),
    _KEYS,
    _SIZES | SCALARS,
    _SIZES | SCALARS,
    st.just(0) | _COUNTS | SCALARS,
    st.just("Float") | _KINDS,
)
_FUNCTIONS = st.sampled_from(
    ["torch._utils._rebuild_parameter", "torch._utils._rebuild_tensor_v3",
     "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_meta_tensor_no_storage",
     "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_qtensor",
     "collections.OrderedDict", "_codecs.encode", "os.system", "torch.\u202e", "builtins.eval"]
)  # fmt: skip
_CALLS = st.recursive(
    _PLAIN | st.builds(Named, _FUNCTIONS) | st.builds(Stored, _KEYS, _FUNCTIONS, SCALARS) | SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda path, args: Called(path, *args), _FUNCTIONS, st.lists(inner, max_size=5)),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "model", "state_dict", CONTROL]), inner, max_size=3),
    ),
    max_leaves=8,
)
_NAMES = st.sampled_from([*_SOUND_STATE, "a", "", CONTROL, "x" * 5000])
_STATES = st.dictionaries(_NAMES, _PLAIN | _CALLS, max_size=4) | _CALLS
_OPERATIONS = st.lists(
    st.sampled_from(
        [b"(", b"t", b"}", b"]", b"u", b"e", b"a", b"s", b"R", b"\x81", b"Q", b"b", b"0", b"2",
         b"1", b"q\0", b"h\0", b"\x94", b"r\xff\xff\xff\xff", b"j\xff\xff\xff\xff", b"\x93", b"N",
         b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"cos\nsystem\n",
         b"X\1\0\0\0a", b"X\xff\xff\xff\x7fa", b"\x8c\3abc", b"K\1", b"\x8a\x08" + b"\xff" * 8,
         b"\x8b\xff\xff\xff\x7f", b"G" + b"\x7f\xf0" + bytes(6), b"\x88", b"\x85", b"\x87", b".",
         b"\x95" + b"\xff" * 8, b"\x80\x05", b"I1\n", b"L" + b"9" * 5000 + b"L\n", b"(" * 5000]
    ),
    max_size=24,
).map(b"".join)  # fmt: skip
TORCH = sometimes_damaged(
    st.one_of(
        _STATES.map(lambda state: archive(state, _STORAGES)),
        _OPERATIONS.map(lambda raw: archive(None, _STORAGES, raw=b"\x80\x02" + raw + b".")),
    )
)

# saved sessions ---------------------------------------------------------------------------------

_SAMPLING = {"temperature": 0.5, "logit_bias": {"3": 1.5}, "seed": 4, "sampled_tokens": 2}
SOUND_SESSIONS = (content_of(_SAMPLING),)


def _parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _file(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


_HEADER, _DATA = _parts(SOUND_SESSIONS[0])
_SAMPLINGS = edited_text([base(_SAMPLING)]).map(lambda text: text.decode("ascii"))
SESSIONS = sometimes_damaged(
    st.builds(
        _file,
        edited_text(
            [base(_HEADER)],
            st.one_of(
                VALUES,
                _SAMPLINGS,
                st.lists(_COUNTS, max_size=4),
                st.sampled_from(
                    ["U32", "F16", "F32", "I64", "BOOL", "NaN", "f16", "q8_0", "9" * 40]
                ),
            ),
        ),
        st.sampled_from([_DATA, _DATA, b"\xff" * len(_DATA), _DATA[:-1], b""]),
    )
)

# adapters with their weights --------------------------------------------------------------------

HIDDEN, RANK = 8, 2
_LAYER = "base_model.model.model.layers.0."


def _adapter(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    return header, np.linspace(-1, 1, end // 4, dtype="<f4").tobytes()


_LORA, _LORA_DATA = _adapter(
    {
        f"{_LAYER}self_attn.q_proj.lora_A.weight": (RANK, HIDDEN),
        f"{_LAYER}self_attn.q_proj.lora_B.weight": (HIDDEN, RANK),
        f"{_LAYER}self_attn.q_proj.lora_magnitude_vector": (HIDDEN,),
        f"{_LAYER}mlp.down_proj.lora_A.weight": (RANK, 2 * HIDDEN),
        f"{_LAYER}mlp.down_proj.lora_B.weight": (HIDDEN, RANK),
        f"{_LAYER}mlp.down_proj.lora_magnitude_vector": (HIDDEN,),
        "base_model.model.model.norm.weight": (HIDDEN,),
        "base_model.model.lm_head.weight": (4, HIDDEN),
    }
)
_SETTINGS = {**ADAPTER, "r": RANK, "target_modules": ["q_proj", "down_proj"], "use_dora": True,
             "rank_pattern": {}, "modules_to_save": ["norm", "lm_head"]}  # fmt: skip


def _pair(settings: bytes, header: bytes, data: bytes) -> bytes:
    """Return an adapter as one case: its configuration in a line, then its weights."""
    return settings.replace(b"\n", b" ") + b"\n" + _file(header, data)


SOUND_LORA = (_pair(text_of(_SETTINGS), text_of(_LORA), _LORA_DATA),)
_LORA_HEADERS = edited(
    [base(_LORA)],
    VALUES | _COUNTS | st.lists(_COUNTS, max_size=4) | st.sampled_from(["F16", "BF16", "I8", "U8"]),
)
LORA = sometimes_damaged(
    st.builds(
        _pair,
        st.just(text_of(_SETTINGS)) | edited_text([base(_SETTINGS)], most=2),
        _LORA_HEADERS.map(text_of) | st.just(text_of(_LORA)),
        st.sampled_from([_LORA_DATA, _LORA_DATA, b"\xff" * len(_LORA_DATA)]),
    )
)
