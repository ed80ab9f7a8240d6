"""Reference pages written from the code before each build, so that they cannot fall behind it.

`commands.md` comes from the table of commands, `manifest.md` from the JSON Schema of a manifest,
and `python.md` from the names that `rdrr` exports. The pages are not kept in the repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parents[1] / "reference"


def setup(app: Any) -> dict[str, bool]:
    """Write the pages when a build begins."""
    app.connect("builder-inited", lambda _: write_pages(PAGES))
    return {"parallel_read_safe": True}


def write_pages(folder: Path) -> None:
    """Write every generated page into `folder`."""
    for name, lines in (
        ("commands.md", command_page()),
        ("manifest.md", manifest_page()),
        ("python.md", python_page()),
    ):
        text = "\n".join(lines) + "\n"
        path = folder / name
        # An unchanged page keeps its time, so that Sphinx does not read it again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def command_page() -> Iterator[str]:
    """Yield the lines of the page of commands, in the order of `rdrr --help`."""
    import typer
    from rdrr.cli.app import COMMANDS, build_app

    group = typer.main.get_command(build_app(COMMANDS))
    yield "# Commands"
    yield (
        "\nWhat each command and flag does, from the same text that `--help` prints. "
        "`convert-cli` is `rdrr convert` under a name of its own. Exit codes: 0 good, 1 the data "
        "is bad or the work failed, 2 wrong usage, 130 stopped by Ctrl-C. With `--json`, stdout is "
        "one JSON object, and progress and warnings go to stderr.\n"
    )
    for command in COMMANDS:
        parsed: Any = group.commands[command.name]  # type: ignore[attr-defined]
        context = parsed.make_context(f"rdrr {command.name}", [], resilient_parsing=True)
        yield f"## rdrr {command.name}\n"
        yield f"{_paragraphs(parsed.help)}\n"
        yield f"```text\n{parsed.get_usage(context)}\n```\n"
        records = [one for p in parsed.params if (one := p.get_help_record(context))]
        yield from _table(("argument or flag", "meaning"), _flag_rows(records))


def _flag_rows(records: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for names, text in records:
        if not names.endswith("--help"):
            # With spaces between them, values can be wrapped.
            yield f"`{names.replace('|', ' | ')}`", text


def manifest_page() -> Iterator[str]:
    """Yield the lines of the page of the manifest's fields."""
    from rdrr_manifests.schema import manifest_schema

    schema = manifest_schema()
    yield "# Manifest fields"
    yield (
        "\nThe fields that rdrr reads and writes, from the JSON Schema that `rdrr schema` prints. "
        "Other keys are kept as they are. [The format](../SPEC.md) says what they mean together.\n"
    )
    yield "## manifest.json\n"
    yield from _fields(schema)
    for name, part in sorted(schema["$defs"].items()):
        yield f"## {name}\n"
        if "description" in part:
            yield f"{_paragraphs(part['description'])}\n"
        yield from _fields(part)


def _fields(part: dict[str, Any]) -> Iterator[str]:
    required = part.get("required", ())
    rows = (
        (
            f"`{name}`",
            _type(field),
            "required" if name in required else _default(field),
            field["description"],
        )
        for name, field in part.get("properties", {}).items()
    )
    yield from _table(("field", "type", "default", "meaning"), rows)


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{one}`" for one in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    if "const" in field:
        return f"`{field['const']}`"
    return str(field.get("type", "any value"))


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return "" if default is None else f"`{default}`"


def python_page() -> Iterator[str]:
    """Yield the lines of the page of the Python API."""
    import rdrr

    yield "# Python API"
    yield "\nEverything here is imported from `rdrr`. Names load what they need on first use.\n"
    names = [one for one in rdrr.__all__ if not one.startswith("__")]
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in names:
        value = getattr(rdrr, name)
        if not isinstance(value, type):
            kinds["Functions"].append(name)
        elif issubclass(value, Exception):
            kinds["Errors"].append(name)
        else:
            kinds["Classes"].append(name)
    for heading, members in kinds.items():
        yield f"## {heading}\n"
        for name in members:
            kind = "autofunction" if heading == "Functions" else "autoclass"
            options = "" if heading == "Functions" else _members(getattr(rdrr, name))
            yield f"```{{eval-rst}}\n.. {kind}:: rdrr.{name}\n" + (
                f"   {options}```\n" if options else "```\n"
            )


def _members(kind: type) -> str:
    """Return the option of `autoclass` for the members, with those of a base class of rdrr."""
    is_ours = kind.__mro__[1].__module__.startswith(("rdrr._", "rdrr_manifests."))
    return ":members:\n" + ("   :inherited-members: BaseModel\n" if is_ours else "")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(one.split()) for one in text.strip().split("\n\n"))


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"
    yield ""


def _cell(text: str) -> str:
    text = text.replace("|", "\\|")
    # Outside of code, an angle bracket would begin a tag.
    return text if "`" in text else text.replace("<", "&lt;")
