import { RdrrError } from '../errors.js';
import { writeImages } from '../images/inputs.js';
import { Positions, type SeenImages } from '../images/seen.js';
import type { Player, Words } from '../player/player.js';
import { packStep } from '../program/records.js';
import type { Logprobs, Pass, Phase, Program } from '../program/schema.js';
import { recordedOf, recordingOf, recordWords, type Recorded } from '../sampling/logprobs.js';
import { checkSampling, isGreedy, searchesOf, type SamplingOptions } from '../sampling/options.js';
import { entriesOf, entriesWords, freshSeed, samplerWords } from '../sampling/words.js';

const MOST_PASSES = 16; // of decoding in a submission; two submissions are not read yet, and the ring has 64 words
const GROUP_MS = 25; // how long a submission may take, since text appears when it ends
const NOT_FINITE = 0x80000000;

/** What the text so far lets follow, in one generation. */
export interface Constraint {
  /** Bit i mod 32 of word i / 32 is set if token i may follow. */
  mask(): Promise<Uint32Array<ArrayBuffer>>;
  accept(id: number): void;
}

export interface Generation extends SamplingOptions {
  /** Restricts what may follow; ids are then chosen one by one. */
  constraint?: Constraint | undefined;
  max_tokens?: number | undefined;
  /** How many first ids are kept when the context is full and the older half of the others is dropped; undefined ends the text. */
  context_shift?: number | undefined;
  signal?: AbortSignal | undefined;
  /** How many of the most probable tokens are recorded besides each chosen one; undefined for no log-probabilities. */
  logprobs?: number | undefined;
  /** Called when the prompt has run and the first id was read. */
  begun?: ((reused: number) => void) | undefined;
}

/** Ids that were read together, and what was recorded of each, if it was asked for. */
export interface Group {
  ids: number[];
  recorded?: Recorded[] | undefined;
}

/** A text that is generated: its ids, and what a context shift dropped. A generation that broke off is continued with it. */
export class Course {
  readonly dropped: number[] = [];
  /** New ids, and those among them that were sampled with the present seed. */
  made = 0;
  sampled = 0;
  shifts = 0;

  constructor(public ids: number[]) {}

  add(ids: readonly number[]): void {
    this.ids.push(...ids);
    this.made += ids.length;
    this.sampled += ids.length;
  }

  /** Drop the older half of the ids behind the first `keep`, until the rest fits a context. */
  shift(keep: number, context: number): void {
    while (this.ids.length > context) {
      const half = Math.ceil((this.ids.length - keep) / 2);
      this.dropped.push(...this.ids.splice(keep, half));
    }
    this.shifts += 1;
    this.sampled = 0;
  }
}

/** The token ids in the key-value cache of a player, and their continuation. */
export class Sequence {
  /** The ids whose keys and values are in the cache, in slot order from slot 0. */
  private cached: number[] = [];
  /** Whether the model has states, which cannot go back to an earlier position. */
  private readonly hasStates: boolean;
  private readonly positions: Positions | null;

  /** `grow` returns a player with room for more tokens, or null; it takes the place of the player before. */
  constructor(
    private player: Player,
    private readonly grow: (context: number) => Promise<Player | null> = async () => null,
    private readonly images: SeenImages | null = null,
  ) {
    this.positions = images && new Positions(images);
    this.hasStates = player.buffersOf('state').length > 0;
  }

  get ids(): readonly number[] {
    return this.cached;
  }

  /** Take ids whose keys and values were written into the buffers again. */
  restore(ids: readonly number[]): void {
    this.cached = [...ids];
  }

  /** Yield the ids that continue a text, in groups, as soon as they are read; the last may be an end. */
  async *generate(course: Course, options: Generation = {}): AsyncGenerator<Group, void, undefined> {
    const { max_tokens: most = Infinity, context_shift: keep } = options;
    checkSampling(options, this.player.program.vocabulary);
    do {
      await this.makeRoom(course.ids.length);
      const { context, program } = this.player;
      checkPrompt(course.ids, keep === undefined ? context : Infinity, program.vocabulary, this.images);
      checkKeep(keep, context);
      if (course.ids.length > context) course.shift(keep!, context);
      const ended = yield* this.run(course, most - course.made, options);
      if (ended) return;
    } while (course.made < most && (keep !== undefined || (await this.makeRoom(course.ids.length))));
  }

