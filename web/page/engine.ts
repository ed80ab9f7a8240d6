// What the page needs of whatever runs the model: this browser, or a server.
import type { ChatMessage, CompletionRequest, Progress, Survey as Surveyed } from '../src/index.js';

export interface ModelInfo {
  readonly id: string;
  readonly context: number | null; // most tokens of a prompt and its answer
  readonly chat: boolean; // the model answers messages; others continue a text
  readonly sees: boolean; // messages may have pictures
  readonly where: string; // what it runs on, for people
}

/** The options of a request that the settings state. */
export type Sampling = Pick<CompletionRequest, 'temperature' | 'top_p' | 'top_k' | 'min_p' | 'repeat_penalty' | 'seed' | 'max_tokens' | 'stop'>;

export type Question = ({ readonly messages: readonly ChatMessage[] } | { readonly prompt: string }) & { readonly sampling: Sampling };

export interface Usage {
  readonly prompt: number;
  readonly completion: number;
  readonly cached: number | undefined;
  readonly speed: number | undefined; // tokens per second of decoding, where the engine measured it
}

export interface Piece {
  readonly content: string;
  readonly reasoning: string;
  readonly ids: readonly number[]; // of the tokens since the piece before, where the engine tells them
  readonly finish: string | null;
  readonly usage: Usage | null;
}

interface Choice {
  readonly delta?: { readonly content?: string | null; readonly reasoning_content?: string | null; readonly token_ids?: readonly number[] };
  readonly text?: string;
  readonly token_ids?: readonly number[];
  readonly finish_reason?: string | null;
}

/** A chunk of OpenAI's API, of a chat or a completion, with what the runtime and the server add to it. */
export interface Chunk {
  readonly choices?: readonly Choice[];
  readonly usage?: {
    readonly prompt_tokens: number;
    readonly completion_tokens: number;
    readonly prompt_tokens_details?: { readonly cached_tokens?: number };
    readonly speed?: { readonly decode: number };
  } | null;
  readonly timings?: { readonly predicted_per_second?: number };
}

/** Return what a chunk adds to an answer. */
export function pieceOf({ choices = [], usage = null, timings }: Chunk): Piece {
  const { delta, text, token_ids: ids, finish_reason: finish = null } = choices[0] ?? {};
  return {
    content: delta?.content ?? text ?? '',
    reasoning: delta?.reasoning_content ?? '',
    ids: delta?.token_ids ?? ids ?? [],
    finish,
    usage: usage && {
      prompt: usage.prompt_tokens,
      completion: usage.completion_tokens,
      cached: usage.prompt_tokens_details?.cached_tokens,
      speed: usage.speed?.decode ?? timings?.predicted_per_second,
    },
  };
}

/** What a model costs, before it is loaded. */
export type Survey = Pick<Surveyed, 'model' | 'size' | 'memory' | 'cached' | 'reason'>;

export interface PageEngine {
  readonly label: string;
  // The models to choose from, and the one that is used from the next `open` on.
  readonly models: readonly string[];
  model: string;
  // What a load costs; null if the model is there already.
  survey(): Promise<Survey | null>;
  open(onProgress: (progress: Progress) => void, signal: AbortSignal): Promise<ModelInfo>;
  answer(question: Question, signal: AbortSignal): AsyncIterable<Piece>;
  close(): Promise<void>;
}

/** An error that people can do something about. */
export class EngineError extends Error {
  constructor(
    message: string,
    readonly kind: 'key' | 'lost' | 'refused' = 'refused',
  ) {
    super(message);
  }
}
