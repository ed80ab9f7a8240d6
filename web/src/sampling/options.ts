import { RdrrError } from '../errors.js';

/** How tokens are chosen, under the names of rdrr's Python API, which are OpenAI's where it has one. */
export interface SamplingOptions {
  /** Divides the logits; 0 (the default) always takes the most probable token. */
  temperature?: number | undefined;
  top_k?: number | undefined;
  top_p?: number | undefined;
  /** Least fraction of the probability of the most probable token. */
  min_p?: number | undefined;
  repeat_penalty?: number | undefined;
  frequency_penalty?: number | undefined;
  presence_penalty?: number | undefined;
  /** What is added to the logits of tokens, by id. */
  logit_bias?: Record<number, number> | undefined;
  /** A random one for each generation by default. */
  seed?: number | bigint | undefined;
}

const LARGEST = 1e9;

type Check = [expected: string, holds: (value: number) => boolean];
const penalty: Check = ['a number', (value) => Math.abs(value) < LARGEST];
const RANGES: Record<string, Check> = {
  temperature: ['a number of 0 or more', (value) => value >= 0 && value < Infinity],
  top_k: ['an integer of 0 or more', (value) => Number.isInteger(value) && value >= 0],
  top_p: ['above 0, at most 1', (value) => value > 0 && value <= 1],
  min_p: ['between 0 and 1', (value) => value >= 0 && value <= 1],
  repeat_penalty: ['above 0', (value) => value > 1 / LARGEST && value < LARGEST],
  frequency_penalty: penalty,
  presence_penalty: penalty,
};

/** Throw an error if an option is out of its range. */
export function checkSampling(options: SamplingOptions, vocabulary: number): void {
  for (const [name, [expected, holds]] of Object.entries(RANGES)) {
    const value = options[name as keyof SamplingOptions];
    if (value !== undefined && !(typeof value === 'number' && holds(value))) {
      throw new RdrrError('usage', `${name}: expected ${expected}, found ${String(value)}`);
    }
  }
  for (const [id, bias] of Object.entries(options.logit_bias ?? {})) {
    const known = /^\d+$/.test(id) && Number(id) < vocabulary;
    if (!known) throw new RdrrError('usage', `logit_bias: expected token ids below ${vocabulary}, found ${id}`);
    if (!penalty[1](bias)) throw new RdrrError('usage', `logit_bias: expected numbers, found ${bias} for ${id}`);
  }
  const { seed } = options;
  if (seed !== undefined && !(typeof seed === 'bigint' ? seed >= 0n : Number.isSafeInteger(seed) && seed >= 0)) {
    throw new RdrrError('usage', `seed: expected an integer of 0 or more, found ${seed}`);
  }
}

/** Whether the choice depends on the tokens that occurred before. */
export function penalizes({ repeat_penalty = 1, frequency_penalty, presence_penalty }: SamplingOptions): boolean {
  return repeat_penalty !== 1 || Boolean(frequency_penalty || presence_penalty);
}

/** Whether the argmax of the model's own logits is always taken. */
export function isGreedy(options: SamplingOptions): boolean {
  return !options.temperature && !penalizes(options) && !Object.keys(options.logit_bias ?? {}).length;
}

/** Whether tokens are searched for by top-k, and by top-p. */
export function searchesOf({ top_k, top_p }: SamplingOptions): [topK: boolean, topP: boolean] {
  return [Boolean(top_k), top_p !== undefined && top_p < 1];
}
