import { RdrrError } from '../errors.js';
import { readText } from '../load/source.js';
import type { Recorded, TokenLogprob } from '../sampling/logprobs.js';
import { freshSeed } from '../sampling/words.js';
import { hiddenStates } from '../sequence/hidden.js';
import { Course, Sequence, type Generation, type Group } from '../sequence/sequence.js';
import { Grammars, openText, type Answer, type Constraint, type Text, type TextFiles } from '../text/index.js';
import { Answers, type CallOptions } from './answers.js';
import { grownModel, openModel, openSource, type LoadOptions, type Opened, type Source } from './open.js';
import { Pooling } from './pooling.js';
import {
  checkRequest,
  inputsOf,
  keptOf,
  samplingOf,
  schemaOf,
  stopsOf,
  tokensOf,
  topOf,
  type AnyEvent,
  type AnyRequest,
  type AnyTextRequest,
  type EmbeddingRequest,
  type VectorEvent,
  type Logprob,
  type TokenEntry,
  type TextEvent,
  type TextRequest,
} from './requests.js';
import { restored, saved, type Session } from './session.js';
import { surveyOf, type Survey } from './survey.js';
import { Timing } from './timing.js';

const REOPENED = 2; // most times that a device is opened again in a call
const NOTICE = 200; // milliseconds in which a device that fails must say that it was lost

/** Facts about a loaded model. */
export interface ModelFacts {
  id: string;
  /** Tokens that the cache has room for. */
  context: number;
  vocabulary: number;
  /** Whether the package has a chat template, and a tokenizer. */
  chat: boolean;
  text: boolean;
  /** Whether it generates text, and whether it makes embeddings. */
  generates: boolean;
  embeds: boolean;
  /** Bytes of the weights as files, and of all buffers on the device. */
  size: number;
  memory: number;
  /** File of the program, and what it needs of the device. */
  program: string;
  features: readonly string[];
  adapter: string;
}

/** A model that is loaded: it makes texts, one request after the other. */
export class Engine extends Answers {
  /** Load a model from the URL of an index that `rdrr web` wrote, or of its folder. */
  static async load(url: string, options: LoadOptions = {}): Promise<Engine> {
    const source = await openSource(url, options);
    const files = await textFiles(source);
    const opened = await openModel(source, options);
    return new Engine(source, options, opened, files);
  }

  /** Return what a load would need, without loading: size, memory, whether this device has what it takes. */
  static async survey(url: string, options: LoadOptions = {}): Promise<Survey> {
    return surveyOf(await openSource(url, options), options);
  }

  /** Resolves with the reason when the device was lost and could not be opened again. */
  readonly lost: Promise<string>;
  private readonly text: Text | null;
  private sequence: Sequence;
  private grammars: Promise<Grammars> | null = null;
  private state: 'open' | 'lost' | 'closed' = 'open';
  private last: Promise<unknown> = Promise.resolve();
  private lostFor!: (reason: string) => void;

  private constructor(
    private readonly source: Source,
    private readonly options: LoadOptions,
    private opened: Opened,
    files: TextFiles | null,
  ) {
    super(
      () => source.index.model,
      (request, call) => this.run(request, call),
    );
    const { manifest, player } = opened;
    this.text = files && openText({ ...files, stated: manifest.tokenizer, ends: player.program.ends });
    this.lost = new Promise((resolve) => (this.lostFor = resolve));
    this.sequence = this.newSequence();
    this.watch();
  }

  private newSequence(): Sequence {
    return new Sequence(this.opened.player, async (least) => (this.options.context === undefined ? grownModel(this.opened, least) : null));
  }

