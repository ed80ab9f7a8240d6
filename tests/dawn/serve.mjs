// Run WebGPU calls on Dawn: read lines of JSON on stdin, and answer each with one on stdout.
//
//     node serve.mjs FOLDER
//
// FOLDER is what .ci/dawn has set up. The first line that this prints describes the adapter: {name,
// features, limits}. The first line that it reads says what to open: {features, limits}. Every
// further line is a list of calls, see player.mjs; the answer is what `play` returns.
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { Player, describe } from './player.mjs';

const dawn = resolve(process.argv[2], 'node_modules/webgpu/index.js');
const { create, globals } = await import(pathToFileURL(dawn).href);
Object.assign(globalThis, globals);

const gpu = create(['backend=vulkan']);
const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const adapter = await gpu.requestAdapter();
if (!adapter) throw new Error('Dawn accepts no adapter here');
answer(describe(adapter));

let player = null;
for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const message = JSON.parse(line);
  try {
    if (player) {
      answer(await player.play(message));
    } else {
      player = new Player(await adapter.requestDevice(message));
      answer({ read: [], error: null });
    }
  } catch (error) {
    answer({ read: [], error: String(error?.message ?? error) });
  }
}
process.exit(0); // a live device would keep the process running
