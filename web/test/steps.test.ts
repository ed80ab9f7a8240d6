// The vectors of single steps of tokenizers, which Python's library made: tests/data/vectors/tokenizer_steps.json.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Tokenizer } from '@huggingface/tokenizers';
import { prepared, readFile } from '../src/text/prepare.js';
import { Tokenizer as Ours } from '../src/text/tokenizer.js';

interface Steps<Made> { [name: string]: { step: object; made: Made[] } }
interface Vectors { texts: string[]; normalizers: Steps<string>; pre_tokenizers: Steps<string[]>; words: string[]; tokenizers: Steps<number[]> }
interface Library {
  normalizer: { normalize(text: string): string };
  pre_tokenizer: { pre_tokenize(text: string, options: object): string[] };
}

const vectors = JSON.parse(readFileSync('../tests/data/vectors/tokenizer_steps.json', 'utf8')) as Vectors;

function opened(steps: object): Library {
  const file = { model: { type: 'WordLevel', vocab: { a: 0 }, unk_token: 'a' }, ...steps };
  return new Tokenizer(prepared(readFile(JSON.stringify(file))), {}) as unknown as Library;
}

for (const [name, { step, made }] of Object.entries(vectors.normalizers)) {
  test(`the normalizer ${name} makes of texts what it makes in Python`, () => {
    const { normalizer } = opened({ normalizer: step });
    for (const [at, text] of vectors.texts.entries()) assert.equal(normalizer.normalize(text), made[at], JSON.stringify(text));
  });
}

for (const [name, { step, made }] of Object.entries(vectors.pre_tokenizers)) {
  test(`the pre-tokenizer ${name} makes of texts what it makes in Python`, () => {
    const { pre_tokenizer: pre } = opened({ pre_tokenizer: step });
    for (const [at, text] of vectors.texts.entries()) {
      assert.deepEqual(pre.pre_tokenize(text, { section_index: 0 }).filter(Boolean), made[at], JSON.stringify(text));
    }
  });
}

for (const [name, { step, made }] of Object.entries(vectors.tokenizers)) {
  test(`the tokenizer ${name} gives texts the ids that they have in Python`, () => {
    const tokenizer = new Ours(JSON.stringify(step));
    for (const [at, text] of vectors.words.entries()) assert.deepEqual(tokenizer.encode(text), made[at], JSON.stringify(text));
  });
}