  get model(): ModelFacts {
    const { player, entry, adapter } = this.opened;
    const { vendor, architecture, description } = adapter.info;
    return {
      id: this.source.index.model,
      context: player.context,
      vocabulary: player.program.vocabulary,
      chat: Boolean(this.text?.chat),
      text: Boolean(this.text),
      generates: player.program.passes.length > 0,
      embeds: Boolean(player.program.hidden && this.opened.manifest.embedding),
      size: this.source.index.size,
      memory: player.memory,
      program: entry.file,
      features: entry.needs.features ?? [],
      adapter: description || [vendor, architecture].filter(Boolean).join(' '),
    };
  }

  /** Return the ids of a text, as a completion would have them. */
  encode(text: string): number[] {
    return this.requireText().encode(text);
  }

  decode(ids: readonly number[]): string {
    return this.requireText().decode(ids);
  }

  /** Yield the parts of the texts of a request, or its embeddings, when the requests before it have ended. */
  async *run(given: AnyRequest, { signal }: CallOptions = {}): AsyncGenerator<AnyEvent> {
    checkRequest(given);
    const done = await this.turn(signal);
    try {
      if (given.kind === 'embedding') yield* this.vectors(given.request, signal);
      else yield* this.texts(given, signal);
    } finally {
      done();
    }
  }

  /** Wait for the calls before; what is returned lets the next one begin. */
  private async turn(signal?: AbortSignal): Promise<() => void> {
    const before = this.last;
    let done!: () => void;
    this.last = new Promise<void>((resolve) => (done = resolve));
    try {
      await before;
      signal?.throwIfAborted();
      if (this.state === 'closed') throw new RdrrError('usage', 'the engine is closed');
      return done;
    } catch (error) {
      done();
      throw error;
    }
  }

  /** Return the text that the cache holds, when the calls before have ended. */
  async save(): Promise<Session> {
    const done = await this.turn();
    try {
      return await saved(this.opened, this.source.index.manifest, this.sequence.ids);
    } finally {
      done();
    }
  }

  /** Take over a text that `save` returned: the next call continues from what it shares with it. */
  async restore(session: Session): Promise<void> {
    const done = await this.turn();
    try {
      if (this.state === 'lost') await this.reopen();
      await this.sequence.makeRoom(session.context);
      restored(this.opened, this.source.index.manifest, session);
      this.sequence.restore(session.ids);
    } finally {
      done();
    }
  }

  /** Free the memory on the device, when the requests that run have ended. */
  async close(): Promise<void> {
    await this.last;
    this.state = 'closed';
    this.opened.player.close();
    this.opened.player.device.destroy();
  }

  private async *vectors({ input, dimensions, prompt_name, truncate }: EmbeddingRequest, signal?: AbortSignal): AsyncGenerator<VectorEvent> {
    const { manifest, tensors, player } = this.opened;
    if (!manifest.embedding || !player.program.hidden) throw new RdrrError('usage', 'the package makes no embeddings');
    const pooling = new Pooling(manifest.embedding, tensors);
    const prompt = pooling.prompt(prompt_name);
    const texts = inputsOf(input).map((text) => {
      if (typeof text !== 'string') return text;
      return this.requireText().encodeWithin(prompt + text, truncate ? player.context : Infinity);
    });
    const skipped = prompt && pooling.leavesOutPrompt ? Math.max(0, this.encode(prompt).length - this.text!.suffix) : 0;
    const order = [...texts.keys()].sort((one, other) => texts[other]!.length - texts[one]!.length);
    const { width } = player.program.hidden;
    for await (const rows of this.hidden(order.map((index) => texts[index]!), signal)) {
      const index = order.shift()!;
      const vector = shortened(pooling.pool(rows, width, skipped), dimensions);
      yield { index, vector, tokens: texts[index]!.length };
    }
  }

