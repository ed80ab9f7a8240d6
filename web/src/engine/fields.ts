// What the fields of requests must be. Names that nobody serves are treated as Python's server treats them.
import unservedFields from '../../../api/rdrr/serve/unserved_fields.json' with { type: 'json' };
import { RdrrError } from '../errors.js';
import { inputsOf, schemaOf, stopsOf, type AnyRequest, type ChatRequest, type CompletionRequest, type EmbeddingRequest, type TextRequest } from './requests.js';

const MOST_TEXTS = 16;
const MOST_TOP = 20;
const ALIKE = 0.85; // how alike the name of an unknown field and that of a field are where it is misspelt
const MOST_UNKNOWN = 32;
const LONGEST = 64;

type Check = readonly [expected: string, holds: (value: unknown) => boolean];
/** A check of each field of a request; null for those that are checked elsewhere, or may be anything. */
type Checks<Request> = { readonly [Name in keyof Required<Request>]: Check | null };

const whole = (least: number, most: number, expected = `an integer of ${least} to ${most}`): Check =>
  [expected, (value) => value == null || (Number.isInteger(value) && (value as number) >= least && (value as number) <= most)];
const COUNT = whole(1, Infinity, 'an integer of 1 or more');
const TOP = whole(0, MOST_TOP);

const unchecked = <Name extends string>(...names: readonly Name[]): Record<Name, null> => Object.fromEntries(names.map((name) => [name, null])) as Record<Name, null>;

const OF_TEXTS: Checks<Omit<TextRequest, 'logprobs'>> = {
  ...unchecked('model', 'stream', 'stream_options', 'seed', 'response_format', 'context_shift'),
  ...unchecked('temperature', 'top_k', 'top_p', 'min_p', 'repeat_penalty', 'frequency_penalty', 'presence_penalty', 'logit_bias'),
  n: whole(1, MOST_TEXTS),
  stop: ['strings that are not empty', (stop) => stopsOf({ stop } as TextRequest).every((text) => typeof text === 'string' && text !== '')],
  max_tokens: COUNT,
};

const CHAT: Checks<ChatRequest> = {
  ...OF_TEXTS,
  ...unchecked('tools', 'reasoning_effort', 'chat_template_kwargs'),
  messages: ['a list of messages', (value) => Array.isArray(value) && value.length > 0],
  max_completion_tokens: COUNT,
  logprobs: ['true or false', (value) => value == null || typeof value === 'boolean'],
  top_logprobs: TOP,
  tool_choice: ['auto or none', (value) => [undefined, null, 'auto', 'none'].includes(value as null)],
};

const COMPLETION: Checks<CompletionRequest> = {
  ...OF_TEXTS,
  prompt: ['a text or token ids', (value) => typeof value === 'string' || Array.isArray(value)],
  logprobs: TOP,
};

const isText = (text: unknown): boolean => typeof text === 'string' || Array.isArray(text);
const EMBEDDING: Checks<EmbeddingRequest> = {
  ...unchecked('model', 'prompt_name', 'truncate'),
  input: ['texts, or ids of texts, at least one', (value) => ((texts) => texts.length > 0 && texts.every(isText))(inputsOf(value as string[]))],
  encoding_format: ['float', (value) => value === undefined || value === 'float'],
  dimensions: COUNT,
};

const CHECKS: Readonly<Record<AnyRequest['kind'], Readonly<Record<string, Check | null>>>> = { chat: CHAT, completion: COMPLETION, embedding: EMBEDDING };

const unserved = unservedFields as { refused: Record<string, readonly unknown[]>; grammars: readonly string[]; harmless: readonly string[] };
/** Fields that change the answer and are not served, with the values that change nothing. Python's server serves the last three. */
const REFUSED: Readonly<Record<string, readonly unknown[]>> = {
  ...unserved.refused,
  ...Object.fromEntries(unserved.grammars.map((name) => [name, ['', [], {}]])),
  echo: [false],
  suffix: [''],
  continue_final_message: [false],
};

/**
 * Check the fields of a request: an error names one that has a wrong type, that would change the answer and is not served, or
 * whose name is nearly that of a field.
 *
 * @returns The names of the fields that are ignored.
 */
export function checkRequest({ kind, request }: AnyRequest): string[] {
  const fields: Record<string, unknown> = { ...request };
  const checks = CHECKS[kind];
  for (const [name, check] of Object.entries(checks)) {
    if (check && !check[1](fields[name])) throw refusal(name, `expected ${check[0]}, found ${JSON.stringify(fields[name])}`);
  }
  if (kind !== 'embedding') schemaOf(request);
  const others = Object.keys(fields).filter((name) => !Object.hasOwn(checks, name) && fields[name] != null);
  for (const name of others) checkUnserved(name, fields[name]);
  const ignored = others.filter((name) => !Object.hasOwn(REFUSED, name) && !unserved.harmless.includes(name)).slice(0, MOST_UNKNOWN);
  for (const name of ignored) {
    const nearest = Object.keys(checks).find((known) => likeness(known, name.slice(0, LONGEST)) >= ALIKE);
    if (nearest) throw refusal(name, `unknown field; did you mean ${nearest}?`);
  }
  return ignored;
}

function checkUnserved(name: string, value: unknown): void {
  const harmless = Object.hasOwn(REFUSED, name) ? REFUSED[name]! : [value];
  if (harmless.some((each) => JSON.stringify(each) === JSON.stringify(value))) return;
  throw refusal(name, `it is not served${unserved.grammars.includes(name) ? '; state `response_format`' : ''}`);
}

function refusal(name: string, fault: string): RdrrError {
  return new RdrrError('usage', `${name}: ${fault}`);
}

/** Return how alike two names are, from 0 to 1, by the measure of Ratcliff and Obershelp. */
function likeness(name: string, other: string): number {
  return (2 * shared(name, other)) / (name.length + other.length);
}

/** Return how many characters two names share: their longest common part, and what is shared before and behind it. */
function shared(name: string, other: string): number {
  for (let size = Math.min(name.length, other.length); size; size -= 1) {
    for (let at = 0; at + size <= name.length; at += 1) {
      const place = other.indexOf(name.slice(at, at + size));
      if (place >= 0) return size + shared(name.slice(0, at), other.slice(0, place)) + shared(name.slice(at + size), other.slice(place + size));
    }
  }
  return 0;
}
