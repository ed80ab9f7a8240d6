import { RdrrError } from '../errors.js';
import { SeenImages } from '../images/seen.js';
import { readText } from '../load/source.js';
import { freshSeed } from '../sampling/words.js';
import { hiddenStates } from '../sequence/hidden.js';
import { Course, Sequence, type Generation, type Group } from '../sequence/sequence.js';
import { Text, type TextFiles } from '../text/index.js';
import { Answers, type CallOptions } from './answers.js';
import { grownModel, openModel, openSource, openTower, type LoadOptions, type Opened, type Source } from './open.js';
import { Pooling } from './pooling.js';
import { checkRequest } from './fields.js';
import { inputsOf, type AnyEvent, type AnyRequest, type EmbeddingRequest, type VectorEvent } from './requests.js';
import { restored, saved, type Session } from './session.js';
import { Sight } from './sight.js';
import { surveyOf, type Survey } from './survey.js';
import { Texts } from './texts.js';

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
  /** Whether messages may have images. */
  sees: boolean;
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
  private readonly texts: Texts;
  private readonly sight: Sight | null;
  private sequence: Sequence;
  private state: 'open' | 'lost' | 'closed' = 'open';
  private last: Promise<unknown> = Promise.resolve();
  private lostFor!: (reason: string) => void;

  private constructor(
    private readonly source: Source,
    private readonly options: LoadOptions,
    private opened: Opened,
    files: TextFiles | null,
  ) {
    super();
    const { manifest, player } = opened;
    const text = files && new Text({ ...files, stated: manifest.tokenizer, ends: player.program.ends });
    const { images } = player.program;
    const { processor: recipe } = manifest;
    this.sight = images && recipe && opened.tower ? new Sight(new SeenImages(images), recipe, () => this.room, () => openTower(this.source, this.opened)) : null;
    this.texts = new Texts(text, player.program, options.grammar, this.sight, (prompt, generation) => this.continued(prompt, generation));
    this.lost = new Promise((resolve) => (this.lostFor = resolve));
    this.sequence = this.newSequence();
    this.watch();
  }

  private newSequence(): Sequence {
    return new Sequence(this.opened.player, async (least) => (this.options.context === undefined ? grownModel(this.opened, least) : null), this.sight?.seen);
  }

  /** Tokens that the cache may have room for. */
  private get room(): number {
    const { player, entry } = this.opened;
    return this.options.context === undefined ? entry.contexts.most : player.context;
  }

  get model(): ModelFacts {
    const { player, entry, adapter } = this.opened;
    const { vendor, architecture, description } = adapter.info;
    return {
      id: this.source.index.model,
      context: player.context,
      vocabulary: player.program.vocabulary,
      chat: Boolean(this.texts.text?.chat),
      text: Boolean(this.texts.text),
      generates: player.program.passes.length > 0,
      embeds: Boolean(player.program.hidden && this.opened.manifest.embedding),
      sees: this.sight !== null,
      size: this.source.index.size,
      memory: player.memory,
      program: entry.file,
      features: entry.needs.features ?? [],
      adapter: description || [vendor, architecture].filter(Boolean).join(' '),
    };
  }

  /** Return the ids of a text, as a completion would have them. */
  encode(text: string): number[] {
    return this.texts.requireText().encode(text);
  }

  decode(ids: readonly number[]): string {
    return this.texts.requireText().decode(ids);
  }

  /** Yield the parts of the texts of a request, or its embeddings, when the requests before it have ended. */
  async *run(given: AnyRequest, { signal }: CallOptions = {}): AsyncGenerator<AnyEvent> {
    const ignored = checkRequest(given);
    if (ignored.length) console.warn(`rdrr ignores fields of a request that it does not know: ${ignored.join(', ')}`);
    const [begun, done] = this.turn(signal);
    try {
      await begun;
      if (this.state === 'lost') await this.reopen(); // images are encoded before a text can be resumed
      if (given.kind === 'embedding') yield* this.vectors(given.request, signal);
      else yield* this.texts.of(given, signal);
    } finally {
      done();
    }
  }

  /** Return what resolves when the calls before have ended, and what lets the next one begin. */
  private turn(signal?: AbortSignal): [begun: Promise<void>, done: () => void] {
    const begun = this.last.then(() => {
      signal?.throwIfAborted();
      if (this.state === 'closed') throw new RdrrError('usage', 'the engine is closed');
    });
    let done!: () => void;
    this.last = new Promise<void>((resolve) => (done = resolve));
    return [begun, done];
  }

  private async inTurn<Value>(work: () => Promise<Value>): Promise<Value> {
    const [begun, done] = this.turn();
    try {
      await begun;
      return await work();
    } finally {
      done();
    }
  }

  /** Return the text that the cache holds, when the calls before have ended. */
  save(): Promise<Session> {
    return this.inTurn(() => saved(this.opened, this.source.index.manifest, this.sequence.ids));
  }

  /** Take over a text that `save` returned: the next call continues from what it shares with it. */
  restore(session: Session): Promise<void> {
    return this.inTurn(async () => {
      if (this.state === 'lost') await this.reopen();
      await this.sequence.makeRoom(session.context);
      restored(this.opened, this.source.index.manifest, session);
      this.sequence.restore(session.ids);
    });
  }

  /** Free the memory on the device, when the requests that run have ended. */
  async close(): Promise<void> {
    await this.last;
    this.state = 'closed';
    this.sight?.close();
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
      return this.texts.requireText().encode(prompt + text, truncate ? player.context : Infinity);
    });
    const skipped = prompt && pooling.leavesOutPrompt ? Math.max(0, this.encode(prompt).length - this.texts.requireText().suffix) : 0;
    const order = [...texts.keys()].sort((one, other) => texts[other]!.length - texts[one]!.length);
    const { width } = player.program.hidden;
    for await (const rows of this.hidden(order.map((index) => texts[index]!), signal)) {
      const index = order.shift()!;
      const vector = shortened(pooling.pool(rows, width, skipped), dimensions);
      yield { index, vector, tokens: texts[index]!.length };
    }
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
      this.sight?.close(); // its buffers were on the lost device
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
  if (!index.text.tokenizer) return null;
  const read = async ([kind, name]: [string, string]): Promise<[string, string]> => [kind, await readText(base + name, access, (text) => text)];
  return Object.fromEntries(await Promise.all(Object.entries(index.text).map(read))) as unknown as TextFiles;
}
