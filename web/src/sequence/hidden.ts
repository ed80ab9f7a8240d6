import { RdrrError } from '../errors.js';
import { f16 } from '../load/halves.js';
import { restrided } from '../load/values.js';
import type { Player } from '../player/player.js';
import { packSegments, packStep } from '../program/records.js';
import type { RowsPass } from '../program/schema.js';

type Ids = readonly number[];

/**
 * Yield the hidden states of texts after the final norm, [tokens, width] each, in order.
 *
 * A model whose rows attend to their own text alone runs several texts in a pass. The passes use the key-value cache
 * from slot 0 on: what a `Sequence` has there is lost.
 */
export async function* hiddenStates(player: Player, texts: readonly Ids[], signal?: AbortSignal): AsyncGenerator<Float32Array> {
  const { program } = player;
  const pass = program.hidden;
  if (!pass) throw new RdrrError('usage', 'the package makes no embeddings');
  const most = player.amount(pass.rows);
  const packs = pass.segments != null;
  for (const ids of texts) checkIds(ids, packs ? Math.min(most, player.context) : player.context, program.vocabulary);
  await player.prepare(pass.phases.map(({ kernel }) => kernel));
  for (const group of packs ? packed(texts, most) : texts.map((ids) => [ids])) {
    const [ids, positions] = [group.flat(), group.flatMap((text) => [...text.keys()])];
    const values = new Float32Array(ids.length * pass.width);
    for (let start = 0; start < ids.length; start += most) {
      signal?.throwIfAborted();
      const tokens = ids.slice(start, start + most);
      const slots = tokens.map((_, row) => start + row);
      player.write(program.step, packStep(program.records, { tokens, slots, positions: positions.slice(start, start + most) }));
      if (packs) player.write(pass.segments!, packSegments(program.records, group.map(({ length }) => length)));
      const reads = [{ range: pass.result, first: 0, count: (pass.stride * tokens.length) / 4 }];
      const [words] = await player.run(pass.phases, tokens.length, { reads });
      values.set(rowsOf(words!, pass), start * pass.width);
    }
    let at = 0;
    for (const { length } of group) yield values.subarray(at, (at += length * pass.width));
  }
}

/** Return runs of consecutive texts that fit a pass. */
function packed(texts: readonly Ids[], rows: number): Ids[][] {
  const groups: Ids[][] = [];
  let left = 0;
  for (const ids of texts) {
    if (ids.length > left) {
      groups.push([]);
      left = rows;
    }
    groups.at(-1)!.push(ids);
    left -= ids.length;
  }
  return groups;
}

/** Return the values of rows that were read, without what pads each to the stride. */
function rowsOf(words: Uint32Array, { width, stride, dtype }: RowsPass): Float32Array {
  const stored = dtype === 'F16' ? Float32Array.from(new Uint16Array(words.buffer), f16) : new Float32Array(words.buffer);
  if (!stored.every(Number.isFinite)) throw new RdrrError('device', 'a hidden state is not a finite number');
  return restrided(stored, stride / (dtype === 'F16' ? 2 : 4), width);
}

function checkIds(ids: Ids, most: number, vocabulary: number): void {
  if (ids.length < 1 || ids.length > most) {
    throw new RdrrError('usage', `a text is empty or does not fit the context: expected 1 to ${most} tokens, found ${ids.length}; use \`truncate\``);
  }
  const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabulary));
  if (wrong !== undefined) throw new RdrrError('usage', `a text has the id ${wrong}: expected ids below ${vocabulary}`);
}
