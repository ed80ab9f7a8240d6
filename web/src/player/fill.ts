import { tensorNamed, type Manifest } from '../load/manifest.js';
import { deliver, type Piece } from '../load/pieces.js';
import { decodeTensor, encode, padded, restrided } from '../load/values.js';
import type { Chunk, Repack, Rope, Rows, RowsPart, Vector, VectorPart, Write } from '../program/schema.js';
import { workgroupsOf, type Player } from './player.js';
import { rotationsOf } from './rotations.js';

const ALIGNMENT = 256; // of ranges that a kernel binds
const PIECE = 8 << 20; // most bytes of rows that are written at a time
const POSITIONS = 1 << 12; // of a rope table, computed at a time
const STORAGE = 0x80 | 0x8;

/** Run the load steps of a program: fill its buffers with the tensors of a package. Returns the values of tensors for the host. */
export async function fill(
  player: Player,
  manifest: Manifest,
  read: (shard: number) => Promise<Uint8Array>,
  names: readonly string[] = [],
): Promise<ReadonlyMap<string, Float32Array>> {
  const repacks = player.program.load.filter((step) => step.kind === 'repack');
  await player.prepare(repacks.flatMap(({ chunks }) => chunks.flatMap(({ writes }) => writes.map(({ kernel }) => kernel))));
  const staging = new Staging(player, repacks);
  const values = new Map<string, Float32Array>();
  const pieces: Piece[] = names.map((name) => {
    const tensor = tensorNamed(manifest, name);
    return { tensor: name, first: 0, end: tensor.size, use: (bytes) => void values.set(name, decodeTensor(bytes, tensor, name)) };
  });
  for (const step of player.program.load) {
    if (step.kind === 'constant') player.write(step.range, Uint32Array.from(step.words));
    else if (step.kind === 'rope') writeRope(player, step);
    else if (step.kind === 'vector') pieces.push(...vectorPieces(player, manifest, step));
    else if (step.kind === 'rows') pieces.push(...rowsPieces(player, manifest, step));
    else pieces.push(...repackPieces(manifest, step, staging));
  }
  try {
    // Without waiting, the browser would queue copies of all shards.
    await deliver(pieces, manifest, read, () => player.device.queue.onSubmittedWorkDone());
  } finally {
    staging.close();
  }
  return values;
}

/** Write again what a larger context makes longer: the tables of the rope. */
export function refill(player: Player): void {
  for (const step of player.program.load) if (step.kind === 'rope') writeRope(player, step);
}

function writeRope(player: Player, { range, frequencies, factor = 1 }: Rope): void {
  for (let first = 0; first < player.context; first += POSITIONS) {
    const count = Math.min(POSITIONS, player.context - first);
    player.write(range, rotationsOf(count, frequencies, (row) => first + row, factor), 8 * first * frequencies.length);
  }
}

function* vectorPieces(player: Player, manifest: Manifest, { range, parts }: Vector): Generator<Piece> {
  let offset = 0;
  for (const part of parts) {
    const tensor = tensorNamed(manifest, part.tensor);
    const at = offset;
    const use = (bytes: Uint8Array): void => {
      const values = scaled(decodeTensor(bytes, tensor, part.tensor), part);
      player.write(range, padded(values, tensor.shape, part.shape, part.tensor) as Float32Array<ArrayBuffer>, at);
    };
    yield { tensor: part.tensor, first: 0, end: tensor.size, use };
    offset += 4 * part.shape.reduce((product, size) => product * size, 1);
  }
}

function scaled(values: Float32Array, { scale }: VectorPart): Float32Array {
  return scale ? values.map((value) => (value + scale.offset) * scale.factor - scale.offset) : values;
}

