import type { AnyRequest, ChatRequest, CompletionRequest, TextEvent, Usage } from './requests.js';

type Finish = 'stop' | 'length' | null;

interface Head<Name extends string> {
  id: string;
  object: Name;
  created: number;
  model: string;
}

export interface ChatMessageAnswer {
  role: 'assistant';
  content: string;
  /** The ids of the text: a next request with them continues from the cache, whatever the text hides. */
  token_ids: number[];
}

export interface ChatCompletion extends Head<'chat.completion'> {
  choices: { index: number; message: ChatMessageAnswer; finish_reason: Finish }[];
  usage: Usage;
}

export interface ChatChunk extends Head<'chat.completion.chunk'> {
  choices: { index: number; delta: Partial<ChatMessageAnswer>; finish_reason: Finish }[];
  usage?: Usage;
}

export interface Completion extends Head<'text_completion'> {
  choices: { index: number; text: string; token_ids: number[]; finish_reason: Finish }[];
  usage: Usage;
}

export interface CompletionChunk extends Head<'text_completion'> {
  choices: { index: number; text: string; token_ids: number[]; finish_reason: Finish }[];
  usage?: Usage;
}

export interface CallOptions {
  /** Aborts the call: it throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

type Run = (request: AnyRequest, options: CallOptions) => AsyncIterable<TextEvent>;

/** The part of OpenAI's client that makes texts, over anything that yields their parts. */
export class Answers {
  readonly chat: { readonly completions: ChatCompletions };
  readonly completions: Completions;

  constructor(model: () => string, run: Run) {
    this.chat = { completions: new ChatCompletions(model, run) };
    this.completions = new Completions(model, run);
  }
}

class ChatCompletions {
  constructor(
    private readonly model: () => string,
    private readonly run: Run,
  ) {}

  create(request: ChatRequest & { stream: true }, options?: CallOptions): Promise<AsyncIterable<ChatChunk>>;
  create(request: ChatRequest & { stream?: false | null }, options?: CallOptions): Promise<ChatCompletion>;
  async create(request: ChatRequest, options: CallOptions = {}): Promise<AsyncIterable<ChatChunk> | ChatCompletion> {
    const events = this.run({ kind: 'chat', request }, options);
    const head = headOf('chat.completion', 'chatcmpl-', this.model());
    if (request.stream) return chatChunks({ ...head, object: 'chat.completion.chunk' }, request, events);
    const { texts, usage } = await gathered(events);
    const choices = texts.map(({ text, ids, finish }, index) => ({
      index,
      message: { role: 'assistant' as const, content: text, token_ids: ids },
      finish_reason: finish,
    }));
    return { ...head, choices, usage };
  }
}

class Completions {
  constructor(
    private readonly model: () => string,
    private readonly run: Run,
  ) {}

  create(request: CompletionRequest & { stream: true }, options?: CallOptions): Promise<AsyncIterable<CompletionChunk>>;
  create(request: CompletionRequest & { stream?: false | null }, options?: CallOptions): Promise<Completion>;
  async create(request: CompletionRequest, options: CallOptions = {}): Promise<AsyncIterable<CompletionChunk> | Completion> {
    const events = this.run({ kind: 'completion', request }, options);
    const head = headOf('text_completion', 'cmpl-', this.model());
    if (request.stream) return completionChunks(head, request, events);
    const { texts, usage } = await gathered(events);
    const choices = texts.map(({ text, ids, finish }, index) => ({ index, text, token_ids: ids, finish_reason: finish }));
    return { ...head, choices, usage };
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
  for await (const { index, text, ids, finish, usage } of events) {
    const delta: Partial<ChatMessageAnswer> = begun.has(index) ? {} : { role: 'assistant' };
    begun.add(index);
    if (text) delta.content = text;
    if (ids.length) delta.token_ids = ids;
    yield { ...head, choices: [{ index, delta, finish_reason: finish }] };
    if (usage && request.stream_options?.include_usage) yield { ...head, choices: [], usage };
  }
}

async function* completionChunks(
  head: Head<'text_completion'>,
  request: CompletionRequest,
  events: AsyncIterable<TextEvent>,
): AsyncGenerator<CompletionChunk> {
  for await (const { index, text, ids, finish, usage } of events) {
    yield { ...head, choices: [{ index, text, token_ids: ids, finish_reason: finish }] };
    if (usage && request.stream_options?.include_usage) yield { ...head, choices: [], usage };
  }
}

/** Return all texts of a request, and the usage of its last part. */
async function gathered(
  events: AsyncIterable<TextEvent>,
): Promise<{ texts: { text: string; ids: number[]; finish: Finish }[]; usage: Usage }> {
  const texts: { text: string; ids: number[]; finish: Finish }[] = [];
  let usage: Usage | undefined;
  for await (const event of events) {
    const whole = (texts[event.index] ??= { text: '', ids: [], finish: null });
    whole.text += event.text;
    whole.ids.push(...event.ids);
    whole.finish = event.finish;
    usage = event.usage ?? usage;
  }
  return { texts, usage: usage! };
}
