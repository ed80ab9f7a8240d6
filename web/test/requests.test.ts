// Requests whose fields are refused by name, beside those that are served.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { checkRequest } from '../src/engine/fields.js';
import type { AnyRequest } from '../src/engine/requests.js';

const SERVED = {
  chat: { messages: [{ role: 'user', content: 'a' }], tool_choice: 'none', logprobs: true, top_logprobs: 20, stop: ['b'], n: 16, max_tokens: 1 },
  completion: { prompt: [1], logprobs: 0, stop: 'b', response_format: { type: 'json_object' } },
  embedding: { input: [1, 2], dimensions: 1, encoding_format: 'float' },
};
const REFUSED: Record<keyof typeof SERVED, Record<string, unknown>> = {
  chat: { messages: [], tool_choice: 'required', logprobs: 2, top_logprobs: 21, stop: ['b', ''], n: 17, max_completion_tokens: 0, functions: [{}], prompt: 'a', temprature: 1, guided_json: {a: 1} },
  completion: { prompt: null, logprobs: 21, stop: '', best_of: 2, response_format: { type: 'xml' }, max_tokens: 1.5, echo: true, max_token: 1 },
  embedding: { input: [], dimensions: 0, encoding_format: 'base64', prompt_names: 'a' },
};

for (const [kind, request] of Object.entries(SERVED)) {
  test(`each field of a request of the kind ${kind} that is wrong is refused by its name`, () => {
    const check = (fields: object): string[] => checkRequest({ kind, request: { ...request, ...fields } } as AnyRequest);
    check({});
    for (const [name, value] of Object.entries(REFUSED[kind as keyof typeof SERVED])) {
      assert.throws(() => check({ [name]: value }), { code: 'usage', message: new RegExp(`^${name}: (expected|it is not served|unknown field; did you mean)`) });
    }
  });
}

test('fields that nobody serves are named, and those that change no answer are not', () => {
  const request = { prompt: [1], max_new_tokens: 5, best_of: 1, echo: false, suffix: null, guided_json: {}, user: 'a', other: 0, seed: null };
  assert.deepEqual(checkRequest({ kind: 'completion', request } as AnyRequest), ['max_new_tokens', 'other']);
});
