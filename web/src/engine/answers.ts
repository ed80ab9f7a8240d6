import type { ToolCall, ToolCallDelta } from '../text/index.js';
import type { AnyEvent, AnyRequest, ChatRequest, CompletionRequest, EmbeddingRequest, Finish, Logprob, TextEvent, TextRequest, Usage, VectorEvent } from './requests.js';

interface Head<Name extends string> {
  id: string;
  object: Name;
  created: number;
  model: string;
}

export interface ChatMessageAnswer {
  role: 'assistant';
  content: string;
  reasoning_content?: string;
  tool_calls?: ToolCall[];
  /** The ids of the text: a next request with them continues from the cache, whatever the text hides. */
  token_ids: number[];
}

/** Log-probabilities of a chat, where they were asked for. */
export interface ChatLogprobs {
  content: Logprob[];
  refusal: null;
}

/** Log-probabilities of a completion, where they were asked for. */
export interface CompletionLogprobs {
  tokens: string[];
  token_logprobs: number[];
  top_logprobs: Record<string, number>[];
  text_offset: number[];
}

export interface ChatCompletion extends Head<'chat.completion'> {
  choices: { index: number; message: ChatMessageAnswer; logprobs: ChatLogprobs | null; finish_reason: Finish }[];
  usage: Usage;
}

export type ChatDelta = Partial<Omit<ChatMessageAnswer, 'tool_calls'> & { tool_calls: readonly ToolCallDelta[] }>;

export interface ChatChunk extends Head<'chat.completion.chunk'> {
  choices: { index: number; delta: ChatDelta; logprobs: ChatLogprobs | null; finish_reason: Finish }[];
  usage?: Usage;
}

interface TextChoice {
  index: number;
  text: string;
  token_ids: number[];
  logprobs: CompletionLogprobs | null;
  finish_reason: Finish;
}

export interface Completion extends Head<'text_completion'> {
  choices: TextChoice[];
  usage: Usage;
}

export type CompletionChunk = Omit<Completion, 'usage'> & { usage?: Usage };

export interface EmbeddingList {
  object: 'list';
  model: string;
  data: { object: 'embedding'; index: number; embedding: number[] }[];
  usage: { prompt_tokens: number; total_tokens: number };
}

export interface CallOptions {
  /** Aborts the call: it throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** The part of OpenAI's client that makes texts and embeddings, over anything that yields their parts. */
export abstract class Answers {
  readonly chat = { completions: new Texts<ChatRequest, ChatChunk, ChatCompletion>(this, 'chat') };
  readonly completions = new Texts<CompletionRequest, CompletionChunk, Completion>(this, 'completion');
  readonly embeddings = new Embeddings(this);

  abstract readonly model: { readonly id: string };

  /** Yield the parts of the texts of a request, or its embeddings. */
  abstract run(request: AnyRequest, options: CallOptions): AsyncIterable<AnyEvent>;

  /** Return the embeddings of texts, in their order. */
  async embed(texts: string | readonly string[], { signal, ...options }: CallOptions & EmbedOptions = {}): Promise<Float32Array[]> {
    return (await this.embeddings.vectors({ input: texts, ...options }, { signal })).map(({ vector }) => vector);
  }
}

class Texts<Request extends TextRequest, Chunk, Whole> {
  constructor(
    private readonly answers: Answers,
    private readonly kind: keyof typeof KINDS,
  ) {}

  create(request: Request & { stream: true }, options?: CallOptions): Promise<AsyncIterable<Chunk>>;
  create(request: Request & { stream?: false | null }, options?: CallOptions): Promise<Whole>;
  async create(request: Request, options: CallOptions = {}): Promise<AsyncIterable<Chunk> | Whole> {
    const { object, prefix, choicesOf } = KINDS[this.kind];
    const id = prefix + Array.from(crypto.getRandomValues(new Uint32Array(3)), (word) => word.toString(36)).join('');
    const head = { id, object, created: Math.floor(Date.now() / 1000), model: this.answers.model.id };
    const events = this.answers.run({ kind: this.kind, request } as unknown as AnyRequest, options) as AsyncIterable<TextEvent>;
    if (!request.stream) return { ...head, ...(await joined(choicesOf, events)) } as Whole;
    const chunk = this.kind === 'chat' ? { ...head, object: 'chat.completion.chunk' } : head;
    return chunks(chunk, choicesOf, events, Boolean(request.stream_options?.include_usage)) as AsyncIterable<Chunk>;
  }
}

type EmbedOptions = Pick<EmbeddingRequest, 'prompt_name' | 'truncate' | 'dimensions'>;

class Embeddings {
  constructor(private readonly answers: Answers) {}

