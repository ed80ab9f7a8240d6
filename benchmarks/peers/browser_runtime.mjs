// Run a package with the browser runtime on Dawn, and time it.
//
//     node browser_runtime.mjs FOLDER PACKAGE
//
// FOLDER   has node_modules with webgpu
// PACKAGE  a package's folder, in which `rdrr web` wrote the folder web
//
// The lines that this reads and writes are those of doppler.mjs.
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';
import { fileURLToPath, pathToFileURL } from 'node:url';

const [folder, path] = process.argv.slice(2);
const answer = (value) => console.log(`RESULT ${JSON.stringify(value)}`);
const seconds = () => performance.now() / 1000;

const { create, globals } = await import(pathToFileURL(resolve(folder, 'node_modules/webgpu/index.js')).href);
Object.assign(globalThis, globals);
// Without this, Dawn offers no shader-f16 on NVIDIA.
const gpu = create(['backend=vulkan', 'enable-dawn-features=vulkan_enable_f16_on_nvidia']);
const { Engine } = await import(new URL('../../api/rdrr/browser/rdrr.js', import.meta.url).href);

// Node's fetch reads no files.
async function fetch(url) {
  const file = fileURLToPath(url);
  await stat(file);
  return new Response(Readable.toWeb(createReadStream(file, { highWaterMark: 1 << 20 })));
}

const started = seconds();
const index = pathToFileURL(resolve(path, 'web/index.json')).href;
const engine = await Engine.load(index, { gpu, fetch });
answer({ adapter: engine.model.adapter, seconds: seconds() - started });

async function generate({ prompt, tokens }) {
  const options = { temperature: 0 };
  await engine.completions.create({ prompt: [prompt[0] ? 0 : 1], max_tokens: 1, ...options }); // so that nothing of the prompt is cached
  const start = seconds();
  const { choices } = await engine.completions.create({ prompt, max_tokens: tokens, ...options });
  return { ids: choices[0].token_ids, seconds: seconds() - start, error: null };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  answer(await generate(JSON.parse(line)).catch((error) => ({ error: String(error?.stack ?? error) })));
}
await engine.close();
process.exit(0);