  /** Whether there is room for so many ids, perhaps in a larger cache, which begins empty. */
  async makeRoom(ids: number): Promise<boolean> {
    if (ids <= this.player.context) return true;
    const larger = await this.grow(ids);
    if (!larger) return false;
    this.player = larger;
    this.cached = [];
    return true;
  }

  /** Yield at most so many ids, or as many as there is room for; return whether the last is an end. */
  private async *run(course: Course, most: number, options: Generation): AsyncGenerator<Group, boolean, undefined> {
    const { context, program } = this.player;
    const { signal, begun } = options;
    const prompt = [...course.ids];
    const count = Math.min(most, context - prompt.length + 1); // the last id needs no slot, since it does not run
    signal?.throwIfAborted();
    const recording = options.logprobs === undefined ? null : recordingOf(program, options.logprobs);
    const { constraint } = options;
    const phases = isGreedy(options) && !constraint ? null : await this.begin(options, course);
    const toToken = ({ body, head, sample }: Pass): Phase[] => [...body, ...head, ...(phases ?? sample), ...(recording?.phases ?? [])];
    const reused = this.reuse(prompt);
    await this.prefill(prompt, toToken, signal);
    if (count < 1) return false;
    const decodePhases = toToken(program.passes[0]!);
    await this.player.prepare(kernelsOf(decodePhases));
    const ends = new Set(program.ends);
    let submitted = 1;
    const decode = (most: number): Promise<Steps> | null => {
      const [start, times] = [submitted, Math.min(most, count - submitted)];
      if (times < 1) return null;
      submitted += times;
      return this.player.run(decodePhases, 1, { times, reads: stepsOf(program, start, times, recording) });
    };
    let waiting: Promise<Steps> | null = this.player.read(stepsOf(program, 0, 1, recording));
    let [first, passes] = [true, 2];
    try {
      while (waiting) {
        const following: Promise<Steps> | null = constraint ? null : decode(passes);
        following?.catch(() => {}); // awaited below, unless the one before fails
        const asked = performance.now();
        const [words, records] = await waiting;
        const ids = finite(words!);
        if (!first) passes = nextPasses(ids.length, performance.now() - asked);
        waiting = following;
        if (first && !course.made) begun?.(reused);
        first = false;
        const end = ids.findIndex((id) => ends.has(id));
        const read = end < 0 ? ids : ids.slice(0, end + 1);
        this.cached.push(...read);
        signal?.throwIfAborted();
        course.add(read);
        yield { ids: read, recorded: recording && records ? recordedOf(read, records, recording, options.logprobs!, program.vocabulary) : undefined };
        if (end >= 0) return true;
        if (constraint) {
          constraint.accept(ids[0]!);
          await this.restrict(constraint);
          waiting = decode(1);
        }
      }
      return false;
    } finally {
      await waiting?.catch(() => {});
      this.cached.pop(); // the last id was chosen, but did not run
      const ran = prompt.length + submitted - 1;
      if (this.hasStates && this.cached.length !== ran) this.cached = [];
    }
  }

  /** Write what sampling needs, and return the phases that sample. */
  private async begin(options: Generation, { ids, dropped, shifts, sampled }: Course): Promise<readonly Phase[]> {
    const { player } = this;
    const { sampler, records } = player.program;
    if (!sampler) throw new RdrrError('usage', 'the program generates no text');
    player.write(sampler.params, samplerWords(records, options, BigInt(options.seed ?? freshSeed()) + BigInt(shifts), { sampled, masked: Boolean(options.constraint) }));
    if (options.constraint) await this.restrict(options.constraint);
    player.clear(sampler.counts);
    player.clear(sampler.bias);
    await player.prepare([sampler.scatter.kernel]);
    for (const words of entriesWords(records, entriesOf(options, [...dropped, ...ids], player.program.vocabulary), sampler.most_entries)) {
      player.write(sampler.entries, words);
      await player.run([sampler.scatter], 1);
    }
    const [topK, topP] = searchesOf(options);
    const sampling = sampler.samplings.find(({ top_k, top_p }) => top_k === topK && top_p === topP);
    if (!sampling) throw new RdrrError('format', 'the program has no phases for these options of sampling');
    return sampling.phases;
  }

