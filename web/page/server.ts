// The model of `rdrr serve` at the page's origin, by OpenAI's API.
import { EngineError, pieceOf, type Chunk, type ModelInfo, type PageEngine, type Piece, type Question, type Survey } from './engine.js';
import { events } from './events.js';

interface Failure {
  readonly error?: { readonly message: string };
}

interface Facts {
  readonly model?: string;
  readonly adapter?: string;
  readonly backend?: string;
  readonly context?: number;
  readonly modalities?: { readonly vision?: boolean };
}

const LOST = 'The connection to the server was lost, so the answer is not complete.';
const UNREACHABLE = 'The server cannot be reached. Is `rdrr serve` running?';

export class ServerEngine implements PageEngine {
  readonly label = 'on the server';
  models: readonly string[] = [];
  model = '';
  #base: string;
  #key: () => string;

  // `key` returns what the server asks for, or nothing.
  constructor(base: string, key: () => string) {
    this.#base = base;
    this.#key = key;
  }

  /** Whether there is such a server behind the page. */
  static async isThere(base: string): Promise<boolean> {
    try {
      const response = await fetch(`${base}v1/models`, { headers: { accept: 'application/json' } });
      return response.status === 401 || (response.ok && 'data' in ((await response.json()) as object));
    } catch {
      return false;
    }
  }

  survey(): Promise<Survey | null> {
    return Promise.resolve(null);
  }

  async open(): Promise<ModelInfo> {
    this.models = ((await this.#json('v1/models')) as { data: { id: string }[] }).data.map(({ id }) => id);
    if (!this.models.includes(this.model)) this.model = this.models[0] ?? '';
    const chat = await this.#chats(); // loads the model, where it is not
    const { adapter, backend, context, modalities } = await this.#facts();
    const place = adapter ?? backend;
    return { id: this.model, context: context ?? null, chat, sees: Boolean(modalities?.vision), where: place ? `${this.label}, ${place}` : this.label };
  }

  async *answer(question: Question, signal: AbortSignal): AsyncGenerator<Piece> {
    const { sampling, ...asked } = question;
    const path = 'messages' in asked ? 'v1/chat/completions' : 'v1/completions';
    const body = { model: this.model, ...asked, ...sampling, stream: true, stream_options: { include_usage: true } };
    const response = await this.#request(path, { method: 'POST', body: JSON.stringify(body), signal });
    if (!response.body) throw new EngineError(LOST, 'lost');
    let isComplete = false;
    try {
      for await (const data of events(response.body)) {
        if (data === '[DONE]') {
          isComplete = true;
          break;
        }
        const chunk = JSON.parse(data) as Chunk & Failure;
        if (chunk.error) throw new EngineError(chunk.error.message);
        yield pieceOf(chunk);
      }
    } catch (error) {
      if (signal.aborted || error instanceof EngineError) throw error;
      throw new EngineError(LOST, 'lost');
    }
    if (!isComplete && !signal.aborted) throw new EngineError(LOST, 'lost');
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  // What the server says of the model.
  async #facts(): Promise<Facts> {
    const props = (await this.#json('props').catch((error: unknown) => {
      if (error instanceof EngineError && error.kind !== 'refused') throw error;
      return {};
    })) as Facts & { models?: Facts[] };
    return props.models?.find(({ model }) => model === this.model) ?? props;
  }

  // Whether the model has a chat template.
  async #chats(): Promise<boolean> {
    const messages = [{ role: 'user', content: '?' }];
    return this.#json('apply-template', { model: this.model, messages }).then(() => true, (error: unknown) => {
      if (error instanceof EngineError && error.kind === 'refused') return false;
      throw error;
    });
  }

  async #json(path: string, body?: object): Promise<unknown> {
    const options = body ? { method: 'POST', body: JSON.stringify(body) } : {};
    return (await this.#request(path, options)).json();
  }

  async #request(path: string, options: RequestInit): Promise<Response> {
    const key = this.#key();
    const headers = { 'content-type': 'application/json', ...(key && { authorization: `Bearer ${key}` }) };
    const response = await fetch(this.#base + path, { ...options, headers }).catch((error: unknown) => {
      if (options.signal?.aborted) throw error;
      throw new EngineError(UNREACHABLE, 'lost');
    });
    if (response.ok) return response;
    const told = ((await response.json().catch(() => ({}))) as Failure).error?.message;
    if (response.status === 401) throw new EngineError('The server asks for a key. Enter it in the settings.', 'key');
    throw new EngineError(told ?? `The server answered ${response.status} ${response.statusText}.`);
  }
}
