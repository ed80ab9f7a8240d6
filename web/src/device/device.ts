import { RdrrError } from '../errors.js';
import type { Needs } from '../program/schema.js';

/** Why this browser runs no model: no WebGPU at all, a page without TLS, or no adapter that it wants to use. */
export type Unsupported = 'no-webgpu' | 'insecure' | 'no-adapter';

const DEFAULT_LIMITS: Record<string, number> = { maxStorageBufferBindingSize: 128 << 20, maxBufferSize: 256 << 20 };

/** Return the WebGPU that was given, or the browser's; undefined where there is none. */
export function gpuOf(given: GPU | undefined): GPU | undefined {
  return given ?? globalThis.navigator?.gpu;
}

/** Return an adapter, or why there is none. */
export async function support(given?: GPU): Promise<{ reason: Unsupported | null; adapter: GPUAdapter | null }> {
  const gpu = gpuOf(given);
  if (!gpu) return { reason: globalThis.isSecureContext === false ? 'insecure' : 'no-webgpu', adapter: null };
  const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' });
  return { reason: adapter ? null : 'no-adapter', adapter };
}

/** Return an adapter, or throw an error that says why there is none. */
export async function openAdapter(gpu: GPU | undefined): Promise<GPUAdapter> {
  const { reason, adapter } = await support(gpu);
  if (adapter) return adapter;
  const messages: Record<string, string> = {
    'no-webgpu': 'this browser has no WebGPU; use a current Chrome, Edge or Safari, or Firefox on Windows or macOS',
    insecure: 'WebGPU needs a secure page: serve it over https, or from localhost',
    'no-adapter': 'the browser offers no WebGPU adapter; see whether its hardware acceleration is switched on',
  };
  throw new RdrrError('device', messages[reason!]!);
}

/** What a program needs of a device, and the sizes of its largest binding and buffer. */
export interface Demand {
  needs: Needs;
  binding: number;
  buffer: number;
}

/** Return what two programs on one device need together. */
export function together(one: Demand, other: Demand): Demand {
  const union = <Name>(names: readonly Name[] = [], more: readonly Name[] = []): Name[] => [...new Set([...names, ...more])];
  const limits = { ...one.needs.limits };
  for (const [name, limit] of Object.entries(other.needs.limits)) limits[name] = Math.max(limit, limits[name] ?? 0);
  return {
    needs: { features: union(one.needs.features, other.needs.features), language: union(one.needs.language, other.needs.language), limits },
    binding: Math.max(one.binding, other.binding),
    buffer: Math.max(one.buffer, other.buffer),
  };
}

/** Return the first thing that an adapter or a device lacks for a program; null if it runs there. */
export function lackOf(adapter: Pick<GPUAdapter, 'features' | 'limits'>, demand: Demand, language?: ReadonlySet<string>): string | null {
  const { features = [], language: needed = [] } = demand.needs;
  const feature = features.find((name) => !adapter.features.has(name));
  if (feature) return feature;
  const extension = needed.find((name) => language && !language.has(name));
  if (extension) return extension;
  for (const [name, least] of Object.entries(limitsOf(demand))) {
    const limit = adapter.limits[name as keyof GPUSupportedLimits];
    if (typeof limit === 'number' && limit < least) return `${name} of ${least} (it has ${limit})`;
  }
  return null;
}

/** Return the limits that a device is opened with. */
function limitsOf({ needs, binding, buffer }: Demand): Record<string, number> {
  const limits: Record<string, number> = {};
  for (const [name, least] of Object.entries(needs.limits)) limits[camelCase(name)] = least;
  limits.maxStorageBufferBindingSize = binding;
  limits.maxBufferSize = Math.max(buffer, binding);
  for (const [name, least] of Object.entries(DEFAULT_LIMITS)) if (limits[name]! <= least) delete limits[name];
  return limits;
}

/** Return WebGPU's name of a limit that programs name with dashes. */
function camelCase(name: string): string {
  return name.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase());
}

/** Return a device for a program, with the limits for what it may need later as far as the adapter has them. */
export async function openDevice(adapter: GPUAdapter, demand: Demand, later: Demand): Promise<GPUDevice> {
  const lack = lackOf(adapter, demand);
  if (lack) throw new RdrrError('device', `the adapter lacks what the program needs: ${lack}`);
  const limits = Object.entries(limitsOf(later)).map(([name, limit]) => [name, Math.min(limit, adapter.limits[name as 'maxBufferSize'] ?? limit)]);
  const described = { requiredFeatures: [...(demand.needs.features ?? [])] as GPUFeatureName[], requiredLimits: Object.fromEntries(limits) };
  return adapter.requestDevice(described).catch((error: unknown) => {
    throw new RdrrError('device', `the browser opens no device: ${String(error)}; close other pages that use the graphics card, and reload`, { cause: error });
  });
}

/** Run what makes objects of a device, and throw an error if it runs out of memory or refuses one. */
export async function checked<Value>(device: GPUDevice, what: string, work: () => Value | Promise<Value>): Promise<Value> {
  device.pushErrorScope('validation');
  device.pushErrorScope('out-of-memory');
  let value: Value;
  try {
    value = await work();
  } finally {
    const [memory, validation] = [device.popErrorScope(), device.popErrorScope()];
    if (await memory) throw new RdrrError('memory', `${what}: the device has too little memory; try a smaller context`);
    const error = await validation;
    if (error) throw new RdrrError('device', `${what}: ${error.message}`);
  }
  return value;
}
