import { RdrrError } from '../errors.js';
import type { SamplingOptions } from '../sampling/options.js';
import type { ChatMessage, Delta, Tool } from '../text/index.js';

/** What requests for text have in common: OpenAI's fields, and `top_k`, `min_p` and `repeat_penalty`. */
export interface TextRequest extends Omit<SamplingOptions, 'seed'> {
  model?: string;
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
  /** Texts for the same prompt; each after the first has the seed plus its number. */
  n?: number | null;
  stop?: string | readonly string[] | null;
  seed?: number | null;
  max_tokens?: number | null;
  /** JSON, perhaps by a schema; the engine needs a grammar library for it. */
  response_format?: ResponseFormat | null;
  /** In a chat whether log-probabilities are recorded; in a completion how many of the most probable tokens are, too. */
  logprobs?: boolean | number | null;
  /** How many first ids are kept when the context is full: the older half of the others is dropped, and the text goes on. */
  context_shift?: boolean | number | null;
}

/** The form of an answer, as in OpenAI's API. */
export type ResponseFormat = { type: 'text' | 'json_object' } | { type: 'json_schema'; json_schema: { schema: object; name?: string; strict?: boolean | null } };

export interface ChatRequest extends TextRequest {
  messages: readonly ChatMessage[];
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  /** How many of the most probable tokens are recorded besides each token of the answer. */
  top_logprobs?: number | null;
  tools?: readonly Tool[];
  tool_choice?: 'auto' | 'none';
  /** A variable of the chat template, where it reads it. */
  reasoning_effort?: string | null;
  /** Further variables of the chat template, such as `enable_thinking`. */
  chat_template_kwargs?: Record<string, unknown>;
}

export interface CompletionRequest extends TextRequest {
  /** A text, or token ids. */
  prompt: string | readonly number[];
  logprobs?: number | null;
}

/** A request for embeddings, with OpenAI's fields and two of Python's `embed`. */
export interface EmbeddingRequest {
  model?: string;
  /** Texts, or token ids of texts. */
  input: string | readonly string[] | readonly number[] | readonly (readonly number[])[];
  encoding_format?: 'float';
  /** The first elements of each vector, scaled to the norm 1. */
  dimensions?: number | null;
  /** Name of a prompt of the package that is put before each text; its default one if none is given. */
  prompt_name?: string | null;
  /** Whether the end of a text that does not fit the context is left out; such texts are refused otherwise. */
  truncate?: boolean;
}

/** A request for texts with its kind, as it also goes to a worker. */
export type AnyTextRequest = { kind: 'chat'; request: ChatRequest } | { kind: 'completion'; request: CompletionRequest };
export type AnyRequest = AnyTextRequest | { kind: 'embedding'; request: EmbeddingRequest };

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Tokens that were in the key-value cache already. */
  prompt_tokens_details: { cached_tokens: number };
  /** Tokens per second of the prompt and of the text; 0 where nothing was measured. */
  speed: { prefill: number; decode: number };
}

/** How a text ended: by an end, a stop string or calls of tools, or since there was room for no more. */
export type Finish = 'stop' | 'tool_calls' | 'length' | null;

/** A token with its log-probability under the model, as OpenAI's API has it in chats. */
export interface TokenEntry {
  token: string;
  logprob: number;
  bytes: number[];
}

/** A token of an answer, and the most probable tokens in its place. */
export interface Logprob extends TokenEntry {
  top_logprobs: TokenEntry[];
}

/** A part of a text. The last one of a text has its end, the last of a request the usage. */
export interface TextEvent {
  index: number;
  text: string;
  ids: number[];
  finish: Finish;
  /** What a chat's answer has read of its text. */
  deltas?: readonly Delta[];
  /** The log-probabilities of the ids, where they were asked for. */
  logprobs?: readonly Logprob[];
  usage?: Usage;
}

/** The embedding of a text, and how many tokens the text has. */
export interface VectorEvent {
  index: number;
  vector: Float32Array;
  tokens: number;
}

export type AnyEvent = TextEvent | VectorEvent;

const DEFAULT_TOKENS = 16; // of a completion, as in OpenAI's API
const SAMPLING = ['top_k', 'top_p', 'min_p', 'repeat_penalty', 'frequency_penalty', 'presence_penalty', 'logit_bias'] as const;

/** Return how many of the most probable tokens are recorded; undefined if no log-probabilities were asked for. */
export function topOf({ kind, request }: AnyTextRequest): number | undefined {
  if (kind === 'completion') return request.logprobs ?? undefined;
  return request.logprobs ? (request.top_logprobs ?? 0) : undefined;
}

/** Return the texts of a request for embeddings, or their ids. */
export function inputsOf(input: EmbeddingRequest['input']): readonly (string | readonly number[])[] {
  if (typeof input === 'string') return [input];
  return typeof input?.[0] === 'number' ? [input as readonly number[]] : ((input ?? []) as readonly string[]);
}

export function stopsOf({ stop }: TextRequest): readonly string[] {
  return stop == null ? [] : typeof stop === 'string' ? [stop] : stop;
}

/** Return how tokens are chosen for a text of a request; temperature 1 is the default of OpenAI's API. */
export function samplingOf(request: TextRequest, copy: number): SamplingOptions {
  const stated = Object.fromEntries(SAMPLING.map((name) => [name, request[name] ?? undefined]));
  return { ...stated, temperature: request.temperature ?? 1, seed: request.seed == null ? undefined : request.seed + copy };
}

/** Return the JSON schema of an answer; null if it is free. */
export function schemaOf({ response_format: format }: TextRequest): object | null {
  if (format == null || format.type === 'text') return null;
  if (format.type === 'json_object') return { type: 'object' };
  const schema = format.type === 'json_schema' ? format.json_schema?.schema : null;
  if (schema && typeof schema === 'object') return schema;
  throw new RdrrError('usage', `response_format: expected json_object, or json_schema with a schema, found ${JSON.stringify(format)}`);
}

/** Return how many first ids a context shift keeps; undefined if the context does not shift. */
export function keptOf({ context_shift: kept }: TextRequest): number | undefined {
  return kept == null || kept === false ? undefined : Number(kept);
}

/** Return the most new tokens of each text; undefined for as many as the context has room for. */
export function tokensOf({ kind, request }: AnyTextRequest): number | undefined {
  if (kind === 'completion') return request.max_tokens ?? DEFAULT_TOKENS;
  return request.max_completion_tokens ?? request.max_tokens ?? undefined;
}
