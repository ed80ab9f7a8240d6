"""Run a JavaScript module in a headless Chromium or Firefox, served from this machine.

Debian's Chromium has the software adapter SwiftShader, and its Firefox takes Mesa's, so no GPU is
needed. The module gets its result out by `report(value)`; no driver of the browser is needed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from support.deadlines import HANGS
from support.range_server import running

NOT_INSTALLED = "Chromium is not installed: apt-get install chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-renderer-backgrounding",
    "--disable-popup-blocking",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
)
PREFERENCES = (
    "dom.webgpu.enabled",
    "dom.webgpu.workers.enabled",
    "gfx.webgpu.ignore-blocklist",
)
"""What is switched on in Firefox: it offers software adapters only without its blocklist."""
PAGE = """<!doctype html><script type="module">
const others = Number(new URLSearchParams(location.search).get('others'));
for (let tab = 0; tab < others; tab += 1) open('/', '_blank', 'noopener');
globalThis.report = (value) => fetch('/report', {method: 'POST', body: JSON.stringify(value)});
const failed = (error) => report({error: String(error?.stack ?? error)});
globalThis.addEventListener('unhandledrejection', (event) => failed(event.reason));
import('/module').catch(failed);
</script>"""


def find_chromium() -> str | None:
    """Return the program, or None if there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def find_firefox() -> str | None:
    """Return the program, or None if there is none."""
    return shutil.which("firefox-esr") or shutil.which("firefox")


def run_module(module: Path, folders: Mapping[str, Path]) -> Any:
    """Run a module in a new Chromium and return what it reports; see `run_in_tabs`."""
    (report,) = run_in_tabs(1, module, folders)
    return report


def run_in_tabs(
    tabs: int, module: Path, folders: Mapping[str, Path], *, firefox: bool = False
) -> list[Any]:
    """Run a module in each tab of a new browser at the same time, and return what they report.

    Args:
        tabs: Number of tabs.
        module: File of the module.
        folders: Folders and files that are served, by the first part of their URL.
        firefox: Whether the browser is Firefox.

    Raises:
        RuntimeError: The module failed, or did not report in time.
    """
    reports: SimpleQueue[Any] = SimpleQueue()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        running(partial(_Handler, {"module": module, **folders}, reports)) as url,
        # Chromium without a window takes one address, so the first tab opens the others.
        _running(
            _firefox(profile) if firefox else _chromium(profile), f"{url}/?others={tabs - 1}"
        ) as browser,
    ):
        reported = [browser.next_report(reports) for _ in range(tabs)]
    for report in reported:
        if isinstance(report, dict) and "error" in report:
            raise RuntimeError(report["error"])
    return reported


def _chromium(profile: str) -> list[str]:
    program = find_chromium()
    assert program is not None, NOT_INSTALLED
    return [program, *FLAGS, f"--user-data-dir={profile}"]


def _firefox(profile: str) -> list[str]:
    program = find_firefox()
    assert program is not None, "Firefox is not installed: apt-get install firefox-esr"
    lines = [f'user_pref("{name}", true);\n' for name in PREFERENCES]
    Path(profile, "user.js").write_text("".join(lines), encoding="utf-8")
    return [program, "--headless", "--no-remote", "--profile", profile]


@dataclass(frozen=True)
class _Browser:
    """A running browser, and the file of what it writes."""

    process: subprocess.Popen[bytes]
    log: Path

    def next_report(self, reports: SimpleQueue[Any]) -> Any:
        """Wait for the report of a tab.

        Raises:
            RuntimeError: The browser has ended, or none came in time.
        """
        end = time.monotonic() + HANGS
        while time.monotonic() < end and self.process.poll() is None:
            with suppress(Empty):
                return reports.get(timeout=1)
        code = self.process.poll()
        fault = f"no report within {HANGS} s" if code is None else f"the browser ended with {code}"
        raise RuntimeError(f"{fault}: {self.log.read_text(encoding='utf-8')[-2000:]}")


@contextmanager
def _running(command: Sequence[str], url: str) -> Iterator[_Browser]:
    """Run a browser for the length of a block."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "stderr.txt")
        with log.open("w") as errors:
            process = subprocess.Popen([*command, url], stdout=subprocess.DEVNULL, stderr=errors)
            try:
                yield _Browser(process, log)
            finally:
                process.terminate()
                process.wait()


class _Handler(SimpleHTTPRequestHandler):
    """Serves the page, the folders, and takes reports.

    Args:
        folders: What is served, by the first part of its URL.
        reports: Where reports go.
        rest: The arguments of the base class.
    """

    def __init__(
        self, folders: Mapping[str, Path], reports: SimpleQueue[Any], *rest: Any, **names: Any
    ) -> None:
        self._folders, self._reports = folders, reports
        super().__init__(*rest, **names)

    def do_GET(self) -> None:
        if self.path.split("?")[0] != "/":
            super().do_GET()
            return
        body = PAGE.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._reports.put(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def translate_path(self, path: str) -> str:
        first, _, rest = path.split("?")[0].lstrip("/").partition("/")
        if first not in self._folders or ".." in rest.split("/"):
            return "/nonexistent"
        return str(self._folders[first] / rest if rest else self._folders[first])

    def guess_type(self, path: Any) -> str:
        """Return JavaScript for files without a type, which are modules under a short name."""
        media_type = super().guess_type(path)
        return "text/javascript" if media_type == "application/octet-stream" else media_type

    def log_message(self, *words: Any) -> None:
        pass
