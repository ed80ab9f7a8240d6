// The decoder of a tokenizer.json: a list of steps, each of which makes tokens of tokens.
import { RdrrError } from '../errors.js';

export interface Description {
  readonly type: string;
  readonly [field: string]: unknown;
}

export type Step = (tokens: readonly string[]) => string[];

// Makes the text of all tokens of a text.
export type Join = (tokens: readonly string[]) => string;

// The steps without sequences, which can be nested.
export function flat(description: Description | null | undefined): Description[] {
  if (!description) return [];
  const inner = description['decoders'];
  return Array.isArray(inner) ? inner.flatMap((each: Description) => flat(each)) : [description];
}

export function joinOf(descriptions: readonly Description[]): Join {
  if (!descriptions.length) return (tokens) => tokens.join(' ');
  const steps = descriptions.map(stepOf);
  return (tokens) => steps.reduce<readonly string[]>((all, step) => step(all), tokens).join('');
}

const KINDS: Readonly<Record<string, (description: Description) => Step>> = {
  ByteLevel: () => (tokens) => [utf8.decode(Uint8Array.from(tokens.flatMap(bytesOfToken)))],
  ByteFallback: () => bytesFallBack,
  Fuse: () => (tokens) => [tokens.join('')],
  Metaspace: metaspace,
  Replace: replace,
  Strip: strip,
  WordPiece: wordPiece,
  BPEDecoder: ({ suffix }) => (tokens) =>
    tokens.map((token, at) => token.replaceAll(String(suffix), at === tokens.length - 1 ? '' : ' ')),
};

/** What is not read as Python does, and so not at all. */
export function refused(what: string): RdrrError {
  const advice = 'give token ids, or run the model with rdrr in Python';
  return new RdrrError('format', `tokenizer.json: ${what} is not read in browsers as it is in Python; ${advice}`);
}

function stepOf(description: Description): Step {
  const kind = KINDS[description.type];
  if (!kind) throw refused(`the decoder ${description.type}`);
  return kind(description);
}

export const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
const strict = new TextDecoder('utf-8', { ignoreBOM: true, fatal: true });
const encoder = new TextEncoder();

export const isByte = (token: string): boolean => /^<0x[0-9A-Fa-f]{2}>$/.test(token);

// A run of byte tokens becomes the text of its bytes, or a replacement for each of them.
function bytesFallBack(tokens: readonly string[]): string[] {
  const texts: string[] = [];
  let bytes: number[] = [];
  const flush = (): void => {
    try {
      if (bytes.length) texts.push(strict.decode(Uint8Array.from(bytes)));
    } catch {
      texts.push(...bytes.map(() => '\ufffd'));
    }
    bytes = [];
  };
  for (const token of tokens) {
    if (isByte(token)) {
      bytes.push(parseInt(token.slice(3, 5), 16));
    } else {
      flush();
      texts.push(token);
    }
  }
  flush();
  return texts;
}

function metaspace({ replacement, prepend_scheme: scheme, add_prefix_space: prefix }: Description): Step {
  const mark = String(replacement ?? '▁');
  const drops = (scheme ?? (prefix === false ? 'never' : 'always')) !== 'never';
  return (tokens) => tokens.map((token, at) => token.replaceAll(mark, at === 0 && drops ? '' : ' '));
}

function replace({ pattern, content }: Description): Step {
  const text = (pattern as { String?: string }).String;
  if (text === undefined) throw refused('the decoder Replace with a regular expression');
  return (tokens) => tokens.map((token) => token.replaceAll(text, () => String(content)));
}

function strip({ content, start, stop }: Description): Step {
  const cut = (token: string): string => {
    const characters = [...token];
    const begin = leading(characters, content, Number(start));
    const end = characters.length - leading(characters.slice().reverse(), content, Number(stop));
    return characters.slice(begin, end).join('');
  };
  return (tokens) => tokens.map(cut);
}

function leading(characters: readonly string[], content: unknown, most: number): number {
  let count = 0;
  while (count < most && characters[count] === content) count += 1;
  return count;
}

// Python's library cleans up each token by itself, with the space before it.
const CLEANED: readonly (readonly [string, string])[] = [
  [' .', '.'], [' ?', '?'], [' !', '!'], [' ,', ','], [" ' ", "'"], [" n't", "n't"], [" 'm", "'m"],
  [' do not', " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"],
];

function wordPiece({ prefix, cleanup }: Description): Step {
  const mark = String(prefix);
  const spaced = (token: string, at: number): string =>
    at === 0 ? token : token.startsWith(mark) ? token.slice(mark.length) : ` ${token}`;
  const cleaned = (text: string): string =>
    cleanup ? CLEANED.reduce((all, [from, to]) => all.replaceAll(from, to), text) : text;
  return (tokens) => tokens.map((token, at) => cleaned(spaced(token, at)));
}

const BYTES = byteAlphabet();

// The byte of each character of a byte-level token.
function byteAlphabet(): Map<string, number> {
  const printable = (byte: number): boolean =>
    (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
  const alphabet = new Map<string, number>();
  let others = 0;
  for (let byte = 0; byte < 256; byte += 1) {
    alphabet.set(String.fromCharCode(printable(byte) ? byte : 256 + others), byte);
    if (!printable(byte)) others += 1;
  }
  return alphabet;
}

// The bytes of a byte-level token; one with characters that stand for no byte is text.
export function bytesOfToken(token: string): number[] {
  const bytes = Array.from(token, (character) => BYTES.get(character));
  return bytes.every((byte) => byte !== undefined) ? (bytes as number[]) : [...encoder.encode(token)];
}
