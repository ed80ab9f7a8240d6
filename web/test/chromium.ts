// Runs cases in a browser and reports what came out; tests/web/test_chromium.py says what should.
import { cache, connect, Engine, RdrrError, type ChatRequest, type CompletionRequest, type EmbeddingRequest, type LoadOptions, type ModelFacts } from '../src/index.js';

declare const report: (value: unknown) => Promise<void>;

type Request = CompletionRequest & ChatRequest & { stream?: false };

interface Case {
  kind: string;
  model: string;
  requests: Request[];
  embeddings: EmbeddingRequest[];
  /** What happens while two tabs load: the second one deletes the files, or the first one aborts its load. */
  during?: 'delete' | 'abort';
}

const OPTIONS = { compile: 'lazily', context: 512, grammar: '/grammar' } as const;
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

// A text that is saved, lost to another one, and restored; sessions that are refused.
async function savedText(engine: Engine, request: Request): Promise<object> {
  const session = await engine.save();
  await engine.completions.create({ prompt: [1], max_tokens: 1, temperature: 0 });
  await engine.restore(session);
  const answered = await answer(engine, request);
  const refused = [{ ...session, model: 'x' }, { ...session, context: 4096 }, { ...session, buffers: [] }];
  const faults = [];
  for (const other of refused) faults.push(await outcome(engine.restore(other)));
  return { answered, ids: session.ids.length, faults };
}

const outcome = (call: Promise<unknown>): Promise<string> => call.then(() => 'none', nameOf);

// An abort, a stream that nobody reads to its end, and requests that are refused.
async function endedEarly(engine: Engine, given: Request): Promise<string[]> {
  const request = { ...given, max_tokens: 2 };
  const controller = new AbortController();
  const aborted = async (): Promise<void> => {
    for await (const _ of await engine.completions.create({ ...request, stream: true }, controller)) controller.abort();
  };
  const faults = [await outcome(aborted())];
  for await (const _ of await engine.completions.create({ ...request, stream: true })) break;
  const wrong = [{ ...request, top_p: 2 }, { ...request, logprobs: true }, { ...request, prompt: [] }] as Request[];
  for (const refused of wrong) faults.push(await outcome(answer(engine, refused)));
  faults.push(await outcome(engine.chat.completions.create({ messages: [] })));
  return faults;
}