  private async *texts(given: AnyTextRequest, signal?: AbortSignal): AsyncGenerator<TextEvent> {
    const { request } = given;
    if (!this.model.generates) throw new RdrrError('usage', 'the package generates no text; use embeddings');
    const [prompt, ends] = this.prompt(given);
    const copies = request.n ?? 1;
    const timing = new Timing(prompt.length);
    const common = { max_tokens: tokensOf(given), logprobs: topOf(given), context_shift: keptOf(request), signal };
    for (let index = 0; index < copies; index += 1) {
      const constraint = await this.constraint(request);
      const begun = (reused: number): void => timing.begun(reused);
      try {
        const parts = this.textOf(given, prompt, ends, timing, { ...samplingOf(request, index), ...common, constraint, begun });
        for await (const part of parts) yield { index, ...part, ...(part.finish && index === copies - 1 && { usage: timing.usage }) };
      } finally {
        constraint?.close();
      }
    }
  }

  /** Yield the parts of a text, the last of which says how it ended. */
  private async *textOf(
    given: AnyTextRequest,
    prompt: readonly number[],
    ends: ReadonlySet<number>,
    timing: Timing,
    options: Generation,
  ): AsyncGenerator<Omit<TextEvent, 'index'>> {
    const answer = this.answerTo(given, prompt);
    const stream = this.text?.stream(prompt, stopsOf(given.request), answer ? this.text.chat!.shows : undefined) ?? null;
    let ended = false;
    timing.start();
    for await (const { ids, recorded } of this.continued(prompt, options)) {
      const at = ids.findIndex((id) => ends.has(id));
      const some = at < 0 ? ids : ids.slice(0, at + 1);
      timing.count(some.length);
      const text = stream?.push(some) ?? '';
      ended = at >= 0 || Boolean(stream?.stopped);
      const logprobs = recorded && this.named(recorded.slice(0, some.length));
      yield { text, ids: some, finish: null, ...(answer && { deltas: answer.push(text) }), ...(logprobs && { logprobs }) };
      if (ended) break;
    }
    timing.end();
    const text = stream?.end() ?? '';
    const deltas = answer ? [...answer.push(text), ...answer.end()] : [];
    const finish = answer?.hasCalls ? 'tool_calls' : ended ? 'stop' : 'length';
    yield { text, ids: [], finish, ...(answer && { deltas }) };
  }

  /** Return what a request's schema lets follow; undefined if its texts are free. */
  private async constraint(request: TextRequest): Promise<Constraint | undefined> {
    const schema = schemaOf(request);
    if (!schema) return undefined;
    const { grammar } = this.options;
    if (!grammar) throw new RdrrError('usage', 'response_format: give the engine `grammar`, the URL of the script of @mlc-ai/web-xgrammar');
    const { vocabulary, ends } = this.opened.player.program;
    const text = this.requireText();
    this.grammars ??= Grammars.open(grammar, text.vocabulary, vocabulary, [...ends, ...(text.chat?.ends ?? [])]);
    this.grammars.catch(() => (this.grammars = null));
    return (await this.grammars).constraint(schema);
  }

  /** Return log-probabilities with the texts of their tokens. */
  private named(recorded: readonly Recorded[]): Logprob[] {
    const text = this.requireText();
    const entry = ({ id, logprob }: TokenLogprob): TokenEntry => {
      const token = text.decode([id]);
      return { token, logprob, bytes: [...new TextEncoder().encode(token)] };
    };
    return recorded.map(({ top, ...token }) => ({ ...entry(token), top_logprobs: top.map(entry) }));
  }

  /** Return what reads the answer to a chat: its content, reasoning and calls of tools. */
  private answerTo(given: AnyTextRequest, prompt: readonly number[]): Answer | null {
    if (given.kind === 'completion') return null;
    const { tools, tool_choice } = given.request;
    return this.requireText().chat!.answer(prompt, tool_choice === 'none' ? [] : tools);
  }

