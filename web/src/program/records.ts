import { partOf, RdrrError } from '../errors.js';
import type { Program, RecordFields } from './schema.js';

/** The records that the host writes, as a program states them. */
export type Records = Program['records'];

export const recordOf = (records: Records, name: string): RecordFields => partOf(records, name, 'record');

/** Write a record at a word. A field of a newer rdrr is an error: no value of it is known to change nothing. */
export function packInto(out: Uint32Array, at: number, record: RecordFields, values: Record<string, number>): void {
  const floats = new Float32Array(out.buffer, out.byteOffset, out.length);
  for (const [index, [name, type]] of Object.entries(record.fields).entries()) {
    const value = values[name];
    if (value === undefined) throw new RdrrError('format', `the program has the field ${name} in a record, which this runtime does not know; take the runtime of the rdrr that wrote the program`);
    (type === 'f32' ? floats : out)[at + index] = value;
  }
}

/** Return the words of one record. */
export function pack(record: RecordFields, values: Record<string, number>): Uint32Array<ArrayBuffer> {
  const words = new Uint32Array(record.words);
  packInto(words, 0, record, values);
  return words;
}

export interface StepRows {
  tokens: readonly number[];
  slots: readonly number[];
  positions?: readonly number[];
}

/** Return the words of a step of one text: its header, and a row for each token. */
export function packStep(records: Records, { tokens, slots, positions = slots }: StepRows): Uint32Array<ArrayBuffer> {
  const [header, row] = [recordOf(records, 'step_header'), recordOf(records, 'step_row')];
  const words = new Uint32Array(header.words + row.words * tokens.length);
  packInto(words, 0, header, { rows: tokens.length, sampled: 0, last_n: 1 });
  for (const [index, token] of tokens.entries()) {
    packInto(words, header.words + row.words * index, row, { token, position: positions[index]!, sequence: 0, slot: slots[index]! });
  }
  return words;
}

/** Return the words of the segments of packed texts: a record for each row, whose tokens are of the first type. */
export function packSegments(records: Records, lengths: readonly number[]): Uint32Array<ArrayBuffer> {
  const record = recordOf(records, 'segment');
  const words = new Uint32Array(record.words * lengths.reduce((sum, length) => sum + length, 0));
  let first = 0;
  for (const length of lengths) {
    const end = first + length;
    for (let row = first; row < end; row += 1) packInto(words, record.words * row, record, { first, end, kind: 0 });
    first = end;
  }
  return words;
}
