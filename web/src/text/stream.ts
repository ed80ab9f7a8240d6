// Token ids one at a time, and the text that all of them have when they are decoded at once.
//
// The steps of a decoder see all tokens of a text: the first token may lose its space, bytes that are
// not UTF-8 change the text of other bytes. So a token's text is returned once no later token can
// change it, as in format/rdrr_format/token_stream.py.
import { bytesOfToken, flat, isByte, joinOf, utf8, type Description, type Join } from './steps.js';

export interface Segment {
  readonly text: string;
  readonly special: boolean; // a special token, which is not shown
}

export interface TokenDecoder {
  push(token: string): string; // the text that can no longer change
  held(): string; // what would follow if no more tokens came, incomplete characters aside
  rest(): string; // all that follows if no more tokens come
}

export const textOf = (segments: readonly Segment[]): string => segments.map(({ text }) => text).join('');

export const visible = (segments: readonly Segment[]): string =>
  textOf(segments.filter(({ special }) => !special));

interface Tokens {
  token(id: number): string | undefined;
  isSpecial(id: number): boolean;
}

// The text of ids, with special tokens where they arrived, between the texts of the tokens around them.
export class SegmentStream {
  private waiting: { length: number; token: string }[] = [];

  constructor(
    private readonly tokens: Tokens,
    private readonly decoder: TokenDecoder,
  ) {}

  push(id: number): Segment[] {
    const token = this.tokens.token(id);
    if (token === undefined) return [];
    if (!this.tokens.isSpecial(id)) return this.segments(this.decoder.push(token));
    const before = this.decoder.held();
    if (!before) return [{ text: token, special: true }];
    this.waiting.push({ length: [...before].length, token });
    return [];
  }

  held(): Segment[] {
    return this.placed(this.decoder.held());
  }

  rest(): Segment[] {
    return this.segments(this.decoder.rest());
  }

  private segments(text: string): Segment[] {
    if (!text) return [];
    const segments = this.placed(text);
    this.waiting = [];
    return segments;
  }

  private placed(text: string): Segment[] {
    if (!this.waiting.length) return text ? [{ text, special: false }] : [];
    const characters = [...text];
    const segments: Segment[] = [];
    let begin = 0;
    for (const { length, token } of this.waiting) {
      const end = Math.max(begin, length); // later tokens may have shortened the text
      segments.push({ text: characters.slice(begin, end).join(''), special: false }, { text: token, special: true });
      begin = end;
    }
    segments.push({ text: characters.slice(begin).join(''), special: false });
    return segments.filter((segment) => segment.text);
  }
}

interface Edit {
  readonly pattern: string;
  readonly content: string;
}

// Steps whose tokens do not depend on those that follow, but for runs of bytes.
const TOKENWISE = new Set(['ByteFallback', 'Fuse', 'Metaspace', 'WordPiece']);
// A token before those to decode, so that none of them is the first of a text.
const ANCHOR = 'a';

// What decodes the tokens of texts, opened for one text after the other.
export class Decoding {
  readonly join: Join; // without edits
  private readonly steps: readonly Description[];
  private readonly edits: readonly Edit[];

  constructor(description: Description | null | undefined) {
    [this.steps, this.edits] = splitEdits(flat(description));
    this.join = joinOf(this.steps);
  }

  open(prompt: readonly string[]): TokenDecoder {
    const inner = this.openUnedited(prompt);
    return this.edits.length ? new EditedDecoder(inner, this.edits, prompt.length ? this.join(prompt) : '') : inner;
  }

  private openUnedited(prompt: readonly string[]): TokenDecoder {
    if (this.steps.length === 1 && this.steps[0]!.type === 'ByteLevel') return new ByteLevelDecoder(prompt);
    if (!this.steps.every(seesSingleTokens)) return new TokenwiseDecoder(this.join, prompt, () => false);
    const hasBytes = this.steps.some(({ type }) => type === 'ByteFallback');
    return new TokenwiseDecoder(this.join, prompt, (token) => !(hasBytes && isByte(token)));
  }
}

// The steps without the edits of a whole text at their end, and these.
function splitEdits(steps: readonly Description[]): [readonly Description[], readonly Edit[]] {
  const patterns = steps.map(patternOf);
  const areEdits = (first: number): boolean =>
    patterns.slice(first).every(Boolean) && (patterns[first]?.length ?? 0) > 1;
  const fused = steps.findIndex(({ type }) => type === 'Fuse');
  let first = fused < 0 ? steps.length : fused;
  while (first < steps.length && !areEdits(first)) first += 1;
  const edits = steps.slice(first).map((step) => ({ pattern: patternOf(step)!, content: String(step['content']) }));
  return [first === steps.length ? steps : steps.slice(0, first), edits];
}

function patternOf(step: Description): string | undefined {
  return step.type === 'Replace' ? (step['pattern'] as { String?: string } | undefined)?.String : undefined;
}

