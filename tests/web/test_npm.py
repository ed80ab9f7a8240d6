"""The npm package, as others use it: installed in an empty project, with its types."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from support.commands import ROOT

WEB = ROOT / "web"
USE = """
import { cache, connect, Engine, RdrrError, support, type Progress } from 'rdrr';

async function main(): Promise<string> {
  const { reason } = await support();
  if (reason) return reason;
  const onProgress = ({ loaded, total }: Progress): number => loaded / total;
  const engine = await Engine.load('index.json', { onProgress });
  const request = { prompt: 'Once', max_tokens: 4 } as const;
  const { choices } = await engine.completions.create(request);
  const messages = [{ role: 'user', content: 'Hello' }];
  for await (const chunk of await engine.chat.completions.create({ messages, stream: true })) {
    const text: string | undefined = chunk.choices[0]?.delta.content;
    if (text) break;
  }
  const remote = await connect(new Worker('worker.js'), 'index.json');
  await remote.chat.completions.create({ messages }, { signal: new AbortController().signal });
  const { quota }: { quota: number } = await cache.quota();
  return choices[0]!.text + quota;
}
main().catch((error: unknown) => error instanceof RdrrError && error.code);
"""

pytestmark = pytest.mark.skipif("RDRR_TEST_WEB" not in os.environ, reason="run by make test-web")


def run(*words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """An empty project with the package."""
    folder = tmp_path_factory.mktemp("project")
    packed = json.loads(run("npm", "pack", "--json", f"--pack-destination={folder}", folder=WEB))
    (archive,) = packed if isinstance(packed, list) else packed.values()
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    run("npm", "install", "--offline", "--no-audit", f"./{archive['filename']}", folder=folder)
    return folder


def test_the_types_serve_a_strict_project(project):
    (project / "use.ts").write_text(USE, encoding="utf-8")
    compiler = WEB / "node_modules" / "typescript" / "bin" / "tsc"
    options = ("--strict", "--noEmit", "--types", "", "--target", "es2022", "--lib", "es2023,dom")
    for module in (("esnext", "bundler"), ("nodenext", "nodenext")):
        kind = ("--module", module[0], "--moduleResolution", module[1])
        run("node", compiler, *options, *kind, "use.ts", folder=project)


def test_it_has_the_same_runtime_as_the_page_and_nothing_else(project):
    installed = project / "node_modules" / "rdrr"
    committed = (ROOT / "api" / "rdrr" / "browser" / "rdrr.js").read_bytes()
    assert (installed / "dist" / "rdrr.js").read_bytes() == committed
    assert not (project / "node_modules" / "@huggingface").exists()
    names = {path.name for path in (installed / "dist").iterdir()}
    assert names == {"rdrr.js", "worker.js", "licenses.txt", "types"}


def test_node_imports_it(project):
    script = "const { support } = await import('rdrr'); console.log((await support()).reason)"
    out = run("node", "--input-type=module", "--eval", script, folder=project)
    assert out.strip() == "no-webgpu"