function* rowsPieces(player: Player, manifest: Manifest, step: Rows): Generator<Piece> {
  const { tensor: name, rows, row_bytes, parts, decoded, first: before = 0 } = step;
  if (decoded) {
    const tensor = tensorNamed(manifest, name);
    const use = (bytes: Uint8Array): void => {
      const values = padded(decodeTensor(bytes, tensor, name), tensor.shape, [rows, decoded.columns], name);
      const encoded = encode(values, decoded.dtype, name);
      for (const part of parts) {
        const [first, last] = rowsOf(step, part);
        if (first < last) writeRows(player, step, part, first, encoded.subarray((first - before) * row_bytes, (last - before) * row_bytes));
      }
    };
    yield { tensor: name, first: 0, end: tensor.size, use };
    return;
  }
  tensorNamed(manifest, name, rows * row_bytes);
  const most = Math.max(1, Math.floor(PIECE / row_bytes));
  for (const part of parts) {
    const [begin, last] = rowsOf(step, part);
    for (let first = begin; first < last; first += most) {
      const end = Math.min(last, first + most);
      const use = (bytes: Uint8Array): void => writeRows(player, step, part, first, bytes);
      yield { tensor: name, first: (first - before) * row_bytes, end: (end - before) * row_bytes, use };
    }
  }
}

/** Return the first row of a step, and the one behind the last, that lie in a part of the matrix. */
function rowsOf({ first = 0, rows }: Rows, part: RowsPart): [number, number] {
  return [Math.max(first, part.first), Math.min(first + rows, part.first + part.rows)];
}

/** Write rows from `first` of the matrix on, each padded to the stride. */
function writeRows(player: Player, { row_bytes, stride }: Rows, part: RowsPart, first: number, bytes: Uint8Array): void {
  player.write(part.range, restrided(bytes, row_bytes, stride) as Uint8Array<ArrayBuffer>, (first - part.first) * stride);
}

function* repackPieces(manifest: Manifest, step: Repack, staging: Staging): Generator<Piece> {
  tensorNamed(manifest, step.tensor, step.rows * step.row_bytes);
  for (const chunk of step.chunks) {
    const [first, end] = [chunk.first * step.row_bytes, (chunk.first + chunk.rows) * step.row_bytes];
    yield { tensor: step.tensor, first, end, use: (bytes) => staging.repack(chunk, bytes) };
  }
}

/** The buffers from which stored rows are repacked, which all steps share: the queue keeps writes and kernels in order. */
class Staging {
  private readonly blocks: GPUBuffer;
  private readonly targets: GPUBuffer;

  constructor(private readonly player: Player, repacks: readonly Repack[]) {
    const { device } = player;
    const size = Math.max(4, ...repacks.flatMap(({ chunks, row_bytes }) => chunks.map(({ rows }) => align(rows * row_bytes))));
    const writes = Math.max(1, ...repacks.flatMap(({ chunks }) => chunks.map((chunk) => chunk.writes.length)));
    this.blocks = device.createBuffer({ label: 'blocks', size, usage: STORAGE });
    this.targets = device.createBuffer({ label: 'chunk', size: ALIGNMENT * writes, usage: STORAGE });
  }

  repack(chunk: Chunk, bytes: Uint8Array): void {
    const { queue } = this.player.device;
    const size = align(bytes.length);
    queue.writeBuffer(this.blocks, 0, restrided(bytes, bytes.length, size) as Uint8Array<ArrayBuffer>);
    this.player.submit((encoder) => {
      const pass = encoder.beginComputePass();
      for (const [index, write] of chunk.writes.entries()) {
        queue.writeBuffer(this.targets, ALIGNMENT * index, Uint32Array.from(write.target));
        this.dispatch(pass, write, index, size);
      }
      pass.end();
    });
  }

  private dispatch(pass: GPUComputePassEncoder, write: Write, index: number, size: number): void {
    const { device } = this.player;
    const { pipeline, layout, names } = this.player.pipelineOf(write.kernel);
    const resources: Record<string, GPUBufferBinding> = {
      blocks: { buffer: this.blocks, offset: 0, size },
      planes: this.player.range(write.planes),
      chunk: { buffer: this.targets, offset: ALIGNMENT * index, size: 4 * write.target.length },
    };
    const entries = names.map((name, binding) => ({ binding, resource: resources[name]! }));
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
    pass.dispatchWorkgroups(...workgroupsOf(write, 1, this.player.amount));
  }

  close(): void {
    this.blocks.destroy();
    this.targets.destroy();
  }
}

function align(bytes: number): number {
  return Math.ceil(bytes / 4) * 4;
}
