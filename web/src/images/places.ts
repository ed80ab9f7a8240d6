// Where the patches of an image are: what rope and position embedding of a vision tower read.
import { RdrrError } from '../errors.js';
import { rotationsOf } from '../player/rotations.js';
import type { Tower } from '../program/schema.js';
import { picturesOf, placesOf, type Patches } from './patches.js';

type Neighbours = [first: number, second: number, weight: number];

/** Return cosines and sines for each patch, [patches, pairs, 2]: the first half of the pairs by its row, the second by its column. */
export function rotations(patches: Patches, { frequencies = [], merge }: Tower): Float32Array<ArrayBuffer> {
  const places = placesIn(patches, merge);
  return rotationsOf(places.length, [...frequencies, ...frequencies], (row, pair) => places[row]![pair < frequencies.length ? 0 : 1]);
}

/** Return the four rows of the position embedding around each patch, and their weights. */
export function interpolation(patches: Patches, { grid, merge, sampling }: Tower): [nearest: Uint32Array<ArrayBuffer>, factors: Float32Array<ArrayBuffer>] {
  const { rows, columns } = patches;
  if (sampling === 'separate' && Math.max(rows, columns) > grid) {
    throw new RdrrError('usage', `the image has more patches in a row or column than the tower has positions: expected at most ${grid}, found ${rows} x ${columns}`);
  }
  const places = placesIn(patches, merge);
  const nearest = new Uint32Array(4 * places.length);
  const factors = new Float32Array(4 * places.length);
  let at = 0;
  for (const [row, column] of places) {
    if (sampling === 'separate') {
      nearest.set([column, grid + row], at);
      factors.set([1, 1], at);
    } else {
      const around = sampling === 'nearest' ? within : between;
      const [above, below, low] = around(row, rows, grid);
      const [left, right, far] = around(column, columns, grid);
      nearest.set([above, above, below, below].map((line, index) => line * grid + (index % 2 ? right : left)), at);
      factors.set([(1 - low) * (1 - far), (1 - low) * far, low * (1 - far), low * far], at);
    }
    at += 4;
  }
  return [nearest, factors];
}

/** Return the places of all patches, each in its own picture. */
function placesIn({ rows, columns, tiles }: Patches, merge: number): [row: number, column: number][] {
  return Array.from({ length: picturesOf(tiles) }, () => [...placesOf(rows, columns, merge)]).flat();
}

/** Return the neighbours of a place on an axis of a grid, whose corners are those of the image. */
function between(place: number, length: number, grid: number): Neighbours {
  const exact = (place * (grid - 1)) / Math.max(length - 1, 1);
  const first = Math.trunc(exact);
  return [first, Math.min(first + 1, grid - 1), Math.fround(exact - first)];
}

/** Return the part of an axis in which a place begins. In 32 bits, since a place on a border may be rounded down. */
function within(place: number, length: number, grid: number): Neighbours {
  const start = Math.fround(place * Math.fround(1 / length));
  let part = 0;
  while (part + 1 < grid && Math.fround((part + 1) / grid) <= start) part += 1;
  return [part, part, 0];
}
