// The text of ids that arrive one at a time, up to a stop string and without special tokens.
import { textOf, type Segment, type SegmentStream } from './stream.js';

// Ends a text before the first stop string. A stop string may contain special tokens; the end of the
// text is held back as long as it may be the beginning of a stop string.
export class TextStream {
  /** The stop string that ended the text. */
  stoppedBy: string | null = null;
  private readonly stop: readonly string[];
  private held: Segment[] = [];

  /** `shows` says which special tokens the text has. */
  constructor(
    private readonly ids: SegmentStream,
    stop: readonly string[],
    private readonly shows: (token: string) => boolean = () => false,
  ) {
    this.stop = stop.filter(Boolean);
  }

  get stopped(): boolean {
    return this.stoppedBy !== null;
  }

  /** The text that is certain with these ids; those after a stop string are not read. */
  push(ids: readonly number[]): string {
    let text = '';
    for (const id of ids) {
      if (this.stopped) break;
      text += this.feed(this.ids.push(id));
      const following = this.ids.held(); // if no more ids come
      if (following.length && this.firstStop(textOf([...this.held, ...following]))) text += this.feed(following);
    }
    return text;
  }

  /** What was held back: incomplete characters, what may have been a stop string. */
  end(): string {
    return this.feed(this.ids.rest()) + this.take(Infinity);
  }

  // The text that certainly precedes any stop string.
  private feed(segments: readonly Segment[]): string {
    let text = '';
    for (const segment of segments) {
      if (this.stopped) break;
      this.held.push(segment);
      const held = textOf(this.held);
      this.stoppedBy = this.firstStop(held);
      text += this.take(this.stoppedBy === null ? held.length - overlap(held, this.stop) : held.indexOf(this.stoppedBy));
      if (this.stopped) this.held = [];
    }
    return text;
  }

  // The stop string that begins first in a text; of several there, the first of the alphabet.
  private firstStop(text: string): string | null {
    const inside = this.stop.filter((stop) => text.includes(stop));
    return inside.sort((a, b) => text.indexOf(a) - text.indexOf(b) || (a < b ? -1 : 1))[0] ?? null;
  }

  // Removes the first characters, and returns those that are shown.
  private take(size: number): string {
    let text = '';
    while (size > 0 && this.held.length) {
      const [{ text: all, special }] = this.held as [Segment];
      text += special && !this.shows(all) ? '' : all.slice(0, size);
      if (all.length > size) this.held[0] = { text: all.slice(size), special };
      else this.held.shift();
      size -= all.length;
    }
    return text;
  }
}

/** The length of the longest end of a text that may be the beginning of one of `marks`. */
export function overlap(text: string, marks: readonly string[]): number {
  let size = Math.min(text.length, Math.max(1, ...marks.map(({ length }) => length)) - 1);
  while (size > 0 && !marks.some((mark) => mark.startsWith(text.slice(-size)))) size -= 1;
  return size;
}
