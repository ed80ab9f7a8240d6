/**
 * Return cosines and sines of rows, [rows, frequencies, 2], as a rope reads them.
 *
 * @param rows - Number of rows.
 * @param frequencies - Radians per position of each pair.
 * @param position - Returns the position that rotates a pair of a row.
 * @param factor - What cosines and sines are multiplied by.
 */
export function rotationsOf(rows: number, frequencies: readonly number[], position: (row: number, pair: number) => number, factor = 1): Float32Array<ArrayBuffer> {
  const table = new Float32Array(2 * rows * frequencies.length);
  let at = 0;
  for (let row = 0; row < rows; row += 1) {
    for (let pair = 0; pair < frequencies.length; pair += 1) {
      const angle = position(row, pair) * frequencies[pair]!;
      table[at++] = Math.cos(angle) * factor;
      table[at++] = Math.sin(angle) * factor;
    }
  }
  return table;
}
