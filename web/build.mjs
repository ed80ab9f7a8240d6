// Build what browsers run.
//
//   node build.mjs           the runtime and the page, into ../api/rdrr/browser, which is committed
//   node build.mjs --check   the same, compared with what is committed
//   node build.mjs --npm     the runtime and its types, into dist
//   node build.mjs --tests   the tests for Node, into build/test
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync, mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const committed = join(here, '../api/rdrr/browser');
const options = { bundle: true, format: 'esm', target: 'es2022', absWorkingDir: here, write: false };
const bundled = ['@huggingface/jinja', '@huggingface/tokenizers'];
const { version, license } = JSON.parse(readFileSync(join(here, 'package.json'), 'utf8'));
const banner = { js: `/*! rdrr ${version}, ${license}; with ${bundled.join(' and ')}, see licenses.txt */` };
const runtime = { 'rdrr.js': 'src/index.ts', 'worker.js': 'src/worker/main.ts' };
const page = { 'page.js': 'page/page.ts', 'page.css': 'page/page.css', 'service-worker.js': 'page/service_worker.ts' };

// The files of the build, by name. The worker and the page import the runtime, so it is fetched once.
async function built(entries) {
  const files = {};
  for (const [name, entry] of Object.entries(entries)) {
    if (!existsSync(join(here, entry))) continue;
    const external = name === 'rdrr.js' ? [] : ['./rdrr.js'];
    const alias = { name: 'runtime', setup: (hooks) => hooks.onResolve({ filter: /\/index\.js$/ }, ({ importer, path }) =>
      external.length && dirname(join(dirname(importer), path)) === join(here, 'src') ? { path: './rdrr.js', external: true } : null) };
    const settings = { ...options, minify: true, legalComments: 'none', entryPoints: [entry], plugins: [alias] };
    const result = await build(name === 'rdrr.js' ? { ...settings, banner } : settings);
    files[name] = Buffer.from(result.outputFiles[0].contents);
  }
  const licenses = bundled.map((name) => `${name}\n\n${readFileSync(join(here, 'node_modules', name, 'LICENSE'), 'utf8')}`);
  files['licenses.txt'] = Buffer.from(licenses.join('\n\n'));
  return files;
}

function write(folder, files) {
  mkdirSync(folder, { recursive: true });
  for (const [name, content] of Object.entries(files)) writeFileSync(join(folder, name), content);
}

function report(files) {
  let total = 0;
  for (const [name, content] of Object.entries(files)) {
    const size = gzipSync(content, { level: 9 }).length;
    total += size;
    console.log(`${name} ${content.length} bytes, ${size} compressed by gzip`);
  }
  console.log(`together ${total} compressed by gzip`);
}

function differing(files) {
  const stale = existsSync(committed) ? readdirSync(committed).filter((name) => !(name in files)) : [];
  const changed = Object.entries(files).filter(([name, content]) => {
    const path = join(committed, name);
    return !existsSync(path) || !readFileSync(path).equals(content);
  });
  return [...stale, ...changed.map(([name]) => name)];
}

async function tests() {
  const names = readdirSync(join(here, 'test')).filter((name) => name.endsWith('.test.ts'));
  rmSync(join(here, 'build'), { recursive: true, force: true });
  const common = { ...options, write: true, outdir: 'build/test', outExtension: { '.js': '.mjs' }, sourcemap: 'inline' };
  await build({ ...common, platform: 'node', entryPoints: names.map((name) => `test/${name}`) });
  await build({ ...common, outdir: 'build', entryPoints: ['test/chromium.ts'] });
}

const [mode] = process.argv.slice(2);
if (mode === '--tests') {
  await tests();
} else if (mode === '--npm') {
  rmSync(join(here, 'dist'), { recursive: true, force: true });
  write(join(here, 'dist'), await built(runtime));
  const compiler = join(here, 'node_modules/typescript/bin/tsc');
  const done = spawnSync(process.execPath, [compiler, '-p', join(here, 'tsconfig.types.json')], { stdio: 'inherit' });
  process.exitCode = done.status ?? 1;
} else {
  const files = await built({ ...runtime, ...page });
  const html = join(here, 'page/index.html');
  if (existsSync(html)) files['index.html'] = readFileSync(html);
  report(files);
  const differ = mode === '--check' ? differing(files) : [];
  if (differ.length) {
    console.error(`api/rdrr/browser is not what web/ builds: ${differ.join(', ')}; run \`make web\` and commit it`);
    process.exitCode = 1;
  }
  if (mode !== '--check') write(committed, files);
}
