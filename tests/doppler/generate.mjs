// Load packages with DOPPLER on Dawn, and print the ids that it generates greedily.
//
//     node generate.mjs FOLDER REQUESTS
//
// FOLDER    what .ci/dawn has set up
// REQUESTS  JSON file, a list of {path, prompt, tokens}: a package's folder, text, number of new ids
//
// Prints one line "RESULT {json}" for each request: {path, prompt: [id], ids: [id]} or {path, error}.
import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, file] = process.argv.slice(2);
const module = (path) => import(pathToFileURL(resolve(folder, 'node_modules', path)).href);
const { create, globals } = await module('webgpu/index.js');
Object.assign(globalThis, globals);
const gpu = create(['backend=vulkan']);
Object.defineProperty(globalThis, 'navigator', { value: { gpu }, configurable: true });
const { load } = await module('doppler-gpu/src/index.js');

const greedy = { temperature: 0, topK: 1, repetitionPenalty: 1, useChatTemplate: false };

async function generate({ path, prompt, tokens }) {
  const model = await load({ url: pathToFileURL(path).href });
  const ids = model.advanced.tokenizeText(prompt);
  const { tokenIds } = await model.generateWithEvidence(prompt, { ...greedy, maxTokens: tokens });
  return { path, prompt: Array.from(ids), ids: Array.from(tokenIds) };
}

for (const request of JSON.parse(await readFile(file, 'utf8'))) {
  const found = await generate(request).catch((error) => ({
    path: request.path,
    error: String(error?.message ?? error),
  }));
  console.log(`RESULT ${JSON.stringify(found)}`);
}
process.exit(0); // DOPPLER keeps timers
