// Runs cases in a browser and reports what came out; tests/web/test_chromium.py says what should.
import { openModel, openSource } from '../src/engine/open.js';
import { Sequence, type Generation } from '../src/sequence/sequence.js';

declare const report: (value: unknown) => Promise<void>;

interface Run {
  prompt: number[];
  options: Generation;
}

interface Case {
  kind: string;
  model: string;
  runs: Run[];
}

const started = performance.now();
const log = (text: string): void => console.error(((performance.now() - started) / 1000).toFixed(1), text);

const kinds: Record<string, (given: Case) => Promise<unknown>> = {
  // The ids of generations one after the other, and how many tokens of each prompt were cached.
  async ids({ model, runs }) {
    const source = await openSource(`${location.origin}/${model}/web/`);
    const start = performance.now();
    log('source');
    const { player, entry } = await openModel(source, { compile: 'lazily', onProgress: ({ stage, loaded }) => stage === 'download' ? null : log(`${stage} ${loaded}`) });
    const loaded = performance.now();
    const sequence = new Sequence(player);
    const out = [];
    for (const { prompt, options } of runs) {
      const ids: number[] = [];
      let cached = 0;
      for await (const some of sequence.generate(prompt, { ...options, begun: (reused) => (cached = reused) })) {
        ids.push(...some);
        log(`${some}`);
      }
      out.push({ ids, cached });
    }
    player.device.destroy();
    return { runs: out, program: entry.needs, seconds: [(loaded - start) / 1000, (performance.now() - loaded) / 1000] };
  },
};

const cases = (await (await fetch('/cases')).json()) as Record<string, Case>;
const results: Record<string, unknown> = {};
for (const [name, given] of Object.entries(cases)) {
  try {
    results[name] = await kinds[given.kind]!(given);
  } catch (error) {
    results[name] = { error: String((error as Error).stack ?? error) };
  }
}
await report(results);
