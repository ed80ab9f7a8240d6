// Pixels, patches and places of images, equal to those that Python's tests state.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { patchesOf, picturesOf, sizeOf, tokensOf, type TileGrid } from '../src/images/patches.js';
import { interpolation, rotations } from '../src/images/places.js';
import { resize, type Pixels } from '../src/images/resample.js';
import { Positions, SeenImages, type Features } from '../src/images/seen.js';
import { pixelsOf } from '../src/images/sources.js';
import type { ProcessorBlock } from '../src/load/manifest.js';
import type { Images, Tower } from '../src/program/schema.js';
import { imageText } from '../src/text/prompt.js';

interface Vectors {
  pixels: string;
  resized: { filter: string; size: [number, number]; pixels: string }[];
  sizes: { recipe: ProcessorBlock; sizes: [height: number, width: number, tall: number, wide: number, tokens: number][] }[];
  patches: { recipe: ProcessorBlock; tiles: TileGrid; values: string }[];
  places: { sampling: Tower['sampling']; tiles: TileGrid; nearest: number[]; factors: string; rope: string }[];
  texts: { recipe: ProcessorBlock; tokens: number; tiles: TileGrid; text: string }[];
  prompt: { ids: number[]; positions: number[][]; continued: number[][] };
}

const vectors = JSON.parse(readFileSync('test/data/images.json', 'utf8')) as Vectors;
const bytes = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, 'base64'));
const floats = (text: string): Float32Array => new Float32Array(bytes(text).buffer);
const image: Pixels = { width: 17, height: 13, data: bytes(vectors.pixels) };

for (const { filter, size: [height, width], pixels } of vectors.resized) {
  test(`an image is resized to ${height} x ${width} by the filter ${filter} as Pillow does it`, () => {
    assert.deepEqual(resize(image, height, width, filter).data, bytes(pixels));
  });
}

for (const { recipe, sizes } of vectors.sizes) {
  test(`sizes and tokens are those of the sizing ${recipe.sizing}, and images that are too narrow are refused`, () => {
    for (const [height, width, tall, wide, tokens] of sizes) {
      if (!tall) assert.throws(() => sizeOf(recipe, { height, width }), /too narrow/);
      else assert.deepEqual([...sizeOf(recipe, { height, width }), tokensOf(recipe, { height, width })], [tall, wide, tokens]);
    }
  });
}

for (const { recipe, tiles: stated, values } of vectors.patches) {
  test(`patches of the sizing ${recipe.sizing} in the order ${recipe.patchOrder ?? 'raster'} have the values of Python`, () => {
    const { values: patches, rows, columns, tiles } = patchesOf(recipe, image);
    assert.deepEqual(patches, floats(values));
    assert.deepEqual(tiles, stated);
    assert.equal(patches.length, picturesOf(tiles) * rows * columns * 3 * recipe.patchSize ** 2 * (recipe.temporalPatchSize ?? 1));
  });
}

for (const { sampling, tiles, nearest, factors, rope } of vectors.places) {
  test(`places of patches in ${picturesOf(tiles)} pictures are read from a position embedding as in Python: ${sampling}`, () => {
    const frequencies = [0, 1, 2, 3].map((pair) => 10_000 ** (-pair / 4));
    const tower = { grid: 9, merge: 2, sampling, frequencies } as unknown as Tower;
    const patches = { rows: 6, columns: 4, tiles, values: new Float32Array() };
    const [rows, weights] = interpolation(patches, tower);
    assert.deepEqual([...rows], nearest);
    for (const [made, stated] of [[weights, floats(factors)], [rotations(patches, tower), floats(rope)]] as const) {
      assert.equal(made.length, stated.length);
      assert.ok(made.every((value, at) => Math.abs(value - stated[at]!) < 1e-6));
    }
  });
}

test('an image has the text of Python in a prompt, with its tiles in rows', () => {
  for (const { recipe, text, ...image } of vectors.texts) assert.equal(imageText(recipe, image), text);
});

const features = (rows: number, columns: number, tiles: TileGrid = [0, 0]): Features => ({ parts: [new Float32Array(rows * columns * picturesOf(tiles))], rows, columns, tiles });

const AXES: Pick<Images, 'first' | 'ropes'> = { first: 100, ropes: [{ range: 0, frequencies: [1], axes: [0] }] };

async function seenImages(): Promise<SeenImages> {
  const seen = new SeenImages(AXES);
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

test('without rotations by three positions positions are slots, and tokens of tiles are those of one image', async () => {
  const seen = new SeenImages({ first: 100, ropes: [] });
  const { first, tokens } = await seen.add('tiles', async () => features(1, 2, [2, 1]));
  assert.deepEqual([first, tokens], [100, 6]);
  const ids = [7, 100, 101, 8, 102, 103, 9, 104, 105, 3];
  assert.deepEqual(seen.runs(ids).map(({ at, count, start }) => [at, count, start]), [[1, 2, 0], [4, 2, 2], [7, 2, 4]]);
  assert.deepEqual(new Positions(seen).of(ids, 5), ids.map((_, row) => [5 + row, 5 + row, 5 + row]));
});

test('an image whose rows attend to all of it is never cut', async () => {
  const seen = new SeenImages({ ...AXES, whole: true });
  await seen.add('a', async () => features(2, 3));
  const ids = [1, 2, 100, 101, 102, 103, 104, 105, 3, 4];
  assert.deepEqual([[0, 2], [0, 4], [0, 8], [2, 8], [0, 20]].map(([begin, end]) => seen.border(ids, begin!, end!)), [2, 2, 8, 8, 20]);
  assert.throws(() => seen.border(ids, 2, 6), /6 tokens, which must run in one pass: expected at most 4/);
  assert.equal((await seenImages()).border(ids, 2, 6), 6); // others may be cut
});

test('an image is encoded once, and the one that was not used for longest is forgotten first', async () => {
  const seen = new SeenImages(AXES);
  const large = (): Features => ({ parts: [{ byteLength: 100 << 20 } as Float32Array], rows: 1, columns: 1, tiles: [0, 0] });
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
