import { RdrrError } from '../errors.js';
import type { Player } from '../player/player.js';
import { packStep } from '../program/records.js';
import type { Pass, Phase } from '../program/schema.js';
import { checkSampling, isGreedy, searchesOf, type SamplingOptions } from '../sampling/options.js';
import { entriesOf, entriesWords, freshSeed, samplerWords } from '../sampling/words.js';

const AHEAD = 4; // decode passes in a submission, one of which is ahead of the readback of the one before
const NOT_FINITE = 0x80000000;

export interface Generation extends SamplingOptions {
  max_tokens?: number | undefined;
  signal?: AbortSignal | undefined;
  /** Tokens of the prompt that were sampled with the seed before, for a generation that is continued. */
  sampled?: number | undefined;
  /** Called when the prompt has run and the first id was read. */
  begun?: ((reused: number) => void) | undefined;
}

/** The token ids in the key-value cache of a player, and their continuation. */
export class Sequence {
  /** The ids whose keys and values are in the cache, in slot order from slot 0. */
  private cached: number[] = [];
  /** Whether the model has states, which cannot go back to an earlier position. */
  private readonly hasStates: boolean;

  constructor(private readonly player: Player) {
    this.hasStates = player.buffersOf('state').length > 0;
  }

  get ids(): readonly number[] {
    return this.cached;
  }

  /** Take ids whose keys and values were written into the buffers again. */
  restore(ids: readonly number[]): void {
    this.cached = [...ids];
  }

  /** Yield the ids that continue a prompt, in groups, as soon as they are read; the last may be an end. */
  async *generate(prompt: readonly number[], options: Generation = {}): AsyncGenerator<number[], void, undefined> {
    const { context, program } = this.player;
    const { signal, begun } = options;
    checkPrompt(prompt, context, program.vocabulary);
    checkSampling(options, program.vocabulary);
    const count = Math.min(options.max_tokens ?? Infinity, context - prompt.length);
    signal?.throwIfAborted();
    const phases = isGreedy(options) ? null : await this.begin(options, prompt);
    const reused = this.reuse(prompt);
    await this.prefill(prompt, phases, signal);
    if (count < 1) return;
    const decode = program.passes[0]!;
    const decodePhases = [...decode.body, ...decode.head, ...(phases ?? decode.sample)];
    await this.player.prepare(kernelsOf(decodePhases));
    const ends = new Set(program.ends);
    let submitted = 1;
    let waiting: Promise<Uint32Array> | null = this.player.read(program.ring, 0, 1);
    let first = true;
    try {
      while (waiting) {
        const some = Math.min(AHEAD, count - submitted);
        const following: Promise<Uint32Array> | null = some > 0 ? this.decode(decodePhases, submitted, some) : null;
        following?.catch(() => {}); // awaited below, unless the one before fails
        submitted += Math.max(some, 0);
        const ids = finite(await waiting);
        waiting = following;
        if (first) begun?.(reused);
        first = false;
        const end = ids.findIndex((id) => ends.has(id));
        const read = end < 0 ? ids : ids.slice(0, end + 1);
        this.cached.push(...read);
        signal?.throwIfAborted();
        yield read;
        if (end >= 0) return;
      }
    } finally {
      await waiting?.catch(() => {});
      this.cached.pop(); // the last id was chosen, but did not run
      const ran = prompt.length + submitted - 1;
      if (this.hasStates && this.cached.length !== ran) this.cached = [];
    }
  }

  private decode(phases: readonly Phase[], first: number, count: number): Promise<Uint32Array> {
    this.player.run(phases, 1, count);
    return this.player.read(this.player.program.ring, first, count);
  }

  /** Write what sampling needs, and return the phases that sample. */
  private async begin(options: Generation, seen: readonly number[]): Promise<readonly Phase[]> {
    const { player } = this;
    const { sampler, records } = player.program;
    if (!sampler) throw new RdrrError('usage', 'the program generates no text');
    player.write(sampler.params, samplerWords(records, options, BigInt(options.seed ?? freshSeed()), options));
    player.clear(sampler.counts);
    player.clear(sampler.bias);
    await player.prepare([sampler.scatter.kernel]);
    for (const words of entriesWords(records, entriesOf(options, seen), sampler.most_entries)) {
      player.write(sampler.entries, words);
      player.run([sampler.scatter], 1);
    }
    const [topK, topP] = searchesOf(options);
    const sampling = sampler.samplings.find(({ top_k, top_p }) => top_k === topK && top_p === topP);
    if (!sampling) throw new RdrrError('format', 'the program has no phases for these options of sampling');
    return sampling.phases;
  }

  /** Forget cached ids that differ from the prompt, and return how many of its ids need not run again. */
  private reuse(prompt: readonly number[]): number {
    const most = Math.min(this.cached.length, prompt.length - 1);
    let common = 0;
    while (common < most && this.cached[common] === prompt[common]) common += 1;
    if (this.hasStates && common < this.cached.length) common = 0;
    this.cached.length = common;
    return common;
  }

  /** Run what is not cached of a prompt in the fewest passes, and choose the first new id. */
  private async prefill(prompt: readonly number[], phases: readonly Phase[] | null, signal?: AbortSignal): Promise<void> {
    const { player } = this;
    const { program } = player;
    while (this.cached.length < prompt.length) {
      const start = this.cached.length;
      const pass = passFor(program.passes, prompt.length - start);
      const tokens = prompt.slice(start, start + pass.rows);
      const slots = tokens.map((_, row) => start + row);
      const isLast = start + tokens.length === prompt.length;
      const running = isLast ? [...pass.body, ...pass.head, ...(phases ?? pass.sample)] : pass.body;
      await player.prepare(kernelsOf(running));
      player.write(program.step, packStep(program.records, { tokens, slots }));
      player.run(running, tokens.length);
      this.cached.push(...tokens);
      if (!isLast && signal) await player.device.queue.onSubmittedWorkDone();
      signal?.throwIfAborted();
    }
  }
}

function kernelsOf(phases: readonly Phase[]): number[] {
  return phases.map(({ kernel }) => kernel);
}

/** Return the smallest pass with room for the rows that are left, or the longest. */
function passFor(passes: readonly Pass[], left: number): Pass {
  const pass = passes.find(({ rows }) => left <= rows) ?? passes.at(-1);
  if (!pass) throw new RdrrError('format', 'the program has no passes');
  return pass;
}

function checkPrompt(prompt: readonly number[], context: number, vocabulary: number): void {
  if (prompt.length < 1 || prompt.length >= context) {
    const message = `the prompt is empty or does not fit the context: expected 1 to ${context - 1} tokens, found ${prompt.length}`;
    throw new RdrrError('usage', message);
  }
  const wrong = prompt.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabulary));
  if (wrong !== undefined) throw new RdrrError('usage', `the prompt has the id ${wrong}: expected ids below ${vocabulary}`);
}

/** Return ids that were read; an id with the highest bit says that the logits are not finite. */
function finite(ids: Uint32Array): number[] {
  const wrong = ids.some((id) => id >= NOT_FINITE);
  if (wrong) throw new RdrrError('device', 'the logits are not finite, so no token can be chosen');
  return [...ids];
}
