// Text as token ids, and ids as text, whole or as a stream.
import { Tokenizer as Library } from '@huggingface/tokenizers';
import { RdrrError } from '../errors.js';
import { AddedTokens } from './added.js';
import { charsmap } from './charsmap.js';
import type { Vocabulary } from './grammar.js';
import { prepared, readFile, type AddedToken, type TokenizerFile } from './prepare.js';
import { Decoding, SegmentStream, visible } from './stream.js';

interface Step {
  normalize(text: string): string;
  charsmap?: string | null;
  normalizers?: (Step | null)[];
}

// The library's tokenizer, and what its types leave out.
interface Opened {
  normalizer: Step | null;
  pre_tokenizer: { pre_tokenize(text: string, options: { section_index: number }): string[] } | null;
  model: { _call(words: string[]): string[]; tokens_to_ids: Map<string, number>; unk_token_id?: number };
  post_processor: { post_process(tokens: unknown, pair: null, special: boolean): { tokens: (number | string)[] } } | null;
}

/** The tokenizer of a file; ids equal those of Python's library, or the file is refused. */
export class Tokenizer {
  readonly added: readonly AddedToken[];
  // Whether an added token may be in a text that does not hold its text.
  readonly normalizes: boolean;
  private readonly file: TokenizerFile;
  private readonly library: Opened;
  private readonly unnormalized: AddedTokens;
  private readonly normalized: AddedTokens;
  private readonly tokens: ReadonlyMap<number, string>;
  private readonly special: ReadonlySet<string>;
  private readonly decoding: Decoding;

  constructor(text: string) {
    this.file = readFile(text);
    this.library = opened(this.file);
    this.added = this.file.added_tokens;
    const { normalizer } = this.library;
    this.normalizes = normalizer !== null && this.added.some((token) => token.normalized);
    const tokens = this.added.filter(({ content }) => content);
    const written = ({ content }: AddedToken): string => normalizer?.normalize(content) ?? content;
    this.unnormalized = new AddedTokens(tokens.filter((token) => !token.normalized));
    this.normalized = new AddedTokens(tokens.filter((token) => token.normalized), written);
    this.tokens = tokensOf(this.file);
    this.special = new Set(this.added.filter(({ special }) => special).map(({ content }) => content));
    this.decoding = new Decoding(this.file.decoder);
  }

  /**
   * The ids of a text; `special` adds what the post-processor adds, and before it `bos` where it adds none, of at most `limit` tokens,
   * for which the end of the text is cut off; `control: false` makes no added token.
   */
  encode(text: string, { special = false, control = true, limit = Infinity, bos = null as number | null } = {}): number[] {
    if (/[\ud800-\udfff]/u.test(text)) throw new RdrrError('usage', 'the text has half of a surrogate pair, which is no character');
    const sections = control ? this.unnormalized.sections(text) : [text];
    const ids = sections.flatMap((section, at) => (typeof section === 'number' ? section : this.encodeSection(section, at === 0, control)));
    if (!special) return ids;
    const within = (most: number): number[] => this.completed(ids.slice(0, Math.max(0, most - this.completed([]).length)));
    const whole = within(limit);
    return bos === null || whole[0] === bos ? whole : [bos, ...within(limit - 1)];
  }

  private encodeSection(text: string, isFirst: boolean, control: boolean): number[] {
    const normal = this.library.normalizer?.normalize(text) ?? text;
    const sections = control ? this.normalized.sections(normal) : [normal];
    const begins = isFirst && !this.loses(text);
    return sections.flatMap((section, at) => (typeof section === 'number' ? section : this.encodeText(section, begins && at === 0)));
  }

  // Whether the normalizer removes the first character: what follows is not the beginning of the text then.
  private loses(text: string): boolean {
    const { normalizer } = this.library;
    if (!normalizer || !text) return false;
    return normalizer.normalize(`${String.fromCodePoint(text.codePointAt(0)!)}a`) === normalizer.normalize('a');
  }

