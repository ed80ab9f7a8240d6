// Values as models write them in calls of tools: JSON, Python's literals, and keys without quotes.
//
// A model's text is nearly one of these languages, so one reader takes all of them.

export type Value = string | number | bigint | boolean | null | Value[] | { [key: string]: Value };

/** Whether a value is an object, and no list. */
export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return value !== null && typeof value === 'object' && !Array.isArray(value);
}

/** The text is no value, or no call. */
export class NotReadable extends Error {}

const MOST_DEPTH = 64;
const SPACE = ' \t\r\n';
const WORDS = new Map<string, boolean | null>([
  ['true', true], ['True', true], ['false', false], ['False', false], ['null', null], ['None', null],
]);
const NUMBER = /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$/;
const ESCAPES: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r', b: '\b', f: '\f' };
const CLOSING: Readonly<Record<string, string>> = { '{': '}', '[': ']', '(': ')' };

export class LiteralReader {
  at = 0;
  private readonly quotes: readonly string[];

  constructor(private readonly text: string, quote = '"') {
    this.quotes = [quote, '"', "'"];
  }

  value(depth = 0): Value {
    if (depth > MOST_DEPTH) throw new NotReadable('too deep');
    this.skip();
    const quote = this.quote();
    if (quote) return this.string(quote);
    if (this.next('{')) return Object.fromEntries(this.pairs('{', ':', depth));
    return this.next('[') || this.next('(') ? this.items(depth) : this.bare();
  }

  /** Keys and values, from the opening bracket to the closing one. */
  pairs(opening: string, separator: string, depth = 0): [string, Value][] {
    const pairs: [string, Value][] = [];
    const closing = CLOSING[opening]!;
    this.take(opening);
    this.listed(closing, () => {
      const key = this.key(separator);
      this.take(separator);
      pairs.push([key, this.value(depth + 1)]);
    });
    return pairs;
  }

  /** The characters up to one of `stops`. */
  word(stops: string): string {
    const begin = this.at;
    while (this.at < this.text.length && !stops.includes(this.text[this.at]!)) this.at += 1;
    return trimmed(this.text.slice(begin, this.at));
  }

  skip(): void {
    while (this.at < this.text.length && SPACE.includes(this.text[this.at]!)) this.at += 1;
  }

  skips(mark: string): boolean {
    this.skip();
    if (!this.next(mark)) return false;
    this.at += mark.length;
    return true;
  }

  take(mark: string): void {
    if (!this.skips(mark)) throw new NotReadable(`${mark} is missing at ${this.at}`);
  }

  private next(mark: string): boolean {
    return this.text.startsWith(mark, this.at);
  }

  private quote(): string | undefined {
    return this.quotes.find((quote) => this.next(quote));
  }

  private key(separator: string): string {
    this.skip();
    const quote = this.quote();
    const key = quote ? this.string(quote) : this.word(`${separator},{}[]()`);
    if (key || quote) return key;
    throw new NotReadable(`a key is missing at ${this.at}`);
  }

  private items(depth: number): Value[] {
    const closing = CLOSING[this.text[this.at]!]!;
    this.at += 1;
    const items: Value[] = [];
    this.listed(closing, () => items.push(this.value(depth + 1)));
    return items;
  }

  // Reads what commas separate, the last of which may end the list.
  private listed(closing: string, read: () => void): void {
    while (!this.skips(closing)) {
      read();
      if (this.skips(',')) continue;
      this.take(closing);
      return;
    }
  }

  private string(quote: string): string {
    let at = this.at + quote.length;
    if (quote.length > 1) { // a mark that no escape can hold
      const end = this.text.indexOf(quote, at);
      if (end < 0) throw new NotReadable('a string does not end');
      this.at = end + quote.length;
      return this.text.slice(at, end);
    }
    let text = '';
    for (; this.text[at] !== quote; at += 1) {
      if (at >= this.text.length) throw new NotReadable('a string does not end');
      if (this.text[at] === '\\') {
        const [part, size] = this.escape(at + 1);
        text += part;
        at += size;
      } else {
        text += this.text[at];
      }
    }
    this.at = at + 1;
    return text.replace(/[\ud800-\udfff]/gu, '\ufffd');
  }

  private escape(at: number): [string, number] {
    const name = this.text[at] ?? '';
    const digits = this.text.slice(at + 1, at + 5);
    if (name === 'u' && /^[0-9a-fA-F]{4}$/.test(digits)) return [String.fromCharCode(parseInt(digits, 16)), 5];
    return [ESCAPES[name] ?? name, 1];
  }

  private bare(): Value {
    const word = this.word(',{}[]()');
    if (WORDS.has(word)) return WORDS.get(word)!;
    if (NUMBER.test(word) && word.length < 400) return numberOf(word);
    if (!word) throw new NotReadable(`a value is missing at ${this.at}`);
    return word;
  }
}

// Large whole numbers keep all their digits.
function numberOf(word: string): number | bigint {
  const value = Number(word);
  return /^-?\d+$/.test(word) && !Number.isSafeInteger(value) ? BigInt(word) : value;
}

/** A text without the white space at its end. */
export function withoutEnd(text: string): string {
  let end = text.length;
  while (end && SPACE.includes(text[end - 1]!)) end -= 1;
  return text.slice(0, end);
}

export const trimmed = (text: string): string => withoutEnd(text).replace(/^[ \t\r\n]+/, '');

/** A value as JSON, with the spaces that Python writes. */
export function toJson(value: Value): string {
  if (Array.isArray(value)) return `[${value.map(toJson).join(', ')}]`;
  if (typeof value === 'bigint') return value.toString();
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${toJson(item)}`).join(', ')}}`;
}
