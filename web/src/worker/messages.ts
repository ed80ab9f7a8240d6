import { RdrrError, type ErrorCode } from '../errors.js';
import type { ModelFacts } from '../engine/engine.js';
import type { LoadOptions, Progress } from '../engine/open.js';
import type { AnyEvent, AnyRequest } from '../engine/requests.js';
import type { Session } from '../engine/session.js';

/** Options of a load that can be sent to a worker; of a grammar library the URL. */
export type RemoteOptions = Pick<LoadOptions, 'context' | 'cache' | 'compile' | 'grammar'>;

/** What a worker is asked for. */
export type Body =
  | { call: 'load'; url: string; options: RemoteOptions }
  | { call: 'run'; request: AnyRequest }
  | { call: 'restore'; session: Session }
  | { call: 'save' | 'close' | 'abort' };

/** What is sent to a worker. Calls are numbered by the client. */
export type Call = Body & { id: number };

/** What a call returns when it is done. */
export type Result = ModelFacts | Session | void;

/** What a worker sends: that it begins with a load, parts of a call's result, then its end or its fault. */
export type Reply = { id: number } & ({ begun: true } | { progress: Progress } | { event: AnyEvent } | { done: true; result: Result } | { lost: string } | { fault: Fault });

interface Fault {
  name: string;
  message: string;
  code?: ErrorCode | undefined;
}

/** What both sides need of a Worker, of the scope inside it, and of a MessagePort. */
export interface Port {
  postMessage(message: unknown): void;
  addEventListener(type: 'message', listener: (event: MessageEvent) => void): void;
  start?(): void;
}

export function faultOf(error: unknown): Fault {
  const { name = 'Error', message = String(error) } = error as Error;
  return { name, message, code: error instanceof RdrrError ? error.code : undefined };
}

export function errorOf({ name, message, code }: Fault): Error {
  if (code) return new RdrrError(code, message);
  return name === 'AbortError' ? new DOMException(message, name) : new Error(`${name}: ${message}`);
}
