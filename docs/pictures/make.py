"""Make the pictures of README and docs again: `python docs/pictures/make.py`.

`terminal.svg` shows the commands of the README as they ran in a terminal of 92 columns, and
`report.png` the page that `rdrr report --html` writes, photographed by Chromium if it is installed.
The drawings (`house.svg`, `tensor.svg`, `token.svg`) are kept by hand, and so is `page.png`: the
page of a server whose answers are scripted (`tests/support/page_server.py`).
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).resolve().parent
EXAMPLES = PICTURES.parents[1] / "examples"
COLUMNS = 92
SESSION = (
    "rdrr convert examples/small-llama small-llama-rdrr",
    "rdrr validate small-llama-rdrr --deep",
    'rdrr generate small-llama-rdrr --prompt "And it came to pass" --max-tokens 48'
    " --temperature 0.7 --seed 3",
)
REPORT = "rdrr report small-llama-rdrr --html report.html"


def main() -> None:
    """Run the session in a temporary folder and write the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(EXAMPLES)
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        for command in SESSION:
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(last_screen(run_in_terminal(command, folder))))
            console.print()
        svg = console.export_svg(title="rdrr")
        (PICTURES / "terminal.svg").write_text(without_remote_fonts(svg))
        run_in_terminal(REPORT, folder)
        photograph(Path(folder) / "report.html", PICTURES / "report.png")


def run_in_terminal(command: str, folder: str) -> str:
    """Return what a command writes to a pseudo-terminal."""
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, shell=True, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    written = b""
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # Linux reports the end of a pseudo-terminal as an error
            break
        if not piece:
            break
        written += piece
    os.close(master)
    if process.wait():
        raise SystemExit(f"{command} failed:\n{written.decode(errors='replace')}")
    return written.decode()


def last_screen(written: str) -> str:
    """Return the lines that stay on the screen, for the moves that progress bars make."""
    lines, row = [""], 0
    for token in re.findall(
        r"\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|\r|\n|(?:(?!\x1b\[(?:\?25|1A|2K))[^\r\n])+", written
    ):
        if token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif token == "\x1b[1A":
            row -= 1
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token != "\r" and not token.startswith("\x1b[?25"):
            lines[row] += token
    return "\n".join(lines).strip("\n")


def without_remote_fonts(svg: str) -> str:
    """Drop the rules that would fetch a font from elsewhere when the picture is looked at."""
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def photograph(page: Path, picture: Path) -> None:
    """Write a picture of the top of a page, or say why not."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"{picture.name} is left as it is: no Chromium found")
        return
    flags = ("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,1000")
    subprocess.run([browser, *flags, f"--screenshot={picture}", page.as_uri()], check=True)


if __name__ == "__main__":
    main()
