import { RdrrError } from '../errors.js';
import type { Tensor } from './manifest.js';

const WIDTHS: Record<string, number> = { F32: 4, F16: 2, BF16: 2 };

/** Return the values of a tensor in its logical shape, row-major. */
export function decodeTensor(bytes: Uint8Array, tensor: Tensor, name: string): Float32Array {
  const values = decode(bytes, tensor.dtype.toUpperCase(), name);
  const [rows, columns] = tensor.shape;
  if (tensor.layout !== 'column' || tensor.shape.length !== 2) return values;
  const logical = new Float32Array(values.length);
  for (let column = 0; column < columns!; column += 1) {
    for (let row = 0; row < rows!; row += 1) logical[row * columns! + column] = values[column * rows! + row]!;
  }
  return logical;
}

function decode(bytes: Uint8Array, dtype: string, name: string): Float32Array {
  const width = WIDTHS[dtype];
  if (!width) throw new RdrrError('format', `${name}: the browser cannot decode ${dtype}; convert the model to another type`);
  const own = bytes.slice().buffer; // aligned
  if (width === 4) return new Float32Array(own);
  const words = new Uint16Array(own);
  if (dtype === 'F16') return Float32Array.from(words, f16);
  return new Float32Array(Uint32Array.from(words, (word) => word << 16).buffer);
}

/** Return the value of a half-precision number. */
function f16(word: number): number {
  const sign = word & 0x8000 ? -1 : 1;
  const exponent = (word >> 10) & 31;
  const fraction = word & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
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

function toF16(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(Math.floor(Math.log2(size || 2 ** -24)), -14);
  const scaled = size * 2 ** (10 - exponent); // below 2,048: the fraction and its leading bit
  return sign | (((exponent + 14) << 10) + even(scaled));
}

/** Round to the nearest integer, ties to even. */
function even(value: number): number {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low;
}

function toBf16(bits: number): number {
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40;
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
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
