import { RdrrError } from '../errors.js';
import type { Logprobs, Program } from '../program/schema.js';

/** A token and the natural logarithm of its probability under the model, before penalties, bias and temperature. */
export interface TokenLogprob {
  id: number;
  logprob: number;
}

/** What was recorded of a token that was chosen: the most probable tokens, in order of falling probability. */
export interface Recorded extends TokenLogprob {
  top: TokenLogprob[];
}

/** Return what records the log-probabilities of a program; an error says that it records fewer than `top`, or none. */
export function recordingOf({ model, sampler }: Program, top: number): Logprobs {
  const recording = sampler?.logprobs;
  if (recording && top <= recording.top) return recording;
  throw new RdrrError('usage', `${model}: the program records ${recording?.top ?? 'no'} log-probabilities; run \`rdrr web\` again`);
}

/** Return the words of the record of a token. */
export function recordWords(recording: Logprobs): number {
  return 2 + 2 * recording.top;
}

/** Return what the records of ids say: of each the `top` most probable tokens, those behind the vocabulary left out. */
export function recordedOf(ids: readonly number[], records: Uint32Array, recording: Logprobs, top: number, vocabulary: number): Recorded[] {
  const values = new Float32Array(records.buffer, records.byteOffset, records.length);
  return ids.map((id, index) => {
    const at = index * recordWords(recording);
    const all = Array.from({ length: top }, (_, rank) => at + 2 + 2 * rank);
    const best = all.map((place) => ({ id: records[place + 1]!, logprob: values[place]! - values[at]! }));
    return { id, logprob: values[at + 1]! - values[at]!, top: best.filter((token) => token.id < vocabulary) };
  });
}
