import { checked } from '../device/device.js';
import { partOf, RdrrError } from '../errors.js';
import { amountsAt, contextOf, type Amount } from '../program/program.js';
import type { Kernel, Phase, Program, Work } from '../program/schema.js';

const STORAGE = 0x80 | 0x8 | 0x4; // GPUBufferUsage.STORAGE | COPY_DST | COPY_SRC
const READBACK = 0x1 | 0x8; // MAP_READ | COPY_DST
const MAP_READ = 1;
const COMPUTE = 4; // GPUShaderStage.COMPUTE
const LARGEST_DIMENSION = 65535;

/** A pipeline, and the layout of what it binds. */
export interface Pipeline {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
  names: readonly string[];
}

/** A range of a buffer, as WebGPU binds it. */
export interface Bound {
  buffer: GPUBuffer;
  offset: number;
  size: number;
}

/** Words of a range to read, which goes on at its beginning behind its end. */
export interface Words {
  range: number;
  first: number;
  count: number;
}

/** The buffers and pipelines of a program on a device. It runs phases, and knows no model. */
export class Player {
  /** Return a player whose buffers are zeros; `fill` loads them. */
  static async open(device: GPUDevice, program: Program, context: number): Promise<Player> {
    return checked(device, 'buffers', () => new Player(device, program, contextOf(program.contexts, context)));
  }

  /** Return a player for a larger context, which takes over all buffers whose size does not change: weights need no load. */
  static async grown(player: Player, context: number): Promise<Player> {
    const { device, program } = player;
    const grown = await checked(device, 'buffers', () => new Player(device, program, contextOf(program.contexts, context), player.buffers));
    for (const buffer of player.buffers) if (!grown.buffers.includes(buffer)) buffer.destroy();
    return grown;
  }

  readonly amount: (amount: Amount) => number;
  readonly ranges: readonly Bound[];
  /** Bytes of all buffers. */
  readonly memory: number;
  private readonly pipelines: Pipeline[] = [];
  private readonly compiler: Compiler;
  private readonly buffers: readonly GPUBuffer[];
  private readonly groups = new Map<Phase, GPUBindGroup>();

  private constructor(
    readonly device: GPUDevice,
    readonly program: Program,
    readonly context: number,
    before: readonly GPUBuffer[] = [],
  ) {
    const amount = amountsAt(program.contexts, context);
    this.amount = amount;
    this.compiler = new Compiler(device, program, amount);
    this.buffers = program.buffers.map(({ size, role }, index) => {
      const buffer = before[index];
      if (buffer?.size === amount(size)) return buffer;
      return device.createBuffer({ label: `${role}.${index}`, size: amount(size), usage: STORAGE });
    });
    this.memory = this.buffers.reduce((sum, { size }) => sum + size, 0);
    this.ranges = program.ranges.map(({ buffer, offset = 0, size }) =>
      ({ buffer: partOf(this.buffers, buffer, 'buffer'), offset: amount(offset), size: amount(size) }));
  }

  /** Return the buffers of some roles, such as the key-value cache. */
  buffersOf(...roles: string[]): GPUBuffer[] {
    return this.buffers.filter((_, index) => roles.includes(this.program.buffers[index]!.role));
  }

  range(index: number): Bound {
    return partOf(this.ranges, index, 'range');
  }

  /** Write words or bytes into a range; their number is a multiple of 4 bytes. */
  write(index: number, data: ArrayBufferView<ArrayBuffer>, offset = 0): void {
    const range = this.range(index);
    if (offset + data.byteLength > range.size) throw new RdrrError('format', `the program's range ${index} is too small`);
    this.device.queue.writeBuffer(range.buffer, range.offset + offset, data);
  }

  clear(index: number): void {
    const { buffer, offset, size } = this.range(index);
    this.submit((encoder) => encoder.clearBuffer(buffer, offset, size));
  }

  /** Submit commands. */
  submit(record: (encoder: GPUCommandEncoder) => void): void {
    const encoder = this.device.createCommandEncoder();
    record(encoder);
    this.device.queue.submit([encoder.finish()]);
  }

  /** Compile kernels that are not compiled yet; all of the program by default. */
  async prepare(kernels: Iterable<number> = this.program.kernels.keys()): Promise<void> {
    const compile = async (kernel: number): Promise<void> => {
      this.pipelines[kernel] = await this.compiler.pipeline(kernel);
    };
    await Promise.all([...new Set(kernels)].filter((kernel) => !this.pipelines[kernel]).map(compile));
  }

  /** Run phases for a number of token rows, several times, and read what they leave, in one submission. */
  run(phases: readonly Phase[], rows: number, { times = 1, reads = [] }: { times?: number; reads?: readonly Words[] } = {}): Promise<Uint32Array[]> {
    const running = phases.filter(({ work }) => runsFor(work, rows));
    // Calls of WebGPU take longer than short phases on a GPU, so nothing is computed or set twice.
    const launches = running.map((phase) => ({
      pipeline: this.pipelineOf(phase.kernel).pipeline,
      group: this.groupOf(phase),
      workgroups: workgroupsOf(phase.work, rows, this.amount),
    }));
    return this.read(reads, (encoder) => {
      const pass = encoder.beginComputePass();
      let current: GPUComputePipeline | undefined;
      for (let time = 0; time < times; time += 1) {
        for (const { pipeline, group, workgroups } of launches) {
          if (pipeline !== current) pass.setPipeline((current = pipeline));
          pass.setBindGroup(0, group);
          pass.dispatchWorkgroups(...workgroups);
        }
      }
      pass.end();
    });
  }

