"""Run a benchmark script in this process."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from support.commands import Done


@dataclass(frozen=True)
class ScriptDone(Done):
    """The exit code and the output of a script."""

    def json(self) -> Any:
        """Parse the JSON object on the last line of stdout."""
        assert self.code == 0, self.err
        return json.loads(self.out.splitlines()[-1])


def script(name: str, *words: object) -> ScriptDone:
    """Run `benchmarks/<name>.py` with some arguments and collect its output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = import_module(name).main([str(word) for word in words])
        except SystemExit as stopped:  # argparse exits this way on wrong usage
            code = stopped.code
    return ScriptDone(code, out.getvalue(), err.getvalue())