  async create(request: EmbeddingRequest, options: CallOptions = {}): Promise<EmbeddingList> {
    const events = await this.vectors(request, options);
    const data = events.map(({ index, vector }) => ({ object: 'embedding' as const, index, embedding: [...vector] }));
    const tokens = events.reduce((sum, event) => sum + event.tokens, 0);
    return { object: 'list', model: this.answers.model.id, data, usage: { prompt_tokens: tokens, total_tokens: tokens } };
  }

  /** Return the vectors of texts, in their order. */
  async vectors(request: EmbeddingRequest, options: CallOptions): Promise<VectorEvent[]> {
    const all: VectorEvent[] = [];
    for await (const event of this.answers.run({ kind: 'embedding', request }, options)) all[event.index] = event as VectorEvent;
    return all;
  }
}

type Fields = Record<string, unknown>;

/** What the parts before have of a text. */
interface Before {
  isFirst: boolean;
  characters: number;
}

type ChoicesOf = (event: TextEvent, before: Before) => Fields[];

const KINDS = {
  chat: { object: 'chat.completion', prefix: 'chatcmpl-', choicesOf: chatChoices },
  completion: { object: 'text_completion', prefix: 'cmpl-', choicesOf: textChoices },
} as const;

function chatChoices({ index, deltas = [], ids, finish, logprobs }: TextEvent, { isFirst }: Before): Fields[] {
  const first = isFirst ? [{ role: 'assistant', content: '' }] : [];
  const choices: Fields[] = [...first, ...deltas].map((delta) => ({ index, delta, logprobs: null, finish_reason: null }));
  const recorded = logprobs ? { content: logprobs, refusal: null } : null;
  if (ids.length || finish) choices.push({ index, delta: ids.length ? { token_ids: ids } : {}, logprobs: recorded, finish_reason: finish });
  return choices;
}

function textChoices({ index, text, ids, finish, logprobs }: TextEvent, before: Before): Fields[] {
  return [{ index, text, token_ids: ids, logprobs: logprobs ? completionLogprobs(logprobs, before) : null, finish_reason: finish }];
}

function completionLogprobs(entries: readonly Logprob[], before: Before): CompletionLogprobs {
  return {
    tokens: entries.map(({ token }) => token),
    token_logprobs: entries.map(({ logprob }) => logprob),
    top_logprobs: entries.map(({ top_logprobs }) => Object.fromEntries(top_logprobs.map(({ token, logprob }) => [token, logprob]))),
    text_offset: entries.map(({ token }) => (before.characters += token.length) - token.length),
  };
}

/** Yield each choice of the parts as a chunk of its own, and the usage if it was asked for. */
async function* chunks(head: Fields, choicesOf: ChoicesOf, events: AsyncIterable<TextEvent>, withUsage: boolean): AsyncGenerator<Fields> {
  const texts: Before[] = [];
  for await (const event of events) {
    const before = (texts[event.index] ??= { isFirst: true, characters: 0 });
    for (const choice of choicesOf(event, before)) yield { ...head, choices: [choice] };
    before.isFirst = false;
    if (withUsage && event.usage) yield { ...head, choices: [], usage: event.usage };
  }
}

/** Return the choices of a whole answer, which are those of its stream put together, and the usage. */
async function joined(choicesOf: ChoicesOf, events: AsyncIterable<TextEvent>): Promise<Fields> {
  const texts: Fields[] = [];
  let usage: Usage | undefined;
  for await (const event of chunks({}, choicesOf, events, true)) {
    for (const { delta, ...choice } of event['choices'] as Fields[]) {
      const text = (texts[choice['index'] as number] ??= delta ? { message: { token_ids: [] } } : {});
      add(text, delta ? { ...choice, message: delta } : choice);
    }
    usage = (event['usage'] as Usage | undefined) ?? usage;
  }
  return { choices: texts, usage };
}

/** Add the fields of a part of an answer to those before: texts and lists grow. */
function add(whole: Fields, part: object): Fields {
  for (const [name, value] of Object.entries(part)) {
    const before = whole[name];
    if (name === 'tool_calls') whole[name] = [...((before as ToolCall[]) ?? []), ...(value as ToolCallDelta[]).map(({ index: _, ...call }) => call)];
    else if (Array.isArray(value)) whole[name] = [...((before as unknown[]) ?? []), ...value];
    else if (typeof value === 'string') whole[name] = ((before as string) ?? '') + value;
    else if (value && typeof value === 'object') whole[name] = add((before as Fields) ?? {}, value);
    else whole[name] = value ?? before ?? null;
  }
  return whole;
}