  pipelineOf(kernel: number): Pipeline {
    return partOf(this.pipelines, kernel, 'prepared kernel');
  }

  /** Read words of ranges, after commands that are recorded before. */
  async read(reads: readonly Words[], record?: (encoder: GPUCommandEncoder) => void): Promise<Uint32Array[]> {
    const content = await this.readback(reads.flatMap((words) => this.partsOf(words)), record);
    let at = 0;
    return reads.map(({ count }) => new Uint32Array(content.slice(at, (at += 4 * count))));
  }

  private partsOf({ range, first, count }: Words): Bound[] {
    const { buffer, offset, size } = this.range(range);
    const words = size / 4;
    const parts: Bound[] = [];
    for (let done = 0; done < count; ) {
      const at = (first + done) % words;
      const some = Math.min(count - done, words - at);
      parts.push({ buffer, offset: offset + 4 * at, size: 4 * some });
      done += some;
    }
    return parts;
  }

  /** Read whole buffers, one after the other. */
  async contents(buffers: readonly GPUBuffer[]): Promise<ArrayBuffer[]> {
    const all: ArrayBuffer[] = [];
    for (const buffer of buffers) all.push(await this.readback([{ buffer, offset: 0, size: buffer.size }]));
    return all;
  }

  /** Submit commands and the copies of what to read together: each submission takes as long as many phases. */
  private async readback(parts: readonly Bound[], record?: (encoder: GPUCommandEncoder) => void): Promise<ArrayBuffer> {
    const size = parts.reduce((sum, part) => sum + part.size, 0);
    const out = size ? this.device.createBuffer({ label: 'readback', size, usage: READBACK }) : null;
    this.submit((encoder) => {
      record?.(encoder);
      let at = 0;
      for (const part of parts) {
        encoder.copyBufferToBuffer(part.buffer, part.offset, out!, at, part.size);
        at += part.size;
      }
    });
    if (!out) return new ArrayBuffer(0);
    try {
      await out.mapAsync(MAP_READ);
      return out.getMappedRange().slice(0);
    } finally {
      out.destroy();
    }
  }

  /** Free the memory on the device. */
  close(): void {
    for (const buffer of this.buffers) buffer.destroy();
  }

  private groupOf(phase: Phase): GPUBindGroup {
    return once(this.groups, phase, () => {
      const entries = phase.ranges.map((range, binding) => ({ binding, resource: this.range(range) }));
      return this.device.createBindGroup({ layout: this.pipelineOf(phase.kernel).layout, entries });
    });
  }
}

/** Return the value of a key, which is made when it is first asked for. */
function once<Key, Value>(values: Map<Key, Value>, key: Key, make: () => Value): Value {
  let value = values.get(key);
  if (value === undefined) values.set(key, (value = make()));
  return value;
}

/** Whether a phase has an effect in a pass of this number of rows. */
function runsFor({ above = 0, up_to }: Work = {}, rows: number): boolean {
  return rows > above && rows <= (up_to ?? Infinity);
}

/** Return the workgroups of a phase in three dimensions. */
export function workgroupsOf(
  { items = 1, per, most_rows }: Pick<Work, 'items' | 'per' | 'most_rows'> = {},
  rows: number,
  amount: (amount: Amount) => number,
): [number, number, number] {
  const count = amount(items);
  const y = Math.ceil(count / LARGEST_DIMENSION);
  return [Math.ceil(count / y), y, per ? Math.ceil(Math.min(rows, most_rows ?? Infinity) / per) : 1];
}

/** Compiles kernels of a program; those that share a shader or bind alike share its module or layout. */
class Compiler {
  private readonly modules = new Map<string, GPUShaderModule>();
  private readonly layouts = new Map<string, GPUBindGroupLayout>();
  private readonly compiled = new Map<number, Promise<Pipeline>>();

  constructor(
    private readonly device: GPUDevice,
    private readonly program: Program,
    private readonly amount: (amount: Amount) => number,
  ) {}

  pipeline(index: number): Promise<Pipeline> {
    return once(this.compiled, index, () => this.compile(index));
  }

  private async compile(index: number): Promise<Pipeline> {
    const kernel = partOf(this.program.kernels, index, 'kernel');
    const layout = this.layout(kernel);
    const values = Object.entries(kernel.constants).map(([name, value]) => [name, this.amount(value)]);
    try {
      const pipeline = await this.device.createComputePipelineAsync({
        label: kernel.label,
        layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module: this.module(kernel.shader), entryPoint: kernel.entry, constants: Object.fromEntries(values) },
      });
      return { pipeline, layout, names: kernel.bindings.map(({ name }) => name) };
    } catch (error) {
      if (error instanceof RdrrError) throw error;
      throw new RdrrError('device', `the browser does not compile ${kernel.label}: ${String(error)}`, { cause: error });
    }
  }

  private module(hash: string): GPUShaderModule {
    const code = partOf(this.program.shaders, hash, 'shader');
    return once(this.modules, hash, () => this.device.createShaderModule({ label: hash, code }));
  }

  private layout({ bindings }: Kernel): GPUBindGroupLayout {
    const key = bindings.map(({ access }) => access).join();
    const entries = bindings.map(({ access: type }, binding) => ({ binding, visibility: COMPUTE, buffer: { type } }));
    return once(this.layouts, key, () => this.device.createBindGroupLayout({ entries }));
  }
}
