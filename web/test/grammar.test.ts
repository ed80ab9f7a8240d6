import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { test } from 'node:test';
import { Grammars, type GrammarLibrary } from '../src/text/grammar.js';
import { Text } from '../src/text/index.js';

const root = join(import.meta.dirname, '../..');
const { kinds, tokens, ends } = JSON.parse(readFileSync(join(root, '../tests/data/vectors/text.json'), 'utf8'));
const NAMES = ['byte-level, Llama 3', 'byte-level, GPT-2', 'SentencePiece, Llama 2', 'Gemma'];
const SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, size: { type: 'integer' } },
  required: ['name', 'size'],
  additionalProperties: false,
};

// The published script is written for browsers and for CommonJS.
async function library(): Promise<GrammarLibrary> {
  const code = readFileSync(join(root, 'node_modules/@mlc-ai/web-xgrammar/lib/index.js'), 'utf8');
  const exports = {};
  new Function('exports', 'module', 'require', '__filename', code)(exports, { exports }, createRequire(import.meta.url), import.meta.filename);
  return exports as GrammarLibrary;
}

const has = (mask: Uint32Array, id: number): boolean => Boolean((mask[id >> 5]! >>> (id & 31)) & 1);

for (const name of NAMES) {
  test(`${name}: a schema lets its texts follow, and nothing else`, async () => {
    const text = new Text({ tokenizer: JSON.stringify(kinds[name].tokenizer), config: JSON.stringify(tokens), template: null, ends });
    const { vocabulary } = text;
    const grammars = await Grammars.open(library, vocabulary, vocabulary.tokens.length, ends);
    const special = vocabulary.tokens.flatMap((token, id) => (token || ends.includes(id) ? [] : [id]));
    const constraint = await grammars.constraint(SCHEMA);
    const space = name.startsWith('byte-level') ? 'Ġ' : '▁';
    const ids = [...'{"name": "n 1", "size": 12}'].map((character) => vocabulary.tokens.indexOf(character === ' ' ? space : character));
    for (const id of ids) {
      const mask = await constraint.mask();
      assert.ok(has(mask, id), `${id} of ${ids}: ${vocabulary.tokens[id]}`);
      for (const other of [...special, ...ends]) assert.ok(!has(mask, other), `special token ${other}`);
      constraint.accept(id);
    }
    const last = await constraint.mask();
    assert.ok(ends.some((id: number) => has(last, id)));
    assert.throws(() => constraint.accept(ids[0]!), /does not allow/);
    constraint.close();
  });
}

test('what is no schema is refused, and the next schema is read', async () => {
  const vocabulary = { tokens: ['', '{', '}', '"', '1'], kind: 'raw' as const };
  const grammars = await Grammars.open(library, vocabulary, 5, [0]);
  const silent = console.error;
  console.error = () => {};
  await assert.rejects(grammars.constraint({ type: 'nothing' }), /response_format: the grammar library does not read the schema/);
  console.error = silent;
  const mask = await (await grammars.constraint({ type: 'integer' })).mask();
  assert.deepEqual([...mask], [1 << 4]);
});
