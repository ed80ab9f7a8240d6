import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Program } from '../src/program/schema.js';
import { recordedOf, recordingOf } from '../src/sampling/logprobs.js';

const recording = { top: 2, records: 0, phases: [] };

function records(...rows: [sum: number, logit: number, ...top: [number, number][]][]): Uint32Array {
  const words = new Uint32Array(6 * rows.length);
  const values = new Float32Array(words.buffer);
  rows.forEach(([sum, logit, ...top], row) => {
    values.set([sum, logit], 6 * row);
    top.forEach(([value, id], rank) => {
      values[6 * row + 2 + 2 * rank] = value;
      words[6 * row + 3 + 2 * rank] = id;
    });
  });
  return words;
}

test('log-probabilities are logits less the logarithm of their sum, for as many tokens as were asked for', () => {
  const words = records([4, 3, [3.5, 9], [3, 7]], [1, 0.5, [0.5, 1], [0, 2]]);
  const first = { id: 7, logprob: -1, top: [{ id: 9, logprob: -0.5 }] };
  assert.deepEqual(recordedOf([7, 1], words, recording, 1, 10), [first, { id: 1, logprob: -0.5, top: [{ id: 1, logprob: -0.5 }] }]);
  assert.deepEqual(recordedOf([7], words, recording, 0, 10), [{ ...first, top: [] }]);
});

test('tokens behind a small vocabulary are left out', () => {
  const words = records([1, 1, [1, 0], [-1e30, 0xffffffff]]);
  assert.deepEqual(recordedOf([0], words, recording, 2, 1), [{ id: 0, logprob: 0, top: [{ id: 0, logprob: 0 }] }]);
});

test('more than a program records is refused, and so is a program that records none', () => {
  const program = (logprobs: unknown): Program => ({ model: 'm', sampler: { logprobs } }) as Program;
  assert.equal(recordingOf(program(recording), 2), recording);
  assert.throws(() => recordingOf(program(recording), 3), /records 2 log-probabilities/);
  assert.throws(() => recordingOf(program(null), 0), /records no log-probabilities/);
});
