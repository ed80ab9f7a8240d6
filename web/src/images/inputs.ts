// What a pass needs of images: the features of its rows, and rotations by three positions. A row with three positions
// is rotated by a row of its own behind those of the context, and its position in the step names it.
import type { Player } from '../player/player.js';
import { rotationsOf } from '../player/rotations.js';
import type { Positions } from './seen.js';

/** Write what rows of a pass need, and return their tokens and positions in the step. */
export function writeImages(player: Player, positions: Positions, ids: readonly number[], base: number): { tokens: number[]; positions: number[] } {
  const images = player.program.images!; // a sequence has positions only if its program states this
  const places = positions.of(ids, base);
  const tokens = [...ids];
  const rows = places.map(([time]) => time);
  const runs = positions.images.runs(ids);
  for (const { at, count, image, start } of runs) {
    for (const [part, values] of image.parts.entries()) {
      const width = values.length / image.tokens;
      player.write(images.features[part]!, widened(values.subarray(start * width, (start + count) * width), width, images.width), 4 * images.width * at);
    }
    const end = base + at - start + image.tokens; // the slot behind the image
    for (let row = at; row < at + count; row += 1) {
      tokens[row] = images.first + end;
      if (images.ropes.length) rows[row] = player.context + row;
    }
  }
  for (const { range, frequencies, factor, axes } of runs.length ? images.ropes : []) {
    const table = rotationsOf(ids.length, frequencies, (row, pair) => places[row]![axes[pair] as 0 | 1 | 2], factor);
    player.write(range, table, 8 * player.context * frequencies.length);
  }
  return { tokens, positions: rows };
}

/** Return rows with zeros behind their values. */
function widened(values: Float32Array, width: number, wide: number): Float32Array<ArrayBuffer> {
  if (width === wide) return values as Float32Array<ArrayBuffer>;
  const rows = values.length / width;
  const out = new Float32Array(rows * wide);
  for (let row = 0; row < rows; row += 1) out.set(values.subarray(row * width, (row + 1) * width), row * wide);
  return out;
}
