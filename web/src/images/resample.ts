// Resizing as Pillow does it, to the last bit: the pixels are those with which a model was trained.
import { RdrrError } from '../errors.js';

/** Pixels of an image: red, green and blue of each, row by row. */
export interface Pixels {
  width: number;
  height: number;
  data: Uint8Array;
}

/** A filter by the distance from the middle of a pixel, and how far it reaches. */
interface Filter {
  reach: number;
  weight(distance: number): number;
}

const sinc = (x: number): number => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));

const FILTERS: Readonly<Record<string, Filter>> = {
  box: { reach: 0.5, weight: (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) },
  bilinear: { reach: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  hamming: { reach: 1, weight: (x) => (Math.abs(x) < 1 ? sinc(x) * (0.54 + 0.46 * Math.cos(x * Math.PI)) : 0) },
  bicubic: { reach: 2, weight: (x) => cubic(Math.abs(x)) },
  lanczos: { reach: 3, weight: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

/** Keys' cubic convolution with a = -1/2. */
function cubic(x: number): number {
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

const CHANNELS = 3;
const ONE = 2 ** 22; // the integer that stands for the weight 1

/** For each place of an axis the first place that it is made of, and the weights of that and those behind it. */
type Taps = readonly { first: number; weights: readonly number[] }[];

/** Return an image in another size. */
export function resize(image: Pixels, height: number, width: number, name: string): Pixels {
  const filter = FILTERS[name];
  if (!filter) throw new RdrrError('format', `the manifest: images cannot be resized by the filter ${name}`);
  const across = (from: Pixels): Pixels =>
    from.width === width ? from : { ...from, width, data: resampled(from.data, [from.height, from.width, CHANNELS], tapsOf(filter, from.width, width)) };
  const down = (from: Pixels): Pixels =>
    from.height === height ? from : { ...from, height, data: resampled(from.data, [1, from.height, from.width * CHANNELS], tapsOf(filter, from.height, height)) };
  // Values are rounded between the passes, so their order counts. Pillow 13 shortens an image first where that saves more.
  const isShortened = height < image.height && image.height - height > 2 * (image.width - width);
  return isShortened ? across(down(image)) : down(across(image));
}

function tapsOf({ reach, weight }: Filter, from: number, to: number): Taps {
  const scale = from / to;
  const wide = Math.max(scale, 1);
  return Array.from({ length: to }, (_, place) => {
    const center = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach * wide + 0.5));
    const end = Math.min(from, Math.trunc(center + reach * wide + 0.5));
    const exact = Array.from({ length: end - first }, (_, tap) => weight((first + tap - center + 0.5) / wide));
    const sum = exact.reduce((total, value) => total + value, 0);
    return { first, weights: exact.map((value) => Math.trunc((value / sum) * ONE + (value < 0 ? -0.5 : 0.5))) };
  });
}

/** Return data of [outer, length, inner] whose middle axis has other places. */
function resampled(data: Uint8Array, [outer, length, inner]: readonly [number, number, number], taps: Taps): Uint8Array {
  const out = new Uint8Array(outer * taps.length * inner);
  let at = 0;
  for (let block = 0; block < outer; block += 1) {
    for (const { first, weights } of taps) {
      for (let value = 0; value < inner; value += 1) out[at++] = summed(data, (block * length + first) * inner + value, inner, weights);
    }
  }
  return out;
}

function summed(data: Uint8Array, first: number, stride: number, weights: readonly number[]): number {
  let sum = ONE / 2;
  for (let tap = 0; tap < weights.length; tap += 1) sum += data[first + tap * stride]! * weights[tap]!;
  return Math.min(255, Math.max(0, Math.floor(sum / ONE)));
}