function seesSingleTokens(step: Description): boolean {
  if (step.type === 'Strip') return step['stop'] === 0;
  // A longer pattern could span tokens, and other contents could be read as bytes.
  if (step.type === 'Replace') return [...(patternOf(step) ?? '')].length === 1 && !String(step['content']).includes('<');
  return TOKENWISE.has(step.type);
}

// Decodes the tokens whose text is not final yet, each time.
class TokenwiseDecoder implements TokenDecoder {
  private readonly anchor: number;
  private hasBegun: boolean;
  private tokens: string[];
  private shown: string;

  constructor(
    private readonly join: Join,
    prompt: readonly string[],
    private readonly isFinal: (token: string) => boolean,
  ) {
    this.anchor = join([ANCHOR]).length;
    let cut = prompt.length;
    while (cut && !isFinal(prompt[cut - 1]!)) cut -= 1;
    // Until some text has appeared, a token may still lose a space at the beginning.
    this.hasBegun = cut > 0 && hasText(join, prompt.slice(0, cut));
    this.tokens = this.hasBegun ? prompt.slice(cut) : [...prompt];
    this.shown = this.tokens.length ? this.text() : '';
  }

  push(token: string): string {
    this.tokens.push(token);
    if (!this.isFinal(token)) return '';
    const text = this.held();
    if (this.hasBegun || this.text()) {
      this.hasBegun = true;
      this.tokens = [];
      this.shown = '';
    }
    return text;
  }

  held(): string {
    return after(this.tokens.length ? this.text() : '', this.shown);
  }

  rest(): string {
    const text = this.held();
    this.shown = this.tokens.length ? this.text() : '';
    return text;
  }

  private text(): string {
    return this.hasBegun ? this.join([ANCHOR, ...this.tokens]).slice(this.anchor) : this.join(this.tokens);
  }
}

// Edits the text of another decoder up to where later text can no longer change it: what an edit
// changes begins with the first character of a pattern, and reaches no character that is in none.
class EditedDecoder implements TokenDecoder {
  private readonly characters: Set<string>;
  private readonly starts: Set<string>;
  private open: string;
  private shown: string;

  constructor(
    private readonly decoder: TokenDecoder,
    private readonly edits: readonly Edit[],
    prompt: string,
  ) {
    this.characters = new Set(edits.flatMap(({ pattern }) => [...pattern]));
    this.starts = new Set(edits.map(({ pattern }) => [...pattern][0]!));
    this.open = prompt.slice(this.cut(prompt));
    this.shown = this.edited(this.open);
  }

  push(token: string): string {
    this.open += this.decoder.push(token);
    const cut = this.cut(this.open);
    const text = this.new(this.open.slice(0, cut));
    if (cut) {
      this.open = this.open.slice(cut);
      this.shown = '';
    }
    return text;
  }

  held(): string {
    return this.new(this.open + this.decoder.held());
  }

  rest(): string {
    const text = this.new(this.open + this.decoder.rest());
    this.open = this.shown = '';
    return text;
  }

  private new(text: string): string {
    return after(this.edited(text), this.shown);
  }

  private edited(text: string): string {
    return this.edits.reduce((all, { pattern, content }) => all.replaceAll(pattern, () => content), text);
  }

  // Where the text begins that what follows it may change.
  private cut(text: string): number {
    const characters = [...text];
    let end = characters.length;
    while (end && this.characters.has(characters[end - 1]!)) end -= 1;
    while (end < characters.length && !this.starts.has(characters[end]!)) end += 1;
    return characters.slice(0, end).join('').length;
  }
}

const LONGEST = 4; // bytes of the longest character in UTF-8

class ByteLevelDecoder implements TokenDecoder {
  private readonly utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
  private shown: string;

  constructor(prompt: readonly string[]) {
    const bytes = Uint8Array.from(prompt.slice(-LONGEST).flatMap(bytesOfToken).slice(-LONGEST));
    const complete = this.utf8.decode(bytes, { stream: true });
    // The text of the prompt ends with a replacement for an incomplete character.
    this.shown = utf8.decode(bytes).length > complete.length ? '\ufffd' : '';
  }

  push(token: string): string {
    return this.new(this.utf8.decode(Uint8Array.from(bytesOfToken(token)), { stream: true }));
  }

  held(): string {
    return '';
  }

  rest(): string {
    return this.new(this.utf8.decode());
  }

  private new(text: string): string {
    if (!text) return text;
    const fresh = this.shown && text.startsWith(this.shown) ? text.slice(this.shown.length) : text;
    this.shown = '';
    return fresh;
  }
}

// Whether tokens at the beginning of a text have any text, looking at few of them.
function hasText(join: Join, tokens: readonly string[]): boolean {
  for (let end = 64; end < tokens.length; end += 64 * 64) if (join(tokens.slice(0, end))) return true;
  return join(tokens) !== '';
}

// What a text has after the beginning that it has in common with another.
function after(text: string, other: string): string {
  let at = 0;
  while (at < text.length && at < other.length && text[at] === other[at]) at += 1;
  const splitsCharacter = /[\ud800-\udbff]/.test(text[at - 1] ?? '') && at < text.length;
  return text.slice(splitsCharacter ? at - 1 : at);
}
