// The text of ids that arrive one at a time, up to a stop string and without special tokens.
import type { Segment } from './stream.js';

// Ends a text before the first stop string. A stop string may contain special tokens; the end of the
// text is held back as long as it may be the beginning of a stop string.
export class StopFilter {
  #stop: readonly string[];
  #held: Segment[] = [];
  found: string | null = null;

  constructor(stop: readonly string[]) {
    this.#stop = stop.filter(Boolean);
  }

  // The text that certainly precedes any stop string.
  feed(segments: readonly Segment[]): string {
    return segments.map((segment) => this.#add(segment)).join('');
  }

  // Whether a stop string would end the text if these segments came next.
  wouldStop(segments: readonly Segment[]): boolean {
    if (!segments.length || this.found !== null) return false;
    const text = textOf(this.#held) + textOf(segments);
    return this.#stop.some((stop) => text.includes(stop));
  }

  rest(): string {
    return this.#take(Infinity);
  }

  #add(segment: Segment): string {
    if (this.found !== null) return '';
    this.#held.push(segment);
    const held = textOf(this.#held);
    const [first] = this.#stop.filter((stop) => held.includes(stop)).sort((a, b) => order(held, a, b));
    if (first !== undefined) {
      this.found = first;
      const sure = this.#take(held.indexOf(first));
      this.#held = [];
      return sure;
    }
    return this.#take(held.length - overlap(held, this.#stop));
  }

  // Removes the first characters, and returns those that are of no special token.
  #take(size: number): string {
    let text = '';
    while (size > 0 && this.#held.length) {
      const [{ text: all, special }] = this.#held as [Segment];
      text += special ? '' : all.slice(0, size);
      if (all.length > size) this.#held[0] = { text: all.slice(size), special };
      else this.#held.shift();
      size -= all.length;
    }
    return text;
  }
}

const textOf = (segments: readonly Segment[]): string => segments.map(({ text }) => text).join('');

// The stop string that begins first ends a text; of several there, the first of the alphabet.
function order(text: string, a: string, b: string): number {
  return text.indexOf(a) - text.indexOf(b) || (a < b ? -1 : 1);
}

/** The length of the longest end of a text that may be the beginning of one of `marks`. */
export function overlap(text: string, marks: readonly string[]): number {
  let size = Math.min(text.length, Math.max(1, ...marks.map(({ length }) => length)) - 1);
  while (size > 0 && !marks.some((mark) => mark.startsWith(text.slice(-size)))) size -= 1;
  return size;
}
