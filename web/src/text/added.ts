// Finds added tokens in a text, as Python's library does: the first, and of several there the longest.
import { WORD, type AddedToken } from './prepare.js';
import { refused } from './steps.js';

const ENDS_WORD = new RegExp(`[${WORD}]$`, 'u');
const BEGINS_WORD = new RegExp(`^[${WORD}]`, 'u');

/** A part of a text: an added token by its id, or text between them. */
export type Section = number | string;

export class AddedTokens {
  private readonly pattern: RegExp | null;
  private readonly tokens: Map<string, AddedToken>;

  // `written` is what stands in a text for a token.
  constructor(tokens: readonly AddedToken[], written: (token: AddedToken) => string = ({ content }) => content) {
    const distinct = new Map(tokens.map((token) => [token.content, token]));
    this.tokens = new Map([...distinct.values()].map((token) => [written(token), token]));
    // Python's library takes such tokens for others, depending on the order of a hash table.
    if (this.tokens.size < distinct.size || this.tokens.has('')) throw refused('an added token that the normalizer makes empty or equal to another');
    const texts = [...this.tokens.keys()].sort((a, b) => b.length - a.length);
    this.pattern = texts.length ? new RegExp(texts.map(escaped).join('|'), 'gu') : null;
  }

  /** The parts of a text in their order. */
  sections(text: string): Section[] {
    if (!this.pattern) return text ? [text] : [];
    const sections: Section[] = [];
    let begin = 0;
    for (const { 0: written, index } of text.matchAll(this.pattern)) {
      const token = this.tokens.get(written)!;
      const end = index + written.length;
      if (token.single_word && (ENDS_WORD.test(text.slice(0, index)) || BEGINS_WORD.test(text.slice(end)))) continue;
      const from = token.lstrip ? Math.max(begin, spaceBefore(text, index)) : index;
      const until = token.rstrip ? spaceAfter(text, end) : end;
      if (begin < from) sections.push(text.slice(begin, from));
      if (from < until) sections.push(token.id); // unless the token before has taken all of the space that this one is
      begin = until;
    }
    if (begin < text.length) sections.push(text.slice(begin));
    return sections;
  }
}

export const escaped = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');

const isSpace = (character: string | undefined): boolean => character !== undefined && /\p{White_Space}/u.test(character);

function spaceBefore(text: string, end: number): number {
  while (end && isSpace(text[end - 1])) end -= 1;
  return end;
}

function spaceAfter(text: string, begin: number): number {
  while (isSpace(text[begin])) begin += 1;
  return begin;
}
