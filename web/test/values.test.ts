import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { deliver, type Piece } from '../src/load/pieces.js';
import { readManifest } from '../src/load/manifest.js';
import { decodeTensor, encode, padded } from '../src/load/values.js';

const tensor = (dtype: string, shape: number[], layout = 'row') => ({ dtype, shape, layout, size: 0, spans: [] });

test('every F16 value survives being decoded and encoded', () => {
  const words = Uint16Array.from({ length: 1 << 16 }, (_, word) => word).filter((word) => (word & 0x7c00) !== 0x7c00);
  const values = decodeTensor(new Uint8Array(words.buffer), tensor('F16', [words.length]), 'x');
  assert.deepEqual(new Uint16Array(encode(values, 'F16', 'x').buffer), words);
});

test('values between two F16 or BF16 values are rounded to even', () => {
  const between = Float32Array.from([1 + 2 ** -11, 1 + 3 * 2 ** -11, 2 ** -25, 3 * 2 ** -25, 2047.75]);
  const words = new Uint16Array(encode(between, 'F16', 'x').buffer);
  assert.deepEqual([...words], [0x3c00, 0x3c02, 0, 2, 0x6800]);
  const wide = Float32Array.from([1 + 2 ** -8, 1 + 3 * 2 ** -8]);
  assert.deepEqual([...new Uint16Array(encode(wide, 'BF16', 'x').buffer)], [0x3f80, 0x3f82]);
});

test('values too large for F16 are refused, infinity is not', () => {
  assert.throws(() => encode(Float32Array.of(65520), 'F16', 'x'), /too large/);
  assert.equal(new Uint16Array(encode(Float32Array.of(65519, Infinity), 'F16', 'x').buffer)[1], 0x7c00);
});

test('a column-major tensor is decoded into its logical shape', () => {
  const stored = Float32Array.of(1, 4, 2, 5, 3, 6);
  const values = decodeTensor(new Uint8Array(stored.buffer), tensor('F32', [2, 3], 'column'), 'x');
  assert.deepEqual([...values], [1, 2, 3, 4, 5, 6]);
});

test('types that the browser does not decode are refused by name', () => {
  assert.throws(() => decodeTensor(new Uint8Array(2), tensor('Q5_K', [1]), 'x'), /x: the browser cannot decode Q5_K/);
});

// tests/web/test_generated.py compares the file with Python's codecs.
interface Decoded {
  dtype: string;
  layout: string;
  shape: number[];
  stored: string;
  values: string;
}

for (const { dtype, layout, shape, stored, values } of JSON.parse(readFileSync('test/data/blocks.json', 'utf8')) as Decoded[]) {
  test(`${dtype} in ${layout} layout has the values that Python decodes`, () => {
    const decoded = decodeTensor(Buffer.from(stored, 'base64'), tensor(dtype, shape, layout), 'x');
    assert.equal(Buffer.from(decoded.buffer).toString('base64'), values);
  });
}

test('values are padded with zeros along every axis', () => {
  assert.deepEqual([...padded(Float32Array.of(1, 2, 3, 4), [2, 2], [3, 3], 'x')], [1, 2, 0, 3, 4, 0, 0, 0, 0]);
  assert.throws(() => padded(Float32Array.of(1, 2), [2], [1], 'x'), /within \[1\], found \[2\]/);
});

test('pieces arrive whole, also those that lie in two shards, and each shard is read once', async () => {
  const manifest = readManifest(
    JSON.stringify({
      modelId: 'm',
      hashAlgorithm: 'sha256',
      shards: [{ filename: 'a', size: 4, hash: 'AB' }, { filename: 'b', size: 4, hash: 'CD' }],
      tensors: {
        x: { shape: [6], dtype: 'F16', size: 6, spans: [{ shardIndex: 0, offset: 1, size: 3 }, { shardIndex: 1, offset: 0, size: 3 }] },
        y: { shape: [1], dtype: 'F16', size: 1, shard: 1, offset: 3 },
      },
    }),
    'manifest.json',
  );
  assert.equal(manifest.shards[0]!.sha256, 'ab');
  const shards = [Uint8Array.of(0, 1, 2, 3), Uint8Array.of(4, 5, 6, 7)];
  const read: number[] = [];
  const got: Record<string, number[]> = {};
  const piece = (name: string, tensor: string, first: number, end: number): Piece => ({ tensor, first, end, use: (bytes) => (got[name] = [...bytes]) });
  const pieces = [piece('y', 'y', 0, 1), piece('whole', 'x', 0, 6), piece('first', 'x', 0, 2), piece('last', 'x', 4, 6)];
  await deliver(pieces, manifest, async (shard) => (read.push(shard), shards[shard]!), async () => {});
  assert.deepEqual(got, { first: [1, 2], whole: [1, 2, 3, 4, 5, 6], last: [5, 6], y: [7] });
  assert.deepEqual(read, [0, 1]);
});
