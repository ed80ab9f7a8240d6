// Images as patches of pixels by the recipe of a package, with the arithmetic of Python's.
import { RdrrError } from '../errors.js';
import type { ProcessorBlock } from '../load/manifest.js';
import { resize, type Pixels } from './resample.js';

/** The patches of an image: [patches, values], and how many there are in height and width. */
export interface Patches {
  values: Float32Array<ArrayBuffer>;
  rows: number;
  columns: number;
}

const MOST_ASPECT = 200;

/** Return the height and width to which an image is resized. */
export function sizeOf(recipe: ProcessorBlock, { height, width }: Pick<Pixels, 'height' | 'width'>): [height: number, width: number] {
  const side = recipe.patchSize * recipe.mergeSize;
  const [least, most] = [recipe.minPixels ?? 1, recipe.maxPixels ?? 1];
  if (Math.max(height, width) > MOST_ASPECT * Math.min(height, width)) {
    throw new RdrrError('usage', `the image is too narrow for this model: expected sides that differ at most by a factor of ${MOST_ASPECT}, found ${width} x ${height}`);
  }
  const whole = [height, width].map((length) => roundEven(length / side) * side);
  const pixels = whole[0]! * whole[1]!;
  if (pixels > most) {
    const shrink = Math.sqrt((height * width) / most);
    return [height, width].map((length) => Math.max(side, Math.floor(length / shrink / side) * side)) as [number, number];
  }
  if (pixels < least) {
    const grow = Math.sqrt(least / (height * width));
    return [height, width].map((length) => Math.ceil((length * grow) / side) * side) as [number, number];
  }
  return whole as [number, number];
}

/** Return the nearest integer, the even one of two. */
function roundEven(value: number): number {
  const below = Math.floor(value);
  return value - below === 0.5 ? below + (below % 2) : Math.round(value);
}

/** Return how many tokens an image has in a prompt. */
export function tokensOf(recipe: ProcessorBlock, image: Pick<Pixels, 'height' | 'width'>): number {
  const side = recipe.patchSize * recipe.mergeSize;
  const [height, width] = sizeOf(recipe, image);
  return (height / side) * (width / side);
}

/** Return the patches of an image. */
export function patchesOf(recipe: ProcessorBlock, image: Pixels): Patches {
  const { patchSize: size, mergeSize, temporalPatchSize: frames = 1, patchOrder = 'raster', channelOrder = 'first' } = recipe;
  const { data, height, width } = resize(image, ...sizeOf(recipe, image), recipe.resample);
  const [rows, columns] = [height / size, width / size];
  const tables = valuesOf(recipe);
  const square = patchOrder === 'merged' ? mergeSize : 1;
  const values = new Float32Array(rows * columns * frames * 3 * size * size);
  const [ofChannel, ofPixel] = channelOrder === 'last' ? [1, 3] : [frames * size * size, 1];
  const ofFrame = channelOrder === 'last' ? 3 * size * size : size * size;
  let patch = 0;
  for (const [row, column] of placesOf(rows, columns, square)) {
    const at = patch++ * frames * 3 * size * size;
    for (let y = 0; y < size; y += 1) {
      for (let x = 0; x < size; x += 1) {
        const from = 3 * ((row * size + y) * width + column * size + x);
        for (let channel = 0; channel < 3; channel += 1) {
          const value = tables[channel]![data[from + channel]!]!;
          const to = at + channel * ofChannel + (y * size + x) * ofPixel;
          for (let frame = 0; frame < frames; frame += 1) values[to + frame * ofFrame] = value;
        }
      }
    }
  }
  return { values, rows, columns };
}

/** Yield the places of patches in their order: those of a square follow each other. */
export function* placesOf(rows: number, columns: number, square: number): Generator<[row: number, column: number]> {
  for (let down = 0; down < rows; down += square) {
    for (let right = 0; right < columns; right += square) {
      for (let row = down; row < down + square; row += 1) for (let column = right; column < right + square; column += 1) yield [row, column];
    }
  }
}

/** Return what each of the values 0 to 255 becomes in each channel: the factor in 64 bits, the rest in 32. */
function valuesOf({ rescaleFactor, mean, deviation }: ProcessorBlock): Float32Array[] {
  const round = Math.fround;
  return mean.map((shift, channel) =>
    Float32Array.from({ length: 256 }, (_, value) => round(round(round(value * rescaleFactor) - round(shift)) / round(deviation[channel]!))));
}