  /** Return the ids of a request's prompt, and those that end its texts. */
  private prompt(given: AnyTextRequest): [number[], Set<number>] {
    const { ends } = this.opened.player.program;
    if (given.kind === 'completion') {
      const { prompt } = given.request;
      return [typeof prompt === 'string' ? this.encode(prompt) : [...prompt], new Set(ends)];
    }
    const { chat } = this.requireText();
    if (!chat) throw new RdrrError('usage', 'the package has no chat template; use completions');
    const { messages, tools, tool_choice, chat_template_kwargs: variables } = given.request;
    const calls = tools && tool_choice !== 'none' ? { tools } : {};
    return [chat.encode(messages, { ...calls, ...(variables && { variables }) }), new Set([...ends, ...chat.ends])];
  }

  private requireText(): Text {
    if (this.text) return this.text;
    throw new RdrrError('usage', 'the package has no tokenizer: give token ids as the prompt');
  }

  /** Yield ids that continue a prompt; when the device is lost, on another one from where they were. */
  private continued(prompt: readonly number[], options: Generation): AsyncGenerator<Group> {
    const seed = options.seed ?? freshSeed();
    const course = new Course([...prompt]);
    return this.resumed(options.signal, () => this.sequence.generate(course, { ...options, seed }));
  }

  /** Yield the hidden states of texts, which take the place of what the cache holds. */
  private hidden(texts: readonly (readonly number[])[], signal?: AbortSignal): AsyncGenerator<Float32Array> {
    let done = 0;
    return this.resumed(signal, (parts) => {
      done += parts.length;
      this.sequence.restore([]);
      return hiddenStates(this.opened.player, texts.slice(done), signal);
    });
  }

  /** Yield parts; when the device is lost, those that follow the parts since the last start, on another one. */
  private async *resumed<Part>(signal: AbortSignal | undefined, start: (parts: readonly Part[]) => AsyncIterable<Part>): AsyncGenerator<Part> {
    let parts: Part[] = [];
    for (let attempt = 0; ; attempt += 1) {
      try {
        if (this.state === 'lost') await this.reopen();
        const following = start(parts);
        parts = [];
        for await (const part of following) {
          parts.push(part);
          yield part;
        }
        return;
      } catch (error) {
        signal?.throwIfAborted();
        if (attempt === REOPENED || !(await this.isLost())) throw error;
      }
    }
  }

  private async isLost(): Promise<boolean> {
    const notice = new Promise((done) => setTimeout(done, NOTICE));
    await Promise.race([this.opened.player.device.lost, notice]);
    return this.state === 'lost';
  }

  private watch(): void {
    const { device } = this.opened.player;
    void device.lost.then(() => {
      if (this.state === 'open' && device === this.opened.player.device) this.state = 'lost';
    });
  }

  /** Load the model again after its device was lost; the files come from the cache, if the browser keeps them. */
  private async reopen(): Promise<void> {
    try {
      const { signal: _, ...options } = this.options;
      this.source.access.signal = undefined;
      this.opened = await openModel(this.source, options);
    } catch (error) {
      this.lostFor(String(error));
      throw error;
    }
    this.state = 'open';
    this.sequence = this.newSequence();
    this.watch();
  }
}

/** Return the first elements of a vector, with the norm 1. */
function shortened(vector: Float32Array, dimensions: number | null | undefined): Float32Array {
  if (dimensions == null) return vector;
  if (dimensions > vector.length) throw new RdrrError('usage', `dimensions: expected at most ${vector.length}, found ${dimensions}`);
  const part = vector.subarray(0, dimensions);
  const norm = Math.hypot(...part) || 1;
  return part.map((value) => value / norm);
}

/** Return the files of the text of a package; null if it has no tokenizer. */
async function textFiles({ index, base, access }: Source): Promise<TextFiles | null> {
  const read = async (name: string | undefined): Promise<string | null> => (name ? readText(base + name, access) : null);
  const { tokenizer: name, config, special, template } = index.text;
  if (!name) return null;
  const files = await Promise.all([read(name), read(config), read(special), read(template)]);
  return { tokenizer: files[0]!, config: files[1], special: files[2], template: files[3], stated: null };
}
