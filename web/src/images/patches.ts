// Images as patches of pixels by the recipe of a package, with the arithmetic of Python's.
import { RdrrError } from '../errors.js';
import { roundEven } from '../load/halves.js';
import type { ProcessorBlock } from '../load/manifest.js';
import { resize, type Pixels } from './resample.js';

/** Rows and columns of the tiles that an image is cut into; zeros for one that is not cut. */
export type TileGrid = readonly [rows: number, columns: number];

/** The patches of an image: [patches, values], those of its tiles row by row before those of the whole image. */
export interface Patches {
  values: Float32Array<ArrayBuffer>;
  /** Rows and columns of the patches of a tile; without tiles of the image. */
  rows: number;
  columns: number;
  tiles: TileGrid;
}

/** Return how many pictures the patches of an image are of: its tiles and the whole image. */
export function picturesOf([rows, columns]: TileGrid): number {
  return rows * columns + 1;
}

const MOST_ASPECT = 200;

type Size = [height: number, width: number];
type Lengths = Pick<Pixels, 'height' | 'width'>;

/** Return the height and width that an image has at last. */
export function sizeOf(recipe: ProcessorBlock, image: Lengths): Size {
  const sizing = SIZINGS[recipe.sizing];
  if (!sizing) throw new RdrrError('format', `the manifest: images of the sizing ${recipe.sizing} are not known`);
  const [height, width] = firstSize(recipe, image);
  const size = sizing(recipe, height, width);
  if (size[0] && size[1]) return size;
  throw new RdrrError('usage', `the image is too narrow for this model: expected sides that differ at most by a factor of ${MOST_ASPECT}, found ${image.width} x ${image.height}`);
}

const SIZINGS: Readonly<Record<string, (recipe: ProcessorBlock, height: number, width: number) => Size>> = {
  pixel_bounds: withinBounds,
  token_budget: withinBudget,
  fixed: tileSize,
  tiles: wholeTiles,
};

/** Return the size to which an image is resized before it has whole tiles; without tiles its own. */
function firstSize({ tiles }: ProcessorBlock, { height, width }: Lengths): Size {
  if (!tiles) return [height, width];
  const aspect = width / height;
  const even = (length: number): number => Math.max(Math.trunc(length) + (Math.trunc(length) % 2), 1);
  return width >= height ? [even(tiles.longestSide / aspect), tiles.longestSide] : [tiles.longestSide, even(tiles.longestSide * aspect)];
}

function tileSize({ height, width }: ProcessorBlock): Size {
  return [height ?? 0, width ?? 0];
}

function wholeTiles(recipe: ProcessorBlock, height: number, width: number): Size {
  const [tall, wide] = tileSize(recipe);
  const whole = (length: number, step: number): number => Math.max(Math.ceil(length / step), 1) * step;
  const aspect = width / height;
  if (width >= height) return [whole(Math.trunc(whole(width, wide) / aspect), tall), whole(width, wide)];
  return [whole(height, tall), whole(Math.trunc(whole(height, tall) * aspect), wide)];
}

function withinBudget({ patchSize, mergeSize, maxTokens = 1 }: ProcessorBlock, height: number, width: number): Size {
  const side = patchSize * mergeSize;
  const factor = Math.sqrt((maxTokens * side ** 2) / (height * width));
  const [rows, columns] = [height, width].map((length) => Math.floor((factor * length) / side)) as Size;
  if (!rows && columns) return [side, side * Math.min(Math.floor(width / height), maxTokens)];
  if (!columns && rows) return [side * Math.min(Math.floor(height / width), maxTokens), side];
  return [rows * side, columns * side];
}

function withinBounds(recipe: ProcessorBlock, height: number, width: number): Size {
  const side = recipe.patchSize * recipe.mergeSize;
  const [least, most] = [recipe.minPixels ?? 1, recipe.maxPixels ?? 1];
  if (Math.max(height, width) > MOST_ASPECT * Math.min(height, width)) return [0, 0];
  const whole = [height, width].map((length) => roundEven(length / side) * side);
  const pixels = whole[0]! * whole[1]!;
  if (pixels > most) {
    const shrink = Math.sqrt((height * width) / most);
    return [height, width].map((length) => Math.max(side, Math.floor(length / shrink / side) * side)) as Size;
  }
  if (pixels < least) {
    const grow = Math.sqrt(least / (height * width));
    return [height, width].map((length) => Math.ceil((length * grow) / side) * side) as Size;
  }
  return whole as Size;
}

/** Return the tiles of an image of a size. */
function tileGrid(recipe: ProcessorBlock, [height, width]: Size): TileGrid {
  const [tall, wide] = tileSize(recipe);
  if (!recipe.tiles || (height === tall && width === wide)) return [0, 0];
  return [height / tall, width / wide];
}

/** Return how many tokens an image has in a prompt. */
export function tokensOf(recipe: ProcessorBlock, image: Lengths): number {
  const side = recipe.patchSize * recipe.mergeSize;
  const size = sizeOf(recipe, image);
  const [rows, columns] = tileGrid(recipe, size);
  const [height, width] = rows ? tileSize(recipe) : size;
  return (height / side) * (width / side) * picturesOf([rows, columns]);
}

/** Return the patches of an image. */
export function patchesOf(recipe: ProcessorBlock, image: Pixels): Patches {
  const size = sizeOf(recipe, image);
  const tiles = tileGrid(recipe, size);
  const whole = resize(resize(image, ...firstSize(recipe, image), recipe.resample), ...size, recipe.resample);
  const pieces = [whole];
  if (tiles[0]) {
    const [tall, wide] = tileSize(recipe);
    pieces[0] = resize(whole, tall, wide, recipe.resample);
    pieces.unshift(...[...placesOf(...tiles, 1)].map(([row, column]) => cutOut(whole, row * tall, column * wide, tall, wide)));
  }
  const [rows, columns] = [pieces[0]!.height / recipe.patchSize, pieces[0]!.width / recipe.patchSize];
  const tables = valuesOf(recipe);
  const each = rows * columns * valuesOfPatch(recipe);
  const values = new Float32Array(pieces.length * each);
  for (const [index, piece] of pieces.entries()) fill(values.subarray(index * each, (index + 1) * each), recipe, piece, tables);
  return { values, rows, columns, tiles };
}

function cutOut({ data, width }: Pixels, top: number, left: number, tall: number, wide: number): Pixels {
  const out = new Uint8Array(3 * tall * wide);
  for (let row = 0; row < tall; row += 1) out.set(data.subarray(3 * ((top + row) * width + left), 3 * ((top + row) * width + left + wide)), 3 * row * wide);
  return { height: tall, width: wide, data: out };
}

function valuesOfPatch({ patchSize, temporalPatchSize = 1 }: ProcessorBlock): number {
  return temporalPatchSize * 3 * patchSize ** 2;
}

/** Write the values of the patches of a frame; of each of 0 to 255 in each channel `tables` has the value. */
function fill(values: Float32Array, recipe: ProcessorBlock, { data, height, width }: Pixels, tables: readonly Float32Array[]): void {
  const { patchSize: size, mergeSize, temporalPatchSize: frames = 1, patchOrder = 'raster', channelOrder = 'first' } = recipe;
  const square = patchOrder === 'merged' ? mergeSize : 1;
  const [ofChannel, ofPixel] = channelOrder === 'last' ? [1, 3] : [frames * size * size, 1];
  const ofFrame = channelOrder === 'last' ? 3 * size * size : size * size;
  let patch = 0;
  for (const [row, column] of placesOf(height / size, width / size, square)) {
    const at = patch++ * valuesOfPatch(recipe);
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
