// The vectors that Python's tests read too: tests/data/vectors/text.json.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import type { ChatMessage, Tool } from '../src/text/messages.js';
import { Text } from '../src/text/index.js';
import { ChatTemplate } from '../src/text/template.js';

interface Stream { prompt: number[]; ids: number[]; stop: string[]; pieces: string[]; stopped_by: string | null }
interface Chat { template: string; messages: ChatMessage[]; tools?: Tool[]; variables?: Record<string, unknown>; ids: number[] | null; ends: number[] }
interface Kind { tokenizer: object; ids: number[][]; streams: Stream[]; chats: Chat[] }
interface Snippet { template: string; text: string | null }
interface Vectors { snippets: Snippet[]; snippets_given: { messages: ChatMessage[]; variables: Record<string, unknown> }; templates: Record<string, string>; tokens: Record<string, string>; ends: number[]; texts: string[]; kinds: Record<string, Kind> }

const file = join(import.meta.dirname, '../../../tests/data/vectors/text.json');
const vectors = JSON.parse(readFileSync(file, 'utf8')) as Vectors;

function opened(kind: Kind, template: string | null = null): Text {
  const { ends, tokens } = vectors;
  return new Text({ tokenizer: JSON.stringify(kind.tokenizer), config: JSON.stringify(tokens), template, ends });
}

// The manifest says that every prompt begins with an id.
function stated(kind: Kind): Text {
  return new Text({ tokenizer: JSON.stringify(kind.tokenizer), config: null, template: null, stated: { addBosToken: true, bosTokenId: 1 } });
}

for (const [name, kind] of Object.entries(vectors.kinds)) {
  test(`${name}: texts have the ids that Python's library gives`, () => {
    const text = opened(kind);
    for (const [at, given] of vectors.texts.entries()) assert.deepEqual(text.encode(given), kind.ids[at], JSON.stringify(given));
  });

  test(`${name}: a stream gives the pieces of Python's, up to the stop string`, () => {
    const text = opened(kind);
    for (const { prompt, ids, stop, pieces, stopped_by: stoppedBy } of kind.streams) {
      const stream = text.stream(prompt, stop);
      const given = [...ids.map((id) => stream.push([id])), stream.end()];
      assert.deepEqual([given, stream.stoppedBy], [pieces, stoppedBy], JSON.stringify({ prompt, ids, stop }));
    }
  });

  test(`${name}: all ids at once have the text of the stream`, () => {
    const text = opened(kind);
    for (const { prompt, ids, stop, pieces } of kind.streams) {
      if (!prompt.length && !stop.length) assert.equal(text.decode(ids), pieces.join(''));
    }
  });

  test(`${name}: conversations have the ids of Python's, and no message a control token`, () => {
    for (const { template, messages, tools, variables, ids, ends } of kind.chats) {
      const { chat } = opened(kind, vectors.templates[template]!);
      assert.ok(chat);
      const options = { ...(tools && { tools }), ...(variables && { variables }) };
      const encode = (): number[] => chat.encode(messages, options);
      if (ids === null) assert.throws(encode, { code: 'usage' });
      else assert.deepEqual(encode(), ids, JSON.stringify({ template, messages }));
      assert.deepEqual(chat.ends, ends);
    }
  });
}

const [plain] = Object.values(vectors.kinds) as [Kind];
const refused = JSON.parse(readFileSync(join(file, '../refused_tokenizers.json'), 'utf8')) as { name: string; parts: object }[];

for (const { name, parts } of refused) {
  test(`a tokenizer with ${name} is refused by that name`, () => {
    const open = (tokenizer: object): Text => new Text({ tokenizer: JSON.stringify(tokenizer), config: null, template: null });
    assert.ok(open(plain.tokenizer));
    assert.throws(() => open({ ...plain.tokenizer, ...parts }), (error: Error) => error.message.includes(name));
  });
}

test('a text with half of a character is refused, and one with all of it is not', () => {
  const text = opened(plain);
  assert.ok(text.encode('\ud83d\ude42').length);
  assert.throws(() => text.encode('\ud83d'), { code: 'usage' });
});

test('a text that is cut has the ids that every prompt begins and ends with, and no more than its limit', () => {
  const kinds = Object.values(vectors.kinds).flatMap((kind) => [opened(kind), stated(kind)]);
  for (const text of kinds) {
    const whole = text.encode('a text that is long enough to be cut');
    const [first, last] = [text.encode('a'), text.encode('b')].map((ids) => [ids[0], ids.at(-1)]) as [number[], number[]];
    const cut = text.encode('a text that is long enough to be cut', 5);
    assert.equal(cut.length, Math.min(5, whole.length));
    if (first[0] === last[0]) assert.equal(cut[0], first[0]);
    if (first[1] === last[1]) assert.equal(cut.at(-1), first[1]);
    assert.deepEqual(text.encode('a', 50), text.encode('a'));
  }
});

test('an answer has its reasoning and calls apart, and its marks are special tokens where the vocabulary says so', () => {
  const tokenizer = structuredClone(plain.tokenizer) as { added_tokens: { content: string; special: boolean; id: number }[] };
  const next = Math.max(...Object.values(vectors.kinds)[0]!.ids.flat()) + 1000;
  for (const [at, content] of ['<think>', '</think>', '<tool_call>', '</tool_call>'].entries()) {
    tokenizer.added_tokens.push({ ...tokenizer.added_tokens[1]!, content, id: next + at, special: true });
  }
  const template = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}<think></think><tool_call>{% if add_generation_prompt %}<|user|><think>\n{% endif %}";
  const text = new Text({ tokenizer: JSON.stringify(tokenizer), config: JSON.stringify(vectors.tokens), template });
  const prompt = text.chat!.encode([{ role: 'user', content: 'hi' }]);
  const tools: Tool[] = [{ type: 'function', function: { name: 'f' } }];
  const written = 'so I call</think>Here:\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><|end|>';
  const read = (given: readonly Tool[]): object[] => {
    const [stream, answer] = [text.stream(prompt, [], text.chat!.shows), text.chat!.answer(prompt, given)];
    const deltas = text.encode(written).flatMap((id) => answer.push(stream.push([id])));
    return [...deltas, ...answer.push(stream.end()), ...answer.end()];
  };
  const joined = (deltas: object[], key: string): string => deltas.map((delta) => (delta as Record<string, string>)[key] ?? '').join('');
  const deltas = read(tools);
  assert.equal(joined(deltas, 'reasoning_content'), 'so I call');
  assert.equal(joined(deltas, 'content'), 'Here:');
  const calls = deltas.flatMap((delta) => ('tool_calls' in delta ? delta.tool_calls as { function: object }[] : []));
  assert.deepEqual(calls.map((call) => call.function), [{ name: 'f', arguments: '{"a": 1}' }]);
  assert.equal(joined(read([]), 'content'), 'Here:\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>');
});

test('small templates have the text that Python gives, or are refused', () => {
  const { messages, variables } = vectors.snippets_given;
  const refused: string[] = [];
  const wrong: object[] = [];
  for (const { template, text } of vectors.snippets) {
    let rendered: string | null = null;
    try {
      rendered = new ChatTemplate(template, {}).render(messages, { variables });
    } catch (error) {
      assert.ok(['format', 'usage'].includes((error as { code: string }).code), `${template}: ${String(error)}`);
    }
    if (rendered === null) refused.push(template);
    else if (rendered !== text) wrong.push({ template, rendered, text });
  }
  assert.deepEqual(wrong, []);
  assert.ok(refused.length < vectors.snippets.length / 6, refused.join('\n'));
});
