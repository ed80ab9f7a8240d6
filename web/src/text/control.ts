// Control tokens in the text of a conversation: the template's, and text that looks like them.
//
// A template writes control tokens around messages. Where a message holds the text of one, the text is
// marked before the template sees it, and encoded as the characters that it consists of. Marks are
// characters that Unicode reserves for programs, and texts lose them.
import { escaped } from './added.js';

const BEGIN = '\ufdd0';
const END = '\ufdd1';
const MARKED = new RegExp(`${BEGIN}([^${BEGIN}${END}]*)${END}|[${BEGIN}${END}]`);

export class ControlTokens {
  private readonly pattern: RegExp;

  // `becomes` says whether a text becomes a control token although it holds the text of none.
  constructor(texts: Iterable<string>, private readonly becomes: ((text: string) => boolean) | null = null) {
    // Longer tokens first, because one may contain another.
    const ordered = [...new Set(texts)].filter(Boolean).sort((a, b) => b.length - a.length);
    this.pattern = new RegExp(ordered.map(escaped).join('|') || '(?!)', 'gu');
  }

  /** A JSON value with marks around the control tokens in its strings. */
  marked<T>(value: T): T;
  marked(value: unknown): unknown {
    if (typeof value === 'string') return this.markedText(value);
    if (Array.isArray(value)) return value.map((item) => this.marked(item));
    if (value === null || typeof value !== 'object') return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [this.markedText(key), this.marked(item)]));
  }

  private markedText(given: string): string {
    const text = given.replaceAll(BEGIN, '').replaceAll(END, '');
    if (this.becomes?.(text.replace(this.pattern, ''))) return BEGIN + text + END;
    return text.replace(this.pattern, (token) => BEGIN + token + END);
  }
}

export interface Part {
  readonly text: string;
  readonly marked: boolean;
}

/** The parts of a text without marks; a template may have cut a marked part in two. */
export function markedParts(text: string): Part[] {
  return text.split(MARKED).flatMap((part, at) => (part ? { text: part, marked: at % 2 === 1 } : []));
}
