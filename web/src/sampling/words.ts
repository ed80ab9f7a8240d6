import { pack, packInto, recordOf, type Records } from '../program/records.js';
import { penalizes, searchesOf, type SamplingOptions } from './options.js';

const NO_MIN_P = 3e38; // no score lies this far below the largest
const NO_TOP_K = 3e38;
const NO_TOP_P = 2;
const LARGEST = 1e9;
const WORD = 0xffffffffn;

/** A token that was seen or has a bias. */
export interface Entry {
  id: number;
  count: number;
  bias: number;
}

/** Return a random seed, for generations that need not be reproducible. */
export function freshSeed(): bigint {
  const [low, high] = crypto.getRandomValues(new Uint32Array(2));
  return (BigInt(high!) << 32n) | BigInt(low!);
}

/** Return the words of the record `sampler` for a generation. */
export function samplerWords(
  records: Records,
  options: SamplingOptions,
  seed: bigint,
  { sampled = 0, masked = false }: { sampled?: number | undefined; masked?: boolean } = {},
): Uint32Array<ArrayBuffer> {
  const { temperature = 0, top_k, top_p, min_p, repeat_penalty: repeat = 1 } = options;
  return pack(recordOf(records, 'sampler'), {
    inverse_temperature: temperature ? Math.min(1 / temperature, LARGEST) : 1,
    repeat,
    inverse_repeat: 1 / repeat,
    frequency: options.frequency_penalty ?? 0,
    presence: options.presence_penalty ?? 0,
    top_k: top_k || NO_TOP_K,
    top_p: searchesOf(options)[1] ? top_p! : NO_TOP_P,
    log_min_p: min_p ? Math.log(min_p) : -NO_MIN_P,
    seed_low: Number(seed & WORD),
    seed_high: Number((seed >> 32n) & WORD),
    sampled,
    noisy: Number(temperature > 0),
    masked: Number(masked),
  });
}

/** Return every token of a vocabulary with a count or a bias, in order of the ids; those of images have none. */
export function entriesOf(options: SamplingOptions, seen: readonly number[], vocabulary: number): Entry[] {
  const entries = new Map<number, Entry>();
  const entry = (id: number): Entry => {
    const known = entries.get(id) ?? { id, count: 0, bias: 0 };
    entries.set(id, known);
    return known;
  };
  if (penalizes(options)) for (const id of seen) if (id < vocabulary) entry(id).count += 1;
  for (const [id, bias] of Object.entries(options.logit_bias ?? {})) entry(Number(id)).bias = bias;
  return [...entries.values()].sort((one, other) => one.id - other.id);
}

/** Return the words of sparse lists, each of at most `most` tokens. */
export function entriesWords(records: Records, entries: readonly Entry[], most: number): Uint32Array<ArrayBuffer>[] {
  const [header, row] = [recordOf(records, 'entries'), recordOf(records, 'entry')];
  const lists = [];
  for (let first = 0; first < entries.length; first += most) {
    const part = entries.slice(first, first + most);
    const words = new Uint32Array(header.words + row.words * part.length);
    packInto(words, 0, header, { size: part.length });
    for (const [index, { id, count, bias }] of part.entries()) {
      packInto(words, header.words + row.words * index, row, { id, count, bias });
    }
    lists.push(words);
  }
  return lists;
}
