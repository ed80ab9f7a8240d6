// The golden vectors of records, which Python's tests read too.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { packSegments, packStep, type Records, type StepRows } from '../src/program/records.js';
import type { SamplingOptions } from '../src/sampling/options.js';
import { entriesOf, entriesWords, samplerWords } from '../src/sampling/words.js';

interface Vectors {
  records: Records;
  step: (StepRows & { sequences?: number[]; words: number[] })[];
  sampler: { options: SamplingOptions & { sampled_tokens?: number }; seed: string; masked: boolean; words: number[] }[];
  entries: { options: SamplingOptions; seen: number[]; words: number[][] }[];
}

const vectors = JSON.parse(readFileSync('../tests/data/vectors/records.json', 'utf8')) as Vectors;
const { records } = JSON.parse(readFileSync('test/data/records.json', 'utf8')) as Vectors;

// Browsers run one text at a time.
for (const [index, { words, ...step }] of vectors.step.filter(({ sequences }) => !sequences).entries()) {
  test(`step ${index} has the words that Python packs`, () => {
    assert.deepEqual([...packStep(records, step)], words);
  });
}

for (const [index, { options, seed, masked, words }] of vectors.sampler.entries()) {
  test(`sampling parameters ${index} have the words that Python packs`, () => {
    const state = { sampled: options.sampled_tokens, masked };
    assert.deepEqual([...samplerWords(records, options, BigInt(seed), state)], words);
  });
}

for (const [index, { options, seen, words }] of vectors.entries.entries()) {
  test(`entries ${index} have the words that Python packs`, () => {
    const lists = entriesWords(records, entriesOf(options, seen, 2 ** 31), 4096).map((list) => [...list]);
    assert.deepEqual(lists, words);
  });
}

test('a segment is repeated for each row of its text', () => {
  assert.deepEqual([...packSegments(records, [3, 1])], [0, 3, 0, 0, 3, 0, 0, 3, 0, 3, 4, 0]);
});

test('long lists of entries are cut', () => {
  const entries = [1, 2, 3].map((id) => ({ id, count: 1, bias: 0 }));
  assert.deepEqual(entriesWords(records, entries, 2).map(([size]) => size), [2, 1]);
});

test('a field that this runtime does not know is refused, and one that it knows is not', () => {
  const header = records['step_header']!;
  const newer = { ...records, step_header: { ...header, fields: { ...header.fields, threshold: 'f32' } } } as Records;
  assert.throws(() => packStep(newer, { tokens: [5], slots: [0] }), /the field threshold in a record, which this runtime does not know/);
  assert.equal(packStep(records, { tokens: [5], slots: [0] })[0], 1);
});
