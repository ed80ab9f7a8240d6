// Compile shaders with Tint, Dawn's compiler, and print those that it refuses.
//
//     node compile.mjs FOLDER SHADERS
//
// FOLDER   the folder that .ci/dawn set up; the driver that the environment names must be in it too
// SHADERS  JSON file, a list of {label, source, entry, constants: {name: number}, bindings: [type]},
//          where the types are WebGPU's buffer binding types in the order of the binding numbers
//
// Prints one JSON object: {adapter, compiled, refused: [{label, messages}]}.
import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, file] = process.argv.slice(2);
const dawn = resolve(folder, 'node_modules/webgpu/index.js');
const { create, globals } = await import(pathToFileURL(dawn).href);
Object.assign(globalThis, globals);

const gpu = create(['backend=vulkan']);
const adapter = await gpu.requestAdapter();
if (!adapter) {
  console.error('Dawn accepts no adapter here');
  process.exit(1);
}
const limits = {};
for (const name in adapter.limits) limits[name] = adapter.limits[name];
const device = await adapter.requestDevice({
  requiredFeatures: ['shader-f16', 'subgroups'].filter((name) => adapter.features.has(name)),
  requiredLimits: limits,
});

const modules = new Map(); // keyed by source, because many pipelines differ only in constants

async function moduleOf(source, label) {
  const known = modules.get(source);
  if (known) return known;
  const module = device.createShaderModule({ label, code: source });
  const { messages } = await module.getCompilationInfo();
  const errors = messages
    .filter((message) => message.type === 'error')
    .map((message) => `line ${message.lineNum}: ${message.message}`);
  const made = { module, errors };
  modules.set(source, made);
  return made;
}

async function refusalsOf({ label, source, entry, constants, bindings }) {
  const { module, errors } = await moduleOf(source, label);
  if (errors.length) return errors;
  device.pushErrorScope('validation');
  const entries = bindings.map((type, binding) => ({
    binding,
    visibility: GPUShaderStage.COMPUTE,
    buffer: { type },
  }));
  const group = device.createBindGroupLayout({ label, entries });
  device.createComputePipeline({
    label,
    layout: device.createPipelineLayout({ label, bindGroupLayouts: [group] }),
    compute: { module, entryPoint: entry, constants },
  });
  const error = await device.popErrorScope();
  return error ? [error.message] : [];
}

const shaders = JSON.parse(await readFile(file, 'utf8'));
const refused = [];
device.pushErrorScope('validation'); // swallow errors of modules: their messages are read anyway
for (const shader of shaders) {
  const messages = await refusalsOf(shader);
  if (messages.length) refused.push({ label: shader.label, messages });
}
const { vendor, description } = adapter.info;
console.log(JSON.stringify({ adapter: `${vendor}: ${description}`, compiled: shaders.length, refused }));
process.exit(0); // a live device would keep the process running
