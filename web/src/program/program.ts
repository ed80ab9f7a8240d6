import { parseVersioned, RdrrError } from '../errors.js';
import type { Contexts, Growing, Program } from './schema.js';

/** A number of a program: itself, or one that grows with the context. */
export type Amount = number | Growing;

/**
 * Return the program that a file holds. What it contradicts itself in is left to WebGPU, which checks every range
 * and every index of a shader: a program does no harm, but may compute anything.
 */
export function readProgram(text: string, where: string): Program {
  return parseVersioned(text, where, 'a program', 'rdrr-program', 1);
}

/** Return the context that a program serves and that is at least as large as the one asked for, or the largest. */
export function contextOf(contexts: Contexts, wanted: number = contexts.least): number {
  const { least, most, multiple = 1 } = contexts;
  if (!Number.isInteger(wanted) || wanted < 1) throw new RdrrError('usage', `context: expected a positive integer, found ${wanted}`);
  if (wanted > most) throw new RdrrError('usage', `context: the program serves at most ${most} tokens, found ${wanted}`);
  return Math.max(least, Math.ceil(wanted / multiple) * multiple);
}

/** Return the function that gives the numbers of a program their values at a context. */
export function amountsAt(contexts: Contexts, context: number): (amount: Amount) => number {
  const multiples = context / (contexts.multiple ?? 1);
  return (amount) => {
    if (typeof amount === 'number') return amount;
    return Math.min(amount.value + amount.growth * multiples, amount.most ?? Infinity);
  };
}