  private async restrict(constraint: Constraint): Promise<void> {
    this.player.write(this.player.program.sampler!.mask, await constraint.mask());
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
  private async prefill(prompt: readonly number[], toToken: (pass: Pass) => Phase[], signal?: AbortSignal): Promise<void> {
    const { player } = this;
    const { program } = player;
    while (this.cached.length < prompt.length) {
      const start = this.cached.length;
      const pass = passFor(program.passes, prompt.length - start);
      const end = start + pass.rows;
      const tokens = prompt.slice(start, this.images?.border(prompt, start, end) ?? end);
      const slots = tokens.map((_, row) => start + row);
      const isLast = start + tokens.length === prompt.length;
      const running = isLast ? toToken(pass) : pass.body;
      await player.prepare(kernelsOf(running));
      const placed = this.positions && writeImages(player, this.positions, tokens, start);
      player.write(program.step, packStep(program.records, { tokens, slots, ...placed }));
      await player.run(running, tokens.length);
      this.cached.push(...tokens);
      if (!isLast && signal) await player.device.queue.onSubmittedWorkDone();
      signal?.throwIfAborted();
    }
  }
}

/** The ids of some steps, and what was recorded of them if it was asked for. */
type Steps = Uint32Array[];

/** Return where the ids of some steps are, and what is recorded of them. */
function stepsOf({ ring }: Program, first: number, count: number, recording: Logprobs | null): Words[] {
  const ids = { range: ring, first, count };
  if (!recording) return [ids];
  const words = recordWords(recording);
  return [ids, { range: recording.records, first: words * first, count: words * count }];
}

/**
 * Return how many passes to submit next, from the milliseconds that the host waited for some: as many as take GROUP_MS.
 *
 * A host that is slower than its device waits less, and more passes help then too.
 */
function nextPasses(passes: number, waited: number): number {
  return Math.max(1, Math.min(2 * passes, MOST_PASSES, Math.floor((passes * GROUP_MS) / waited)));
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

function checkPrompt(prompt: readonly number[], context: number, vocabulary: number, images: SeenImages | null): void {
  if (prompt.length < 1 || prompt.length > context) {
    const most = Number.isFinite(context) ? `1 to ${context} tokens` : 'a token';
    throw new RdrrError('usage', `the prompt is empty or does not fit the context: expected ${most}, found ${prompt.length}`);
  }
  const runs = images?.runs(prompt) ?? [];
  if (runs.length && context === Infinity) throw new RdrrError('usage', 'context_shift: a text with images cannot be shortened');
  if (runs.some(({ at, count }) => at + count === prompt.length)) throw new RdrrError('usage', 'the prompt ends with an image: let a text follow it');
  const wrong = prompt.find((id) => !(Number.isInteger(id) && id >= 0 && (id < vocabulary || (images && id >= images.first))));
  if (wrong !== undefined) throw new RdrrError('usage', `the prompt has the id ${wrong}: expected ids below ${vocabulary}`);
}

function checkKeep(keep: number | undefined, context: number): void {
  if (keep === undefined || (Number.isInteger(keep) && keep >= 0 && keep <= context / 2)) return;
  throw new RdrrError('usage', `context_shift: expected 0 to ${Math.floor(context / 2)}, half of the context, found ${keep}`);
}

/** Return ids that were read; an id with the highest bit says that the logits are not finite. */
function finite(ids: Uint32Array): number[] {
  const wrong = ids.some((id) => id >= NOT_FINITE);
  if (wrong) throw new RdrrError('device', 'the logits are not finite, so no token can be chosen');
  return [...ids];
}
