import { Engine } from '../engine/engine.js';
import type { Progress } from '../engine/open.js';
import { RdrrError } from '../errors.js';
import { faultOf, type Call, type Port, type Reply, type Result } from './messages.js';

export type { Port } from './messages.js';

/** Run the calls that come through a port: in a worker, `serve(self)`. One port has one model. */
export function serve(port: Port): void {
  const server = new Server((reply) => port.postMessage(reply));
  port.addEventListener('message', ({ data }) => void server.receive(data as Call));
  port.start?.();
}

class Server {
  private engine: Engine | null = null;
  private readonly running = new Map<number, AbortController>();

  constructor(private readonly reply: (reply: Reply) => void) {}

  async receive(call: Call): Promise<void> {
    const { id } = call;
    if (call.call === 'abort') {
      this.running.get(id)?.abort();
      return;
    }
    const controller = new AbortController();
    this.running.set(id, controller);
    try {
      this.reply({ id, done: true, result: await this.run(call, controller.signal) });
    } catch (error) {
      this.reply({ id, fault: faultOf(error) });
    } finally {
      this.running.delete(id);
    }
  }

  private async run(call: Call, signal: AbortSignal): Promise<Result> {
    const { id } = call;
    if (call.call === 'load') {
      this.reply({ id, begun: true });
      const onProgress = (progress: Progress): void => this.reply({ id, progress });
      this.engine = await Engine.load(call.url, { ...call.options, signal, onProgress });
      void this.engine.lost.then((lost) => this.reply({ id, lost }));
      return this.engine.model;
    }
    if (!this.engine) throw new RdrrError('usage', 'no model is loaded');
    if (call.call === 'save') return this.engine.save();
    if (call.call === 'close') return this.engine.close();
    if (call.call === 'restore') return this.engine.restore(call.session);
    if (call.call === 'run') for await (const event of this.engine.run(call.request, { signal })) this.reply({ id, event });
  }
}
