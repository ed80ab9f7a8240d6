// Blocks of quantized values, decoded as Python does, for tensors that no kernel reads as they are stored.
import { f16 } from './halves.js';

/** A block type: bytes and values of a block, and what decodes one. */
export interface BlockType {
  bytes: number;
  values: number;
  decode: (block: Uint8Array, out: Float32Array) => void;
}

const { fround } = Math;
const half = (block: Uint8Array, at: number): number => f16(block[at]! | (block[at + 1]! << 8));
const signed = (byte: number): number => (byte << 24) >> 24;

/** Return scale and minimum of a group of Q4_K, each of 6 bits. */
function scaleOf(block: Uint8Array, group: number): [number, number] {
  const [low, middle, high] = [block[4 + (group % 4)]!, block[8 + (group % 4)]!, block[12 + (group % 4)]!];
  if (group < 4) return [low & 63, middle & 63];
  return [(high & 15) | ((low >> 6) << 4), (high >> 4) | ((middle >> 6) << 4)];
}

function decodeQ4K(block: Uint8Array, out: Float32Array): void {
  const [step, minimum] = [half(block, 0), half(block, 2)];
  for (let group = 0; group < 8; group += 1) {
    const [scale, offset] = scaleOf(block, group);
    const [factor, least] = [fround(step * scale), fround(minimum * offset)];
    for (let index = 0; index < 32; index += 1) {
      const byte = block[16 + 32 * (group >> 1) + index]!;
      out[32 * group + index] = fround((group & 1 ? byte >> 4 : byte & 15) * factor) - least;
    }
  }
}

function decodeQ6K(block: Uint8Array, out: Float32Array): void {
  const step = half(block, 208);
  for (let index = 0; index < 256; index += 1) {
    const [part, run, lane] = [index >> 7, (index >> 5) & 3, index & 31];
    const low = block[64 * part + 32 * (run & 1) + lane]! >> (run < 2 ? 0 : 4);
    const high = block[128 + 32 * part + lane]! >> (2 * run);
    const code = (low & 15) | ((high & 3) << 4);
    out[index] = (code - 32) * fround(step * signed(block[192 + (index >> 4)]!));
  }
}

function decodeQ80(block: Uint8Array, out: Float32Array): void {
  const step = half(block, 0);
  for (let index = 0; index < 32; index += 1) out[index] = signed(block[2 + index]!) * step;
}

const Q4_K: BlockType = { bytes: 144, values: 256, decode: decodeQ4K };

/** The block types that are decoded, by their names in manifests. */
export const BLOCKS: Readonly<Record<string, BlockType>> = {
  Q4_K,
  Q4_K_M: Q4_K,
  Q6_K: { bytes: 210, values: 256, decode: decodeQ6K },
  Q8_0: { bytes: 34, values: 32, decode: decodeQ80 },
};
