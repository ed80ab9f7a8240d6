// What the page needs of whatever runs the model: this browser, or a server.

export interface ModelInfo {
  readonly id: string;
  readonly context: number | null; // most tokens of a prompt and its answer
  readonly chat: boolean; // the model answers messages; others continue a text
  readonly sees: boolean; // messages may have pictures
  readonly where: string; // what it runs on, for people
}

export interface Message {
  readonly role: 'system' | 'user' | 'assistant';
  readonly content: string | readonly Part[];
  readonly token_ids?: readonly number[];
}

export type Part = { readonly type: 'text'; readonly text: string } | { readonly type: 'image_url'; readonly image_url: { readonly url: string } };

export interface Sampling {
  readonly temperature: number;
  readonly top_p?: number;
  readonly top_k?: number;
  readonly min_p?: number;
  readonly repeat_penalty?: number;
  readonly seed?: number;
  readonly max_tokens?: number;
  readonly stop?: readonly string[];
}

export type Question = ({ readonly messages: readonly Message[] } | { readonly prompt: string }) & { readonly sampling: Sampling };

export interface Piece {
  readonly content?: string;
  readonly reasoning?: string;
  readonly ids?: readonly number[]; // of the tokens since the piece before, where the engine tells them
  readonly finish?: string | null;
  readonly usage?: Usage;
}

export interface Usage {
  readonly prompt: number;
  readonly completion: number;
  readonly cached?: number;
  readonly speed?: number; // tokens per second of decoding, where the engine measured it
}

export interface Progress {
  readonly stage: string;
  readonly loaded: number;
  readonly total: number;
}

/** What a model costs, before it is loaded. */
export interface Survey {
  readonly model: string;
  readonly size: number; // bytes to download
  readonly memory: number | null; // bytes of GPU memory; null if it does not run here
  readonly cached: boolean;
  readonly reason: string | null; // why it does not run here
}

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
