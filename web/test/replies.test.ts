// Answers in OpenAI's form, of the parts that an engine yields.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Answers } from '../src/engine/answers.js';
import type { AnyEvent, Logprob, TextEvent, Usage } from '../src/engine/requests.js';

const usage: Usage = { prompt_tokens: 2, completion_tokens: 3, total_tokens: 5, prompt_tokens_details: { cached_tokens: 0 }, speed: { prefill: 1, decode: 1 } };
const entry = (token: string): Logprob => ({ token, logprob: -1, bytes: [], top_logprobs: [{ token: 'x', logprob: -2, bytes: [] }] });
const call = { index: 0, id: 'call_1', type: 'function', function: { name: 'f', arguments: '{}' } } as const;

const PARTS: TextEvent[] = [
  { index: 0, text: 'ab', ids: [1, 2], finish: null, deltas: [{ reasoning_content: 'ab' }], logprobs: [entry('a'), entry('b')] },
  { index: 0, text: '', ids: [3], finish: null, deltas: [], logprobs: [entry('c')] },
  { index: 0, text: 'c', ids: [], finish: 'tool_calls', deltas: [{ content: 'c' }, { tool_calls: [call] }] },
  { index: 1, text: '', ids: [], finish: 'length', deltas: [], usage },
];

class Parts extends Answers {
  readonly model = { id: 'm' };

  async *run(): AsyncGenerator<AnyEvent> {
    yield* PARTS;
  }
}

const { chat, completions } = new Parts();
const messages = [{ role: 'user', content: 'a' }];

test('a whole chat has the parts of its stream together', async () => {
  const { choices, object, ...rest } = await chat.completions.create({ messages });
  const { index: _, ...made } = call;
  const tops = [entry('a'), entry('b'), entry('c')];
  assert.deepEqual(choices, [
    {
      index: 0,
      message: { role: 'assistant', reasoning_content: 'ab', content: 'c', tool_calls: [made], token_ids: [1, 2, 3] },
      logprobs: { content: tops, refusal: null },
      finish_reason: 'tool_calls',
    },
    { index: 1, message: { role: 'assistant', content: '', token_ids: [] }, logprobs: null, finish_reason: 'length' },
  ]);
  assert.deepEqual([object, rest.model, rest.usage], ['chat.completion', 'm', usage]);
});

test('a stream of a chat begins each text with the role, and ends with the usage if it was asked for', async () => {
  for (const include_usage of [true, false]) {
    const chunks = [];
    for await (const chunk of await chat.completions.create({ messages, stream: true, stream_options: { include_usage } })) chunks.push(chunk);
    const roles = chunks.flatMap(({ choices }) => choices.filter(({ delta }) => delta.role).map(({ index }) => index));
    assert.deepEqual(roles, [0, 1]);
    assert.deepEqual(new Set(chunks.map(({ object }) => object)), new Set(['chat.completion.chunk']));
    assert.deepEqual(chunks.flatMap(({ choices }) => choices.flatMap(({ delta }) => delta.tool_calls ?? [])), [call]);
    assert.deepEqual(chunks.filter((chunk) => chunk.usage).length, Number(include_usage));
  }
});

test('log-probabilities of a completion have the offsets of the whole text, in a stream too', async () => {
  const whole = await completions.create({ prompt: 'a', logprobs: 1 });
  assert.deepEqual(whole.choices[0], {
    index: 0,
    text: 'abc',
    token_ids: [1, 2, 3],
    logprobs: { tokens: ['a', 'b', 'c'], token_logprobs: [-1, -1, -1], top_logprobs: [{ x: -2 }, { x: -2 }, { x: -2 }], text_offset: [0, 1, 2] },
    finish_reason: 'tool_calls',
  });
  const offsets = [];
  for await (const { choices } of await completions.create({ prompt: 'a', logprobs: 1, stream: true })) offsets.push(...(choices[0]?.logprobs?.text_offset ?? []));
  assert.deepEqual(offsets, [0, 1, 2]);
});
