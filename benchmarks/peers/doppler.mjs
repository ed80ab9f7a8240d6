// Run a package with DOPPLER on Dawn, and time it.
//
//     node doppler.mjs FOLDER PACKAGE
//
// FOLDER   has node_modules with webgpu and doppler-gpu
// PACKAGE  a package's folder
//
// DOPPLER writes to stdout as well, so every line of ours begins with "RESULT ". The first says that
// the package is loaded: {adapter, seconds}. Each line that this reads is a request {prompt, tokens}
// with a list of ids and the number of new ones; the answer is {ids, seconds, error}.
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [folder, path] = process.argv.slice(2);
const module = (file) => import(pathToFileURL(resolve(folder, 'node_modules', file)).href);
const answer = (value) => console.log(`RESULT ${JSON.stringify(value)}`);
const seconds = () => performance.now() / 1000;

const { create, globals } = await module('webgpu/index.js');
Object.assign(globalThis, globals);
// Without this, Dawn offers no shader-f16 on NVIDIA, and DOPPLER computes embeddings on the CPU.
const features = 'enable-dawn-features=vulkan_enable_f16_on_nvidia';
const gpu = create(['backend=vulkan', features]);
Object.defineProperty(globalThis, 'navigator', { value: { gpu }, configurable: true });
const { load } = await module('doppler-gpu/src/index.js');

const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' });
const started = seconds();
const model = await load({ url: pathToFileURL(path).href });
const { description, vendor } = adapter?.info ?? {};
answer({ adapter: description || vendor || 'unknown', seconds: seconds() - started });

const greedy = { temperature: 0, topK: 1, repetitionPenalty: 1, useChatTemplate: false };

async function generate({ prompt, tokens }) {
  await model.resetGenerationState(); // otherwise a generation continues the one before it
  const start = seconds();
  const options = { ...greedy, inputIds: prompt, maxTokens: tokens };
  const { tokenIds } = await model.generateWithEvidence('', options);
  return { ids: Array.from(tokenIds), seconds: seconds() - start, error: null };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  answer(await generate(JSON.parse(line)).catch((error) => ({ error: String(error?.stack ?? error) })));
}
process.exit(0); // DOPPLER keeps timers
