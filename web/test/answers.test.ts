// The vectors that Python's tests read too: tests/data/vectors/answers.json.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Answer, type Delta } from '../src/text/answers.js';
import type { Schemas } from '../src/text/bodies.js';
import { recognise } from '../src/text/formats.js';
import { LiteralReader } from '../src/text/literals.js';

interface Case { about: string; template: string; prompt: string; tools: Schemas | null; forced: string | null; text: string; parts: object[] }

const root = join(import.meta.dirname, '../../..');
const read = (file: string): string => readFileSync(join(root, file), 'utf8');
// Browsers force no call.
const cases = (JSON.parse(read('tests/data/vectors/answers.json')) as { cases: Case[] }).cases.filter(({ forced }) => forced === null);

type Part = { kind: 'content' | 'reasoning'; text: string } | { kind: 'call'; name: string; arguments: string };

function partOf(delta: Delta): Part {
  if ('content' in delta) return { kind: 'content', text: delta.content };
  if ('reasoning_content' in delta) return { kind: 'reasoning', text: delta.reasoning_content };
  const [call] = delta.tool_calls;
  return { kind: 'call', ...(call!.function as { name: string; arguments: string }) };
}

function partsOf({ template, tools, prompt }: Case, pieces: readonly string[]): object[] {
  const answer = new Answer(recognise(template), { schemas: tools, prompt });
  const parts = joined([...pieces.flatMap((piece) => answer.push(piece)), ...answer.end()].map(partOf));
  assert.equal(answer.hasCalls, parts.some(({ kind }) => kind === 'call'));
  return parts.map((part) => (part.kind === 'call' ? { ...part, arguments: JSON.parse(part.arguments) as object } : part));
}

function joined(parts: readonly Part[]): Part[] {
  const result: Part[] = [];
  for (const part of parts) {
    const last = result.at(-1);
    if (last && last.kind !== 'call' && last.kind === part.kind) result[result.length - 1] = { ...last, text: last.text + part.text };
    else result.push(part);
  }
  return result;
}

for (const given of cases) {
  test(`${given.about}: the parts are those of Python's, whole and in any pieces`, () => {
    const { text, parts } = given;
    assert.deepEqual(partsOf(given, [text]), parts);
    for (const size of [1, 2, 3, 7]) {
      const pieces = Array.from({ length: Math.ceil(text.length / size) }, (_, at) => text.slice(at * size, (at + 1) * size));
      assert.deepEqual(partsOf(given, pieces), parts);
    }
  });
}

test('large whole numbers of a call keep their digits', () => {
  const reader = new Answer(recognise('<tool_call>'), { schemas: { f: {} } });
  const parts = [...reader.push('<tool_call>{"name": "f", "arguments": {"id": 12345678901234567890}}</tool_call>'), ...reader.end()].map(partOf);
  assert.deepEqual(parts, [{ kind: 'call', name: 'f', arguments: '{"id": 12345678901234567890}' }]);
});

for (const text of ['', '{', '{"a"', '{"a": }', '[1, 2', '"open', '['.repeat(100), '{a: {b: 1}']) {
  test(`a value that does not end is an error: ${text.slice(0, 12)}`, () => {
    assert.throws(() => new LiteralReader(text).value(), /missing|end|deep/);
    assert.deepEqual(new LiteralReader('{"a": [1, "x"]}').value(), { a: [1, 'x'] });
  });
}

test('a long answer of open marks takes no long time', () => {
  const reader = new Answer(recognise('<tool_call>\n<function='), { schemas: {} });
  reader.push('<tool_call>');
  for (let at = 0; at < 20_000; at += 1) reader.push('<parameter=a>');
  const parts = joined(reader.end().map(partOf));
  assert.equal(parts.length, 1);
});
