// Tokens per second, and how much of the context is used.
import { byId } from './dom.js';
import type { Piece, Usage } from './engine.js';

/** Counts the pieces of an answer. */
export class Meter {
  #begin = performance.now();
  #first: number | null = null;
  #last = 0;
  #tokens = 0;
  usage: Usage | null = null;

  add({ content, reasoning, ids, usage }: Piece): void {
    if (usage) this.usage = usage;
    if (!content && !reasoning && !ids.length) return;
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#tokens += ids.length || 1;
  }

  /** Tokens per second since the first one; null for too few. */
  get speed(): number | null {
    const seconds = (this.#last - (this.#first ?? this.#last)) / 1000;
    const tokens = (this.usage?.completion ?? this.#tokens) - 1;
    return this.usage?.speed || (tokens > 0 && seconds > 0 ? tokens / seconds : null);
  }

  /** What an answer took, for people. */
  get summary(): string {
    const parts: string[] = [];
    if (this.usage) parts.push(`${this.usage.completion.toLocaleString()} tokens`);
    if (this.#first !== null) parts.push(`first after ${((this.#first - this.#begin) / 1000).toFixed(1)} s`);
    if (this.speed !== null) parts.push(perSecond(this.speed));
    return parts.join(', ');
  }
}

export const perSecond = (speed: number): string => `${speed.toFixed(speed < 10 ? 1 : 0)} tokens per second`;

export function showSpeed(speed: number | null): void {
  byId('speed').textContent = speed === null ? '' : perSecond(speed);
}

export function showUsed(usage: Usage | null, context: number | null): void {
  byId('used').hidden = usage === null || context === null;
  if (usage === null || context === null) return;
  const used = usage.prompt + usage.completion;
  const bar = byId<HTMLMeterElement>('used-bar');
  bar.max = context;
  bar.high = context * 0.9;
  bar.value = used;
  byId('used-text').textContent = `${used.toLocaleString()} of ${context.toLocaleString()}`;
}

const UNITS = ['bytes', 'KB', 'MB', 'GB'];

export function bytes(count: number): string {
  const step = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(count, 1)) / 3));
  return `${(count / 1000 ** step).toFixed(step > 1 ? 1 : 0)} ${UNITS[step]}`;
}
