import { RdrrError } from '../errors.js';
import { BLOCKS, type BlockType } from './blocks.js';
import { f16, toBf16, toF16 } from './halves.js';
import type { Tensor } from './manifest.js';

/** Return the values of a tensor in its logical shape, row-major. */
export function decodeTensor(bytes: Uint8Array, tensor: Tensor, name: string): Float32Array {
  const { shape, layout } = tensor;
  const [rows, columns] = storedShape(tensor);
  const values = decodeRows(bytes, rows, columns, tensor.dtype.toUpperCase(), name);
  if (layout !== 'column' || shape.length !== 2) return values;
  const logical = new Float32Array(values.length);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) logical[column * rows + row] = values[row * columns + column]!;
  }
  return logical;
}

/** Return the rows of a tensor as it is stored, and their values without padding. */
function storedShape({ shape, layout }: Tensor): [rows: number, columns: number] {
  const count = shape.reduce((product, size) => product * size, 1);
  if (layout === 'flat') return [1, count];
  if (layout === 'column' && shape.length === 2) return [shape[1]!, shape[0]!];
  const columns = shape.at(-1) ?? 1;
  return [count / columns, columns];
}

function decodeRows(bytes: Uint8Array, rows: number, columns: number, dtype: string, name: string): Float32Array {
  const block = BLOCKS[dtype];
  if (block) return decodeBlocks(bytes, rows, columns, block);
  const own = bytes.slice().buffer; // aligned
  if (dtype === 'F32') return new Float32Array(own);
  if (dtype === 'F16') return Float32Array.from(new Uint16Array(own), f16);
  if (dtype === 'BF16') return new Float32Array(Uint32Array.from(new Uint16Array(own), (word) => word << 16).buffer);
  throw new RdrrError('format', `${name}: the browser cannot decode ${dtype}; convert the model to another type`);
}

/** Decode rows, each of which ends with a block that may be padded. */
function decodeBlocks(bytes: Uint8Array, rows: number, columns: number, { bytes: size, values, decode }: BlockType): Float32Array {
  const blocks = Math.ceil(columns / values);
  const row = new Float32Array(blocks * values);
  const out = new Float32Array(rows * columns);
  for (let index = 0; index < rows; index += 1) {
    for (let block = 0; block < blocks; block += 1) {
      const at = (index * blocks + block) * size;
      decode(bytes.subarray(at, at + size), row.subarray(block * values, (block + 1) * values));
    }
    out.set(row.subarray(0, columns), index * columns);
  }
  return out;
}

/** Return values in a type of a program: F32, F16 or BF16, rounded to nearest, ties to even. */
export function encode(values: Float32Array, dtype: string, name: string): Uint8Array {
  if (dtype === 'F32') return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const words = dtype === 'F16' ? Uint16Array.from(values, toF16) : Uint16Array.from(bits, toBf16);
  const overflows = dtype === 'F16' && words.some((word, index) => (word & 0x7fff) === 0x7c00 && Number.isFinite(values[index]));
  if (overflows) throw new RdrrError('format', `${name}: the tensor has values that are too large for F16`);
  return new Uint8Array(words.buffer);
}

/** Return rows of `width` elements as rows of `stride`: what is missing is zero, what is more is left out. */
export function restrided<Rows extends Float32Array | Uint8Array>(rows: Rows, width: number, stride: number): Rows {
  if (width === stride) return rows;
  const count = rows.length / width;
  const out = new (rows.constructor as new (length: number) => Rows)(count * stride);
  for (let row = 0; row < count; row += 1) out.set(rows.subarray(row * width, row * width + Math.min(width, stride)), row * stride);
  return out;
}

/** Return values with zeros up to a shape. */
export function padded(values: Float32Array, shape: readonly number[], target: readonly number[], name: string): Float32Array {
  const fits = shape.length === target.length && shape.every((size, axis) => size <= target[axis]!);
  if (!fits) throw new RdrrError('format', `${name}: expected a shape within [${target.join(', ')}], found [${shape.join(', ')}]`);
  const out = new Float32Array(target.reduce((product, size) => product * size, 1));
  const width = shape.at(-1) ?? 1;
  for (let row = 0; row * width < values.length; row += 1) {
    let [rest, at, stride] = [row, 0, target.at(-1) ?? 1];
    for (let axis = shape.length - 2; axis >= 0; axis -= 1) {
      at += (rest % shape[axis]!) * stride;
      rest = Math.floor(rest / shape[axis]!);
      stride *= target[axis]!;
    }
    out.set(values.subarray(row * width, (row + 1) * width), at);
  }
  return out;
}
