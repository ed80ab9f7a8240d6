import type { Delta, ToolCall, ToolCallDelta } from '../text/index.js';
import type { AnyEvent, AnyRequest, ChatRequest, CompletionRequest, EmbeddingRequest, Finish, Logprob, TextEvent, Usage, VectorEvent } from './requests.js';

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

export interface Completion extends Head<'text_completion'> {
  choices: { index: number; text: string; token_ids: number[]; logprobs: CompletionLogprobs | null; finish_reason: Finish }[];
  usage: Usage;
}

export interface CompletionChunk extends Head<'text_completion'> {
  choices: { index: number; text: string; token_ids: number[]; logprobs: CompletionLogprobs | null; finish_reason: Finish }[];
  usage?: Usage;
}

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

type Run<Event = TextEvent> = (request: AnyRequest, options: CallOptions) => AsyncIterable<Event>;

/** The part of OpenAI's client that makes texts and embeddings, over anything that yields their parts. */
export class Answers {
  readonly chat: { readonly completions: ChatCompletions };
  readonly completions: Completions;
  readonly embeddings: Embeddings;

  constructor(model: () => string, run: Run<AnyEvent>) {
    this.chat = { completions: new ChatCompletions(model, run as Run) };
    this.completions = new Completions(model, run as Run);
    this.embeddings = new Embeddings(model, run as Run<VectorEvent>);
  }

  /** Return the embeddings of texts, in their order. */
  async embed(texts: string | readonly string[], { signal, ...options }: CallOptions & EmbedOptions = {}): Promise<Float32Array[]> {
    return (await this.embeddings.vectors({ input: texts, ...options }, { signal })).map(({ vector }) => vector);
  }
}

class Caller<Event> {
  constructor(
    protected readonly model: () => string,
    protected readonly run: Run<Event>,
  ) {}
}

class ChatCompletions extends Caller<TextEvent> {
  create(request: ChatRequest & { stream: true }, options?: CallOptions): Promise<AsyncIterable<ChatChunk>>;
  create(request: ChatRequest & { stream?: false | null }, options?: CallOptions): Promise<ChatCompletion>;
  async create(request: ChatRequest, options: CallOptions = {}): Promise<AsyncIterable<ChatChunk> | ChatCompletion> {
    const events = this.run({ kind: 'chat', request }, options);
    const head = headOf('chat.completion', 'chatcmpl-', this.model());
    if (request.stream) return chatChunks({ ...head, object: 'chat.completion.chunk' }, request, events);
    return gathered(head, events, ({ deltas, ids, logprobs }) => ({ message: messageOf(deltas, ids), logprobs: chatLogprobs(logprobs) }));
  }
}

class Completions extends Caller<TextEvent> {
  create(request: CompletionRequest & { stream: true }, options?: CallOptions): Promise<AsyncIterable<CompletionChunk>>;
  create(request: CompletionRequest & { stream?: false | null }, options?: CallOptions): Promise<Completion>;
  async create(request: CompletionRequest, options: CallOptions = {}): Promise<AsyncIterable<CompletionChunk> | Completion> {
    const events = this.run({ kind: 'completion', request }, options);
    const head = headOf('text_completion', 'cmpl-', this.model());
    if (request.stream) return completionChunks(head, request, events);
    return gathered(head, events, ({ text, ids, logprobs }) => ({ text, token_ids: ids, logprobs: completionLogprobs(logprobs) }));
  }
}

type EmbedOptions = Pick<EmbeddingRequest, 'prompt_name' | 'truncate' | 'dimensions'>;

class Embeddings extends Caller<VectorEvent> {
  async create(request: EmbeddingRequest, options: CallOptions = {}): Promise<EmbeddingList> {
    const events = await this.vectors(request, options);
    const data = events.map(({ index, vector }) => ({ object: 'embedding' as const, index, embedding: [...vector] }));
    const tokens = events.reduce((sum, event) => sum + event.tokens, 0);
    return { object: 'list', model: this.model(), data, usage: { prompt_tokens: tokens, total_tokens: tokens } };
  }

  /** Return the vectors of texts, in their order. */
  async vectors(request: EmbeddingRequest, options: CallOptions): Promise<VectorEvent[]> {
    const all: VectorEvent[] = [];
    for await (const event of this.run({ kind: 'embedding', request }, options)) all[event.index] = event;
    return all;
  }
}

