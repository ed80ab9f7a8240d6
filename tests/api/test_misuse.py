"""Calls whose arguments do not fit raise an error of the tree, which says what would."""

from __future__ import annotations

import inspect

import pytest
import rdrr
from rdrr_format.errors import UsageError
from rdrr_format.misuse import explained
from support import tiny_tokenizers as tiny
from support.commands import error_line
from support.commands import rdrr as run
from support.scripted_models import write_scripted

FUNCTIONS = sorted(name for name in rdrr.__all__ if inspect.isfunction(getattr(rdrr, name)))
BUILT = ("LoadOptions", "ConvertOptions", "SamplingParams", "RankPrompt", "Speculative", "Wedlm")


@pytest.mark.parametrize("name", [*FUNCTIONS, *BUILT])
def test_every_public_function_explains_a_wrong_keyword_and_a_missing_argument(name):
    function = getattr(rdrr, name)
    needed = 2 if name in ("convert", "export", "export_program", "play", "push") else 1
    with pytest.raises(UsageError, match=r"there is no keyword of this name .*found nonsense"):
        function(*["a", "b"][: needed if name in FUNCTIONS else 0], nonsense=1)
    if name in FUNCTIONS:
        with pytest.raises(UsageError, match=r"the arguments do not fit .*missing a required"):
            function()


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: rdrr.validate("a", depp=True), "deep"),
        (lambda: rdrr.export("a", "b", overwrit=True), "overwrite"),
        (lambda: rdrr.push("a", "b", dry=True), "dry_run"),
        (lambda: rdrr.open("a", follow=True), "follow_links"),
    ],
)
def test_a_near_keyword_is_named(call, meant):
    with pytest.raises(UsageError, match=f"did you mean {meant}"):
        call()


def test_a_type_error_from_within_stays_what_it_is():
    @explained
    def function(value):
        """Return the length of a value."""
        return len(value)

    assert (function("ab"), function.__doc__) == (2, "Return the length of a value.")
    with pytest.raises(TypeError, match="has no len"):
        function(3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("misuse")
    source = write_scripted(folder / "source", tiny.byte_level(), [5, 6], end=2)
    rdrr.convert(source, folder / "package", quantize="f32")
    with rdrr.load(folder / "package", backend="cpu") as loaded:
        yield loaded


def test_methods_of_models_and_sessions_explain_theirs(model):
    calls = (
        lambda: model.logits([5], last=True),
        lambda: model.encode("a", bos=True),
        lambda: model.session(contxt=3),
        lambda: model.session().append("a", 3),
        lambda: model.restore(),
    )
    for call in calls:
        with pytest.raises(UsageError):
            call()


def test_ids_that_the_model_has_not_are_refused_by_decode(model):
    size = model.package.manifest.architecture.vocab_size
    assert model.decode([5, size - 1])[:1] == model.decode([5])[:1]
    for ids in ([size], [5, 999_999], [-1], ["a"], "a", 5):
        with pytest.raises(UsageError):
            model.decode(ids)


@pytest.mark.parametrize("command", ["generate", "convert", "export-program", "serve"])
def test_an_option_without_its_value_names_the_help_of_its_command(command):
    flags = {"generate": "-p", "convert": "--quantize", "serve": "--port"}
    line = error_line(run(command, "a", flags.get(command, "--capabilities")))
    assert line.endswith(f"see `rdrr {command} --help`")
    assert error_line(run("--bogus")).endswith("see `rdrr --help`")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("generate", "a", "--device", "cpu"), "--backend"),
        (("generate", "a", "--n-predict", "4"), "--max-tokens"),
        (("generate", "a", "--max_tokens", "4"), "--max-tokens"),
        (("generate", "a", "--temp", "1"), "--temperature"),
        (("generate", "a", "--ctx-size", "1"), "--context"),
        (("generate", "a", "--repetition-penalty", "1"), "--repeat-penalty"),
        (("convert", "a", "b", "--outtype", "q8_0"), "--quantize"),
        (("convert", "a", "b", "--quantise", "q8_0"), "--quantize"),
    ],
)
def test_an_unknown_flag_names_the_one_that_is_meant(words, meant):
    done = run(*words)
    assert f"there is no option {words[-2]}; did you mean {meant}?" in error_line(done, 2)


def test_a_flag_that_is_near_to_none_is_refused_alone():
    line = error_line(run("generate", "a", "--xyzzy"))
    assert line == "error: No such option: --xyzzy; see `rdrr generate --help`"


@pytest.mark.parametrize("name", ["m.safetensors", "m.ONNX", "m.bin"])
def test_an_export_to_the_name_of_a_file_of_another_kind_is_refused(name):
    with pytest.raises(UsageError, match=r"name of a folder, or of a file that ends with \.gguf"):
        rdrr.export("a", name)
