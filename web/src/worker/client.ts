import { Answers, type CallOptions } from '../engine/answers.js';
import type { ModelFacts } from '../engine/engine.js';
import type { LoadOptions, Progress } from '../engine/open.js';
import type { AnyEvent, AnyRequest } from '../engine/requests.js';
import type { Session } from '../engine/session.js';
import { errorOf, type Body, type Call, type Port, type Reply, type Result } from './messages.js';

const SILENCE = 30_000; // milliseconds in which a worker must begin with a load
const ADVICE = 'is worker.js beside rdrr.js, and was it started with { type: "module" }?';

/** Load a model in a worker, or behind another port at whose end `serve` runs. */
export async function connect(port: Port & { terminate?(): void }, url: string, options: LoadOptions = {}): Promise<RemoteEngine> {
  const calls = new Calls(port);
  const lost = new Promise<string>((resolve) => {
    port.addEventListener('message', ({ data }) => 'lost' in data && resolve(data.lost));
  });
  const { onProgress, signal, context, cache, compile, grammar } = options;
  const absolute = (given: string): string => new URL(given, globalThis.location?.href).href;
  const sent = typeof grammar === 'string' ? absolute(grammar) : grammar;
  const body: Body = { call: 'load', url: absolute(url), options: { context, cache, compile, grammar: sent } };
  return new RemoteEngine(calls, port, await calls.result<ModelFacts>(body, signal, onProgress), lost);
}

/** A model in a worker, with the interface of `Engine`. */
export class RemoteEngine extends Answers {
  constructor(
    private readonly calls: Calls,
    private readonly port: { terminate?(): void },
    readonly model: ModelFacts,
    /** Resolves with the reason when the device was lost and could not be opened again. */
    readonly lost: Promise<string>,
  ) {
    super();
  }

  async *run(request: AnyRequest, { signal }: CallOptions = {}): AsyncGenerator<AnyEvent> {
    for await (const reply of this.calls.make({ call: 'run', request }, signal)) if ('event' in reply) yield reply.event;
  }

  /** Return the text that the cache holds. */
  save(): Promise<Session> {
    return this.calls.result({ call: 'save' });
  }

  /** Take over a text that `save` returned. */
  restore(session: Session): Promise<void> {
    return this.calls.result({ call: 'restore', session });
  }

  /** Free the memory on the device, and end the worker. */
  async close(): Promise<void> {
    await this.calls.result({ call: 'close' });
    this.port.terminate?.();
  }
}

/** Calls through a port, whose replies are told apart by their numbers. */
class Calls {
  private next = 1;
  private readonly waiting = new Map<number, (reply: Reply) => void>();

  constructor(private readonly port: Port) {
    port.addEventListener('message', ({ data }) => this.waiting.get((data as Reply).id)?.(data as Reply));
    port.addEventListener('error' as 'message', (event) => {
      const { message = '' } = event as unknown as ErrorEvent;
      for (const [id, reply] of this.waiting) reply(failed(id, `the worker failed: ${message || 'its script cannot be loaded'}; ${ADVICE}`));
    });
    port.start?.();
  }

  /** Make a call, and return what its last reply has. */
  async result<Value extends Result>(body: Body, signal?: AbortSignal, onProgress?: (progress: Progress) => void): Promise<Value> {
    let result: Result = undefined;
    for await (const reply of this.make(body, signal)) {
      if ('progress' in reply) onProgress?.(reply.progress);
      if ('done' in reply) result = reply.result;
    }
    return result as Value;
  }

  /** Make a call, and yield its replies; whoever stops reading aborts it. */
  async *make(body: Body, signal?: AbortSignal): AsyncGenerator<Reply> {
    signal?.throwIfAborted();
    const id = this.next++;
    const replies: Reply[] = [];
    let arrived = (): void => {};
    const abort = (): void => this.port.postMessage({ call: 'abort', id } satisfies Call);
    this.waiting.set(id, (reply) => {
      replies.push(reply);
      arrived();
    });
    signal?.addEventListener('abort', abort);
    this.port.postMessage({ ...body, id });
    // A worker that failed before it was listened to says nothing.
    const silence = body.call === 'load' ? setTimeout(() => this.waiting.get(id)?.(failed(id, `nothing answers behind the port: ${ADVICE}`)), SILENCE) : undefined;
    let open = true;
    try {
      while (open) {
        if (!replies.length) await new Promise<void>((resolve) => (arrived = resolve));
        const reply = replies.shift()!;
        clearTimeout(silence);
        open = !('done' in reply || 'fault' in reply);
        if ('fault' in reply) {
          signal?.throwIfAborted();
          throw errorOf(reply.fault);
        }
        yield reply;
      }
    } finally {
      clearTimeout(silence);
      signal?.removeEventListener('abort', abort);
      if (open) abort();
      this.waiting.delete(id);
    }
  }
}

function failed(id: number, message: string): Reply {
  return { id, fault: { name: 'RdrrError', code: 'usage', message } };
}
