import { Engine } from '../engine/engine.js';
import { RdrrError } from '../errors.js';
import { faultOf, type Call, type Port, type Reply } from './messages.js';

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
      await this.answer(call, controller.signal);
    } catch (error) {
      this.reply({ id, fault: faultOf(error) });
    } finally {
      this.running.delete(id);
    }
  }

  private async answer(call: Exclude<Call, { call: 'abort' }>, signal: AbortSignal): Promise<void> {
    const { id } = call;
    if (call.call === 'load') {
      const onProgress = (progress: object): void => this.reply({ id, progress } as Reply);
      this.engine = await Engine.load(call.url, { ...call.options, signal, onProgress });
      void this.engine.lost.then((lost) => this.reply({ id, lost }));
      this.reply({ id, done: true, model: this.engine.model });
      return;
    }
    if (!this.engine) throw new RdrrError('usage', 'no model is loaded');
    if (call.call === 'save') {
      this.reply({ id, done: true, session: await this.engine.save() });
      return;
    }
    if (call.call === 'close') await this.engine.close();
    else if (call.call === 'restore') await this.engine.restore(call.session);
    else for await (const event of this.engine.run(call.request, { signal })) this.reply({ id, event });
    this.reply({ id, done: true });
  }
}