function headOf<Name extends string>(object: Name, prefix: string, model: string): Head<Name> {
  const id = prefix + Array.from(crypto.getRandomValues(new Uint32Array(3)), (word) => word.toString(36)).join('');
  return { id, object, created: Math.floor(Date.now() / 1000), model };
}

async function* chatChunks(
  head: Head<'chat.completion.chunk'>,
  request: ChatRequest,
  events: AsyncIterable<TextEvent>,
): AsyncGenerator<ChatChunk> {
  const begun = new Set<number>();
  const chunk = (index: number, delta: ChatDelta, finish_reason: Finish, entries?: readonly Logprob[]): ChatChunk => ({
    ...head,
    choices: [{ index, delta, logprobs: chatLogprobs(entries), finish_reason }],
  });
  for await (const { index, deltas = [], ids, finish, logprobs, usage } of events) {
    if (!begun.has(index)) yield chunk(index, { role: 'assistant', content: '' }, null);
    begun.add(index);
    for (const delta of deltas) yield chunk(index, delta, null);
    if (ids.length || finish) yield chunk(index, ids.length ? { token_ids: ids } : {}, finish, logprobs);
    if (usage && request.stream_options?.include_usage) yield { ...head, choices: [], usage };
  }
}

async function* completionChunks(
  head: Head<'text_completion'>,
  request: CompletionRequest,
  events: AsyncIterable<TextEvent>,
): AsyncGenerator<CompletionChunk> {
  for await (const { index, text, ids, finish, logprobs, usage } of events) {
    yield { ...head, choices: [{ index, text, token_ids: ids, logprobs: completionLogprobs(logprobs), finish_reason: finish }] };
    if (usage && request.stream_options?.include_usage) yield { ...head, choices: [], usage };
  }
}

interface Whole {
  text: string;
  ids: number[];
  deltas: Delta[];
  logprobs?: Logprob[];
  finish: Finish;
}

type Gathered<Name extends string, Choice> = Head<Name> & { choices: (Choice & { index: number; finish_reason: Finish })[]; usage: Usage };

/** Return an answer of all texts of a request, and the usage of its last part. */
async function gathered<Name extends string, Choice>(
  head: Head<Name>,
  events: AsyncIterable<TextEvent>,
  choiceOf: (text: Whole) => Choice,
): Promise<Gathered<Name, Choice>> {
  const texts: Whole[] = [];
  let usage: Usage | undefined;
  for await (const event of events) {
    const whole = (texts[event.index] ??= { text: '', ids: [], deltas: [], finish: null });
    whole.text += event.text;
    whole.ids.push(...event.ids);
    whole.deltas.push(...(event.deltas ?? []));
    if (event.logprobs) whole.logprobs = [...(whole.logprobs ?? []), ...event.logprobs];
    whole.finish = event.finish;
    usage = event.usage ?? usage;
  }
  const choices = texts.map((text, index) => ({ index, ...choiceOf(text), finish_reason: text.finish }));
  return { ...head, choices, usage: usage! };
}

function chatLogprobs(entries?: readonly Logprob[]): ChatLogprobs | null {
  return entries ? { content: [...entries], refusal: null } : null;
}

function completionLogprobs(entries?: readonly Logprob[]): CompletionLogprobs | null {
  if (!entries) return null;
  let end = 0;
  return {
    tokens: entries.map(({ token }) => token),
    token_logprobs: entries.map(({ logprob }) => logprob),
    top_logprobs: entries.map(({ top_logprobs }) => Object.fromEntries(top_logprobs.map(({ token, logprob }) => [token, logprob]))),
    text_offset: entries.map(({ token }) => (end += token.length) - token.length),
  };
}

/** Return the message that the parts of an answer make. */
function messageOf(deltas: readonly Delta[], token_ids: number[]): ChatMessageAnswer {
  let [content, reasoning] = ['', ''];
  const tool_calls: ToolCall[] = [];
  for (const delta of deltas) {
    if ('content' in delta) content += delta.content;
    else if ('reasoning_content' in delta) reasoning += delta.reasoning_content;
    else for (const { index: _, ...call } of delta.tool_calls) tool_calls.push(call as ToolCall);
  }
  const parts = { ...(reasoning && { reasoning_content: reasoning }), ...(tool_calls.length && { tool_calls }) };
  return { role: 'assistant', content, ...parts, token_ids };
}