// What the browser keeps of a model, and what loads without a network, before and after it is deleted.
async function keptFiles(index: string): Promise<object> {
  const fetch = async (): Promise<Response> => Promise.reject(new TypeError('offline'));
  const load = async (): Promise<void> => (await Engine.load(index, { ...OPTIONS, fetch })).close();
  const kept = { after: await Engine.survey(index, OPTIONS), had: await cache.has(index), listed: await cache.list() };
  const offline = [await outcome(load())];
  const deleted = await cache.delete(index);
  offline.push(await outcome(load()));
  return { ...kept, deleted, offline };
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

async function answersOf({ model, requests }: Case, options: LoadOptions): Promise<{ answers: unknown[]; contexts: number[]; facts: ModelFacts }> {
  const engine = await Engine.load(indexOf(model), options);
  const facts = engine.model;
  const answers: unknown[] = [];
  for (const request of requests) answers.push(await answer(engine, request));
  const contexts = [facts.context, engine.model.context];
  await engine.close();
  return { answers, contexts, facts };
}

/** Whether this tab is the first one that asks; it stays the first one until it is closed. */
const isFirst = new Promise<boolean>((resolve) => {
  const held = new Promise(() => {});
  void navigator.locks.request('first', { ifAvailable: true }, (lock) => (resolve(lock !== null), lock && held));
});

/** Return a `fetch` that records the shards it is asked for, and waits in the middle of the one of a number, from 1. */
function pausing(number: number, pause: () => Promise<void>): { fetch: (url: string, init?: RequestInit) => Promise<Response>; shards: string[] } {
  const shards: string[] = [];
  const pausingFetch = async (url: string, init?: RequestInit): Promise<Response> => {
    const answer = await fetch(url, init);
    if (!url.includes('/shard_') || shards.push(url.split('/').at(-1)!) !== number) return answer;
    const bytes = new Uint8Array(await answer.arrayBuffer());
    const half = bytes.length >> 1;
    const body = new ReadableStream({
      async start(stream) {
        stream.enqueue(bytes.subarray(0, half));
        await pause();
        if (init?.signal?.aborted) return stream.error(init.signal.reason);
        stream.enqueue(bytes.subarray(half));
        stream.close();
      },
    });
    return new Response(body);
  };
  return { fetch: pausingFetch, shards };
}

// The first of two tabs waits in the middle of a shard until the second one, which begins then, needs the shard too. Where the
// second one deletes the files, that is the second shard, since there is nothing to delete before the first one is kept.
async function loadedInTabs(given: Case): Promise<object> {
  const { model, during } = given;
  const [index, first] = [indexOf(model), await isFirst];
  const controller = new AbortController();
  const channel = new BroadcastChannel(model);
  const other = new Promise((resolve) => channel.addEventListener('message', resolve)); // it is in the middle of a shard
  const { fetch, shards } = pausing(during === 'delete' ? 2 : 1, async () => {
    let both = false;
    void other.then(() => (both = true));
    do {
      channel.postMessage('in the middle of a shard');
      await new Promise((done) => setTimeout(done, 20));
    } while (first && !both && !(await navigator.locks.query()).pending?.length);
    if (first && during === 'abort') controller.abort();
  });
  if (!first) await other;
  const deletes = !first && during === 'delete' && (await cache.delete(index));
  const loaded = await answersOf(given, { ...OPTIONS, fetch, signal: controller.signal }).catch((error: unknown) => ({ fault: nameOf(error) }));
  return { first, shards, ...loaded, ...(first ? {} : { deletes, ...(await keptFiles(index)) }) };
}

const kinds: Record<string, (given: Case) => Promise<unknown>> = {
  // Texts of requests, the first of which is also streamed; what a survey says before and after the load; what ends
  // calls early; and how the model is loaded again without a network.
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
    const faults = await endedEarly(engine, requests[0]!);
    const restored = await savedText(engine, requests[0]!);
    await engine.close();
    faults.push(await outcome(answer(engine, requests[0]!)));
    const kept = await keptFiles(indexOf(model));
    return { before, stages: [...stages], loaded, facts, answers, stream, times, faults, restored, ...kept };
  },

  answers: (given) => answersOf(given, OPTIONS),

  tabs: loadedInTabs,

  // A text that may outgrow the cache.
  long: (given) => answersOf(given, { compile: 'lazily' }),

  // Embeddings, and what an engine that makes them refuses; `embed` in a worker.
  async vectors({ model, embeddings }) {
    const options = { compile: 'lazily' } as const;
    const engine = await Engine.load(indexOf(model), options);
    const answers = [];
    for (const request of embeddings) answers.push(await engine.embeddings.create(request));
    const [first] = embeddings as [EmbeddingRequest];
    const wrong: EmbeddingRequest[] = [{ input: [] }, { ...first, dimensions: 0 }, { ...first, dimensions: 1e6 }, { ...first, prompt_name: 'x' }];
    const faults = [await outcome(engine.completions.create({ prompt: 'a' }))];
    for (const request of [...wrong, { input: 'a '.repeat(2000) }]) faults.push(await outcome(engine.embeddings.create(request)));
    const facts = engine.model;
    await engine.close();
    const remote = await connect(new Worker('/build/worker.js', { type: 'module' }), indexOf(model), options);
    const [vector] = await remote.embed('a worker');
    await remote.close();
    return { answers, faults, facts, worker: [...vector!] };
  },

  lost: ({ model, requests }) => lost(model, requests),

  async worker({ model, requests }) {
    const worker = new Worker('/build/worker.js', { type: 'module' });
    const stages = new Set<string>();
    const onProgress = ({ stage }: { stage: string }): void => void stages.add(stage);
    const engine = await connect(worker, indexOf(model), { ...OPTIONS, onProgress });
    const answers = [];
    for (const request of requests) answers.push(await answer(engine, request));
    const fault = await outcome(answer(engine, { ...requests[0]!, top_p: 2 }));
    const controller = new AbortController();
    const aborted = outcome(engine.completions.create({ ...requests[0]!, max_tokens: 100 }, controller));
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
