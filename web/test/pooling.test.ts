import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Pooling } from '../src/engine/pooling.js';
import type { EmbeddingBlock } from '../src/load/manifest.js';

const rows = Float32Array.of(1, 2, 3, 4, 5, 9);
const pooled = (block: EmbeddingBlock, skipped = 0, tensors: [string, Float32Array][] = []): number[] => [
  ...new Pooling(block, new Map(tensors)).pool(rows, 2, skipped),
];

for (const [poolingMode, expected] of Object.entries({ cls: [1, 2], last: [5, 9], mean: [3, 5] })) {
  test(`the pooling ${poolingMode} is that of sentence-transformers`, () => {
    assert.deepEqual(pooled({ poolingMode }), expected);
  });
}

test('a mean leaves out the rows of a prompt', () => {
  assert.deepEqual(pooled({ poolingMode: 'mean' }, 1), [4, 6.5]);
});

test('a projection follows the pooling, and the norm comes last', () => {
  const projections = [{ weightTensor: 'w', biasTensor: 'b', activation: 'relu' }];
  const tensors: [string, Float32Array][] = [
    ['w', Float32Array.of(1, 0, 0, 1, -1, -1)],
    ['b', Float32Array.of(2, 2, 2)],
  ];
  assert.deepEqual(pooled({ poolingMode: 'cls', projections }, 0, tensors), [3, 4, 0]);
  const scaled = pooled({ poolingMode: 'cls', projections, normalize: 'l2' }, 0, tensors);
  assert.deepEqual(scaled, [...Float32Array.of(0.6, 0.8, 0)]);
});

test('a prompt is found by its name, or is the default one', () => {
  const block = { poolingMode: 'mean', prompts: { query: 'Q: ', document: '' } };
  assert.equal(new Pooling(block, new Map()).prompt(null), '');
  assert.equal(new Pooling({ ...block, defaultPromptName: 'query' }, new Map()).prompt(null), 'Q: ');
  assert.equal(new Pooling(block, new Map()).prompt('query'), 'Q: ');
  assert.throws(() => new Pooling(block, new Map()).prompt('other'), /expected document, query, found other/);
});

for (const block of [{ poolingMode: 'none' }, { poolingMode: 'mean', normalize: 'l1' }, { poolingMode: 'mean', projections: [{ weightTensor: 'w', activation: 'gelu_erf' }] }, { poolingMode: 'mean', projections: [{ weightTensor: 'w', normTensor: 'n' }] }]) {
  test(`what browsers do not compute is refused: ${JSON.stringify(block)}`, () => {
    assert.throws(() => new Pooling(block, new Map()), { code: 'format' });
  });
}
