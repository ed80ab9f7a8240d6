// A model behind a port: what the two sides say to each other, without a device.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { connect } from '../src/worker/client.js';
import { serve, type Port } from '../src/worker/server.js';

const INDEX = 'https://host/web/index.json';
const outcome = (load: Promise<unknown>): Promise<{ code?: string; message: string }> => load.then(() => ({ message: 'loaded' }), (error: { code?: string; message: string }) => error);

/** A worker of which nothing arrives but what a test sends. */
class DeadWorker extends EventTarget {
  postMessage(): void {}
}

test('a port behind which nobody answers is an error after half a minute, and one that answers has its own error', async (context) => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { port1, port2 } = new MessageChannel();
  const answered = outcome(connect(port1 as unknown as Port, 'file:///there/is/no/such/index.json'));
  serve(port2 as unknown as Port);
  assert.equal((await answered).code, 'network');
  port1.close();
  const silent = outcome(connect(new DeadWorker() as Port, INDEX));
  let isOver = false;
  void silent.then(() => (isOver = true));
  context.mock.timers.tick(29_000);
  await new Promise(setImmediate);
  assert.equal(isOver, false);
  context.mock.timers.tick(1_000);
  const { code, message } = await silent;
  assert.equal(code, 'usage');
  assert.match(message, /nothing answers.*worker\.js/);
});

test('a worker whose script fails is an error at once', async () => {
  const worker = new DeadWorker();
  const load = outcome(connect(worker as Port, INDEX));
  worker.dispatchEvent(new Event('error'));
  assert.match((await load).message, /the worker failed.*worker\.js/);
});