  private encodeText(text: string, isFirst: boolean): number[] {
    if (!text) return [];
    const { model, pre_tokenizer: pre } = this.library;
    const words = pre ? pre.pre_tokenize(text, { section_index: isFirst ? 0 : 1 }) : [text];
    const { tokens_to_ids: ids, unk_token_id: unknown } = model;
    const { type, byte_fallback: hasBytes, ignore_merges: asWhole } = this.file.model;
    // Where nothing stands for unknown characters, those around them are merged.
    const known = (word: string): string => (asWhole && ids.has(word) ? word : Array.from(word).filter((character) => ids.has(character)).join(''));
    const leavesOut = type === 'BPE' && unknown === undefined && !hasBytes;
    // Word by word: unknown characters of two words are two unknown tokens.
    const pieces = words.flatMap((word) => model._call([leavesOut ? known(word) : word]));
    const fallsBack = type === 'Unigram' && hasBytes === true;
    return pieces.flatMap((piece) => ids.get(piece) ?? ((fallsBack ? bytesOf(piece, ids) : null) ?? unknown ?? []));
  }

  // The ids with those that the post-processor adds.
  private completed(ids: readonly number[]): number[] {
    const processor = this.library.post_processor;
    if (!processor) return [...ids];
    const all = processor.post_process(ids, null, true).tokens;
    return all.map((token) => (typeof token === 'number' ? token : this.idOf(token)));
  }

  private idOf(token: string): number {
    const id = this.added.find(({ content }) => content === token)?.id ?? this.library.model.tokens_to_ids.get(token);
    if (id === undefined) throw new RdrrError('format', `tokenizer.json: the post-processor adds ${token}, which the vocabulary has not`);
    return id;
  }

  token(id: number): string | undefined {
    return this.tokens.get(id);
  }

  /** What a grammar library must know. */
  get vocabulary(): Vocabulary {
    const tokens = new Array<string>(Math.max(...this.tokens.keys()) + 1).fill('');
    for (const [id, token] of this.tokens) tokens[id] = this.special.has(token) ? '' : token;
    const decoder = JSON.stringify(this.file.decoder ?? null);
    const kind = decoder.includes('"ByteLevel"') ? 'byte_level' : decoder.includes('"Metaspace"') || decoder.includes('"ByteFallback"') ? 'byte_fallback' : 'raw';
    return { tokens, kind };
  }

  isSpecial(id: number): boolean {
    return this.special.has(this.tokens.get(id) ?? '');
  }

  /** The text of ids without special tokens. */
  decode(ids: readonly number[]): string {
    const stream = this.stream([]);
    return ids.map((id) => visible(stream.push(id))).join('') + visible(stream.rest());
  }

  stream(prompt: readonly number[]): SegmentStream {
    const before = prompt.filter((id) => !this.isSpecial(id)).flatMap((id) => this.tokens.get(id) ?? []);
    return new SegmentStream(this, this.decoding.open(before));
  }
}

function tokensOf({ model, added_tokens }: TokenizerFile): Map<number, string> {
  const vocab = model['vocab'] as Record<string, number> | [string, number][];
  const entries: [number, string][] = Array.isArray(vocab)
    ? vocab.map(([token], id) => [id, token])
    : Object.entries(vocab).map(([token, id]) => [id, token]);
  return new Map([...entries, ...added_tokens.map(({ id, content }): [number, string] => [id, content])]);
}

function opened(file: TokenizerFile): Opened {
  const unk = file.model['unk_token'];
  try {
    const library = new Library(prepared(file), { unk_token: unk }) as unknown as Opened;
    mend(library.normalizer);
    return library;
  } catch (error) {
    if (error instanceof RdrrError) throw error;
    throw new RdrrError('format', `tokenizer.json: the tokenizer library refuses it: ${String(error)}`, { cause: error });
  }
}

// The library reads no table of characters, and does what most of them do.
function mend(step: Step | null): void {
  if (step?.charsmap !== undefined) step.normalize = charsmap(step.charsmap ?? '');
  step?.normalizers?.forEach(mend);
}

// The ids of the bytes of an unknown piece, where the vocabulary has all of them.
function bytesOf(piece: string, ids: ReadonlyMap<string, number>): number[] | null {
  const bytes = Array.from(new TextEncoder().encode(piece), (byte) => ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`));
  return bytes.every((id) => id !== undefined) ? bytes as number[] : null;
}
