// Pixels, patches and places of images, equal to those that Python's tests state.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { patchesOf, sizeOf } from '../src/images/patches.js';
import { interpolation, rotations } from '../src/images/places.js';
import { resize, type Pixels } from '../src/images/resample.js';
import { Positions, SeenImages, type Features } from '../src/images/seen.js';
import { pixelsOf } from '../src/images/sources.js';
import type { ProcessorBlock } from '../src/load/manifest.js';
import type { Tower } from '../src/program/schema.js';

interface Vectors {
  pixels: string;
  resized: { filter: string; size: [number, number]; pixels: string }[];
  sizes: [number, number, number, number][];
  patches: { recipe: ProcessorBlock; values: string }[];
  places: { sampling: Tower['sampling']; nearest: number[]; factors: string; rope: string }[];
  prompt: { ids: number[]; positions: number[][]; continued: number[][] };
}

const vectors = JSON.parse(readFileSync('test/data/images.json', 'utf8')) as Vectors;
const bytes = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, 'base64'));
const floats = (text: string): Float32Array => new Float32Array(bytes(text).buffer);
const image: Pixels = { width: 17, height: 13, data: bytes(vectors.pixels) };
const recipe = vectors.patches[0]!.recipe;

for (const { filter, size: [height, width], pixels } of vectors.resized) {
  test(`an image is resized to ${height} x ${width} by the filter ${filter} as Pillow does it`, () => {
    assert.deepEqual(resize(image, height, width, filter).data, bytes(pixels));
  });
}

test('sizes are those of the recipe, and images that are too narrow are refused', () => {
  const bounded = { ...recipe, patchSize: 16, minPixels: 64 * 64, maxPixels: 128 * 128 };
  for (const [height, width, tall, wide] of vectors.sizes) {
    if (tall) assert.deepEqual(sizeOf(bounded, { height, width }), [tall, wide]);
    else assert.throws(() => sizeOf(bounded, { height, width }), /too narrow/);
  }
});

for (const { recipe, values } of vectors.patches) {
  test(`patches in the order ${recipe.patchOrder ?? 'raster'} have the values of Python`, () => {
    const { values: patches, rows, columns } = patchesOf(recipe, image);
    assert.deepEqual(patches, floats(values));
    assert.equal(patches.length, rows * columns * 3 * recipe.patchSize ** 2 * (recipe.temporalPatchSize ?? 1));
  });
}

for (const { sampling, nearest, factors, rope } of vectors.places) {
  test(`places of patches are read from a position embedding as in Python: ${sampling}`, () => {
    const frequencies = [0, 1, 2, 3].map((pair) => 10_000 ** (-pair / 4));
    const tower = { grid: 9, merge: 2, sampling, frequencies } as unknown as Tower;
    const patches = { rows: 6, columns: 4, values: new Float32Array() };
    const [rows, weights] = interpolation(patches, tower);
    assert.deepEqual([...rows], nearest);
    for (const [made, stated] of [[weights, floats(factors)], [rotations(patches, tower), floats(rope)]] as const) {
      assert.equal(made.length, stated.length);
      assert.ok(made.every((value, at) => Math.abs(value - stated[at]!) < 1e-6));
    }
  });
}

const features = (rows: number, columns: number): Features => ({ parts: [new Float32Array(rows * columns)], rows, columns });

async function seenImages(): Promise<SeenImages> {
  const seen = new SeenImages(100);
  await seen.add('one', async () => features(2, 3));
  await seen.add('between', async () => features(1, 4));
  await seen.add('two', async () => features(2, 2));
  return seen;
}

test('tokens of images have positions of their own, also where a text goes on in an image', async () => {
  const { ids, positions: stated, continued } = vectors.prompt;
  const positions = new Positions(await seenImages());
  assert.deepEqual(positions.of(ids, 0), stated);
  assert.deepEqual(positions.of(ids.slice(5), 5), continued);
  assert.deepEqual(positions.of([5, 6], 0), [[0, 0, 0], [1, 1, 1]]);
});

test('an image is encoded once, and the one that was not used for longest is forgotten first', async () => {
  const seen = new SeenImages(100);
  const large = (): Features => ({ parts: [{ byteLength: 100 << 20 } as Float32Array], rows: 1, columns: 1 });
  let encoded = 0;
  const add = (key: string): Promise<{ first: number }> => seen.add(key, async () => ((encoded += 1), large()));
  const { first } = await add('a');
  await add('b');
  assert.equal((await add('a')).first, first);
  assert.equal(encoded, 2);
  await add('c');
  assert.equal(seen.runs([101]).length, 1); // all images of a prompt stay, however large
  seen.forget(); // `b` has to go
  assert.equal((await add('a')).first, first);
  assert.throws(() => seen.runs([101]), /forgotten/);
});

test('what is transparent becomes white', async () => {
  const data = Uint8ClampedArray.from([10, 20, 30, 255, 10, 20, 30, 0]);
  const { data: pixels } = await pixelsOf({ width: 2, height: 1, data } as unknown as ImageData, 'image 1');
  assert.deepEqual([...pixels], [10, 20, 30, 255, 255, 255]);
});
