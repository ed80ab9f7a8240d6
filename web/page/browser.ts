// The model in this browser: the runtime in a worker, with the files that `rdrr web` wrote.
import { connect, Engine, type Progress, type RemoteEngine } from '../src/index.js';
import { advice } from './advice.js';
import { EngineError, pieceOf, type ModelInfo, type PageEngine, type Piece, type Question, type Survey } from './engine.js';
import { bytes } from './meter.js';

const CONTEXT = 4096; // tokens that a conversation has room for, where the model has as many
const UNSUPPORTED = ['no-webgpu', 'insecure', 'no-adapter'];

export class BrowserEngine implements PageEngine {
  readonly label = 'in this browser';
  readonly models = [];
  model = '';
  #index: string;
  #context: number | undefined;
  #engine: RemoteEngine | null = null;

  // `index` is the URL of index.json.
  constructor(index: string) {
    this.#index = index;
  }

  /** Whether there is such an index. */
  static async isThere(index: string): Promise<boolean> {
    try {
      const response = await fetch(index);
      return response.ok && ((await response.json()) as { format?: string }).format === 'rdrr-web';
    } catch {
      return false;
    }
  }

  async survey(): Promise<Survey> {
    const first = await Engine.survey(this.#index);
    this.#context = first.contexts ? Math.max(first.contexts.least, Math.min(first.contexts.most, CONTEXT)) : undefined;
    const { model, size, memory, cached, reason } = first.reason === null ? await Engine.survey(this.#index, { context: this.#context }) : first;
    const told = reason !== null && UNSUPPORTED.includes(reason) ? advice(reason, navigator.userAgent) : reason;
    return { model, size, memory, cached, reason: told };
  }

  async open(onProgress: (progress: Progress) => void, signal: AbortSignal): Promise<ModelInfo> {
    const worker = new Worker(new URL('worker.js', document.baseURI), { type: 'module' });
    try {
      this.#engine = await connect(worker, this.#index, { context: this.#context, onProgress, signal });
    } catch (error) {
      worker.terminate();
      throw error;
    }
    const { id, context, chat, text, sees, generates, memory, adapter } = this.#engine.model;
    if (!generates) throw new EngineError('The model makes embeddings and writes no text: scripts use it, with `engine.embed`.');
    if (!text) throw new EngineError('The package has no tokenizer, so it takes no text.');
    return { id, context, chat, sees, where: [this.label, adapter, bytes(memory)].filter(Boolean).join(', ') };
  }

  async *answer({ sampling, ...asked }: Question, signal: AbortSignal): AsyncGenerator<Piece> {
    const options = { ...sampling, stream: true, stream_options: { include_usage: true } } as const;
    const engine = this.#engine!;
    const chunks = 'messages' in asked
      ? await engine.chat.completions.create({ ...asked, ...options }, { signal })
      : await engine.completions.create({ ...asked, ...options }, { signal });
    for await (const chunk of chunks) yield pieceOf(chunk);
  }

  async close(): Promise<void> {
    const engine = this.#engine;
    this.#engine = null;
    await engine?.close();
  }
}
