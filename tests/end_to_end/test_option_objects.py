"""The options of the Python API and the flags of the command line are the same."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
import rdrr
from rdrr.cli import app
from rdrr_converter.devices import DEVICES as OPENED_DEVICES
from rdrr_converter.engines import ENGINES as OPENED_ENGINES
from rdrr_converter.options import DEVICES, ENGINES
from rdrr_format.errors import UsageError
from rdrr_format.options import options_of
from rdrr_runtime.sampling.params import SamplingParams
from support.commands import rdrr as command
from support.safetensor_files import llama_tensors, write_llama
from typer.main import get_group

PROMPT = "And it came to pass"
WARM = rdrr.SamplingParams(temperature=0.9, top_k=20, seed=3)


@pytest.fixture
def source(tmp_path, rng):
    return write_llama(tmp_path / "source", llama_tensors(rng))


@pytest.fixture(scope="module")
def model(shallow_package):
    with rdrr.load(shallow_package, options=rdrr.LoadOptions(backend="cpu", context=256)) as loaded:
        yield loaded


def flags_of(name: str) -> dict[str, str]:
    """Return the help text of each flag of a command."""
    params = get_group(app.build_app(app.COMMANDS)).commands[name].params
    return {param.opts[0]: param.help for param in params if param.opts[0].startswith("-")}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("convert", rdrr.ConvertOptions),
        ("generate", rdrr.LoadOptions),
        ("generate", rdrr.SamplingParams),
        ("chat", rdrr.LoadOptions),
        ("chat", rdrr.SamplingParams),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_option_of_the_api_is_a_flag_with_its_help(name, kind):
    flags = flags_of(name)
    for shared in (option for option in options_of(kind).values() if not option.python_only):
        assert flags[shared.flag].startswith(shared.help.removesuffix("."))


def test_a_command_may_have_flags_for_some_fields_only():
    assert "--adapter" in flags_of("explain")
    assert "--backend" not in flags_of("explain")


def test_every_choice_of_an_option_can_be_opened():
    assert ENGINES == OPENED_ENGINES
    assert DEVICES == OPENED_DEVICES


def digests(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_object_keywords_and_flags_make_one_package(tmp_path, source):
    options = rdrr.ConvertOptions(quantize="q8_0", shard_size=1 << 18, fuse_gate_up=True)
    rdrr.convert(source, tmp_path / "object", options=options)
    keywords = {"quantize": "q8_0", "shard_size": 1 << 18, "fuse_gate_up": True}
    rdrr.convert(source, tmp_path / "keywords", **keywords)
    words = ("--quantize", "Q8_0", "--shard-size", "256KiB", "--fuse-gate-up")
    assert command("convert", source, tmp_path / "flags", *words).code == 0
    packages = [digests(tmp_path / name) for name in ("object", "keywords", "flags")]
    assert packages[0] == packages[1] == packages[2]
    rdrr.convert(source, tmp_path / "other", options=replace(options, fuse_gate_up=False))
    assert digests(tmp_path / "other") != packages[0]


def test_names_of_types_are_accepted_in_any_case_and_recorded_in_one(tmp_path, source):
    rdrr.convert(source, tmp_path / "out", quantize="Q4_K_M")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["conversion"]["options"]["quantize"] == "q4_k_m"
    with pytest.raises(UsageError, match="`quantize` has no such value"):
        rdrr.ConvertOptions(quantize="Q4_K_X")


def test_options_given_twice_are_wrong_usage(tmp_path, source, shallow_package, model):
    with pytest.raises(UsageError, match=r"twice.*quantize"):
        rdrr.convert(source, tmp_path / "a", options=rdrr.ConvertOptions(), quantize="q8_0")
    assert not (tmp_path / "a").exists()
    with pytest.raises(UsageError, match=r"twice.*backend"):
        rdrr.load(shallow_package, options=rdrr.LoadOptions(), backend="cpu")
    with pytest.raises(UsageError, match=r"twice.*top_k"):
        model.generate(PROMPT, sampling=WARM, top_k=3)


def test_sampling_parameters_mean_the_same_to_every_way_of_generating(model):
    text = model.generate(PROMPT, sampling=WARM, max_tokens=8).read()
    assert model.generate(PROMPT, max_tokens=8, temperature=0.9, top_k=20, seed=3).read() == text
    assert model.generate_batch([PROMPT], sampling=WARM, max_tokens=8)[0].text == text
    assert model.session(PROMPT, sampling=WARM).generate(max_tokens=8).read() == text
    assert model.generate(PROMPT, max_tokens=8).read() != text  # control: greedy


def test_an_unknown_sampling_parameter_is_wrong_usage_wherever_it_is_given(model):
    ways = (
        model.generate,
        model.session,
        lambda text, **more: model.generate_batch([text], **more),
    )
    for way in ways:
        with pytest.raises(UsageError, match=r"found temprature.*did you mean temperature"):
            way(PROMPT, temprature=1.0)


def test_keywords_of_other_programs_are_guessed(model, shallow_package, tmp_path):
    (tmp_path / "template").write_text("{{ 1 }}", encoding="utf-8")
    with pytest.raises(UsageError, match="did you mean max_tokens"):
        model.generate(PROMPT, max_token=4)
    with pytest.raises(UsageError, match="did you mean max_tokens"):
        model.chat(
            [{"role": "user", "content": PROMPT}], template=tmp_path / "template", max_new_tokens=4
        )
    with pytest.raises(UsageError, match=r"max_tokens.*temperature.*found stream\)$"):
        model.generate(PROMPT, stream=True)  # no guess is better than a wrong one
    with pytest.raises(UsageError, match=r"expected sampling, temperature.*found max_tokens\)$"):
        model.session(PROMPT, max_tokens=4)  # which is an argument of the session's `generate`
    with pytest.raises(UsageError, match="did you mean backend"):
        rdrr.load(shallow_package, device="cuda")
    with pytest.raises(UsageError, match="did you mean context"):
        rdrr.load(shallow_package, n_ctx=64)


@pytest.mark.parametrize("prompt", [None, 5])
def test_a_prompt_of_another_type_is_refused_with_both_that_are_taken(model, prompt):
    with pytest.raises(UsageError, match="expected text or token ids"):
        model.generate(prompt)


def test_sampling_values_are_never_given_by_position():
    with pytest.raises(UsageError, match="too many positional arguments"):
        SamplingParams(0.9)
    assert {field_.kw_only for field_ in fields(SamplingParams)} == {True}
