// What a pass needs of images: the features of its rows, and rotations by three positions. A row with three positions
// is rotated by a row of its own behind those of the context, and its position in the step names it.
import { restrided } from '../load/values.js';
import type { Player } from '../player/player.js';
import { rotationsOf } from '../player/rotations.js';
import type { Positions } from './seen.js';

/** Write what rows of a pass need, and return their tokens and positions in the step. */
export function writeImages(player: Player, positions: Positions, ids: readonly number[], base: number): { tokens: number[]; positions: number[] } {
  const images = player.program.images!; // a sequence has positions only if its program states this
  const places = positions.of(ids, base);
  const tokens = [...ids];
  const times = places.map(([time]) => time);
  const runs = positions.images.runs(ids);
  for (const { at, count, image, start } of runs) {
    for (const [part, values] of image.parts.entries()) {
      const width = values.length / image.tokens;
      const rows = values.subarray(start * width, (start + count) * width);
      player.write(images.features[part]!, restrided(rows, width, images.width) as Float32Array<ArrayBuffer>, 4 * images.width * at);
    }
    const end = base + at - start + image.tokens; // the slot behind the image
    for (let row = at; row < at + count; row += 1) {
      tokens[row] = images.first + end;
      if (images.ropes.length) times[row] = player.context + row;
    }
  }
  for (const { range, frequencies, factor, axes } of runs.length ? images.ropes : []) {
    const table = rotationsOf(ids.length, frequencies, (row, pair) => places[row]![axes[pair] as 0 | 1 | 2], factor);
    player.write(range, table, 8 * player.context * frequencies.length);
  }
  return { tokens, positions: times };
}
