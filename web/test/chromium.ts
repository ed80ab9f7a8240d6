// Runs cases in a browser and reports what came out; tests/web/test_chromium.py says what should.
import { cache, connect, Engine, RdrrError, type ChatRequest, type CompletionRequest } from '../src/index.js';

declare const report: (value: unknown) => Promise<void>;

type Request = CompletionRequest & ChatRequest & { stream?: false };

interface Case {
  kind: string;
  model: string;
  requests: Request[];
}

const OPTIONS = { compile: 'lazily', context: 512 } as const;
const indexOf = (model: string): string => `${location.origin}/${model}/web/index.json`;
const nameOf = (error: unknown): string => (error instanceof RdrrError ? error.code : (error as Error).name);

async function answer(engine: Pick<Engine, 'chat' | 'completions'>, request: Request): Promise<unknown> {
  if (request.messages) return engine.chat.completions.create(request);
  return engine.completions.create(request);
}

async function streamed(engine: Engine, request: Request): Promise<unknown> {
  let [text, chunks] = ['', 0];
  const given = { ...request, stream: true as const, stream_options: { include_usage: true } };
  let last;
  for await (const chunk of await engine.completions.create(given)) {
    text += chunk.choices[0]?.text ?? '';
    chunks += 1;
    last = chunk;
  }
  return { text, chunks, usage: last?.usage };
}

// A device that is lost while the first request runs; the engine goes on.
async function lost(model: string, requests: Request[]): Promise<unknown> {
  const devices: GPUDevice[] = [];
  const gpu = {
    async requestAdapter(options?: GPURequestAdapterOptions): Promise<GPUAdapter | null> {
      const adapter = await navigator.gpu.requestAdapter(options);
      const request = adapter?.requestDevice.bind(adapter);
      if (adapter && request) adapter.requestDevice = async (wanted) => (devices.push(await request(wanted)), devices.at(-1)!);
      return adapter;
    },
  } as GPU;
  const engine = await Engine.load(indexOf(model), { ...OPTIONS, gpu });
  const ids: number[] = [];
  for await (const { choices } of await engine.completions.create({ ...requests[0]!, stream: true })) {
    if (!ids.length) devices[0]!.destroy();
    ids.push(...choices[0]!.token_ids);
  }
  await engine.close();
  return { ids, devices: devices.length };
}

const kinds: Record<string, (given: Case) => Promise<unknown>> = {
  // Texts of requests, the first of which is also streamed; what a survey says before and after the load.
  async texts({ model, requests }) {
    const before = await Engine.survey(indexOf(model), OPTIONS);
    const stages = new Set<string>();
    let loaded = 0;
    const onProgress = (progress: { stage: string; loaded: number }): void => void (stages.add(progress.stage), (loaded = progress.loaded));
    const engine = await Engine.load(indexOf(model), { ...OPTIONS, onProgress });
    const [answers, times] = [[] as unknown[], [performance.now()]];
    for (const request of requests) {
      answers.push(await answer(engine, request));
      times.push(performance.now());
    }
    const stream = await streamed(engine, requests[0]!);
    const facts = engine.model;
    await engine.close();
    return { before, after: await Engine.survey(indexOf(model), OPTIONS), stages: [...stages], loaded, facts, answers, stream, times };
  },

  // What ends a call early, and how the model is loaded again without a network.
  async life({ model, requests: [request] }) {
    const engine = await Engine.load(indexOf(model), OPTIONS);
    const faults: string[] = [];
    const controller = new AbortController();
    try {
      for await (const _ of await engine.completions.create({ ...request!, stream: true }, controller)) controller.abort();
    } catch (error) {
      faults.push(nameOf(error));
    }
    for await (const _ of await engine.completions.create({ ...request!, stream: true })) break;
    const after = await answer(engine, request!);
    for (const wrong of [{ ...request!, top_p: 2 }, { ...request!, logprobs: true }, { ...request!, prompt: [] }]) {
      faults.push(await answer(engine, wrong as Request).then(() => 'none', nameOf));
    }
    faults.push(await engine.chat.completions.create({ messages: [] }).then(() => 'none', nameOf));
    await engine.close();
    faults.push(await answer(engine, request!).then(() => 'none', nameOf));
    const fetch = async (): Promise<Response> => Promise.reject(new TypeError('offline'));
    const offline = await Engine.load(indexOf(model), { ...OPTIONS, fetch });
    await offline.close();
    const listed = await cache.list();
    const had = await cache.has(indexOf(model));
    const deleted = await cache.delete(indexOf(model));
    faults.push(await Engine.load(indexOf(model), { ...OPTIONS, fetch }).then(() => 'none', nameOf));
    return { faults, after, listed, had, deleted, has: await cache.has(indexOf(model)) };
  },

  lost: ({ model, requests }) => lost(model, requests),

  async worker({ model, requests }) {
    const worker = new Worker('/build/worker.js', { type: 'module' });
    const stages = new Set<string>();
    const onProgress = ({ stage }: { stage: string }): void => void stages.add(stage);
    const engine = await connect(worker, indexOf(model), { ...OPTIONS, onProgress });
    const answers = [];
    for (const request of requests) answers.push(await answer(engine, request));
    const fault = await answer(engine, { ...requests[0]!, top_p: 2 }).then(() => 'none', nameOf);
    const controller = new AbortController();
    const aborted = engine.completions.create({ ...requests[0]!, max_tokens: 100 }, controller).then(() => 'none', nameOf);
    controller.abort();
    const out = { answers, fault, aborted: await aborted, stages: [...stages], facts: engine.model };
    await engine.close();
    return out;
  },
};

const cases = (await (await fetch('/cases')).json()) as Record<string, Case>;
const results: Record<string, unknown> = {};
for (const [name, given] of Object.entries(cases)) {
  const start = performance.now();
  const result = await kinds[given.kind]!(given).catch((error: unknown) => ({ error: String((error as Error).stack ?? error) }));
  results[name] = { ...(result as object), seconds: (performance.now() - start) / 1000 };
}
await report(results);
