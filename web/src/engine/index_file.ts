import { parseVersioned } from '../errors.js';
import type { Contexts, Needs } from '../program/schema.js';

/** A number at the smallest and at the largest context of a program; it is affine between them. */
export type Span = readonly [least: number, most: number];

/** A program of `rdrr web`, for a kind of device. */
export interface ProgramEntry {
  /** Its file, relative to the index. */
  file: string;
  sha256: string;
  size: number;
  needs: Needs;
  contexts: Contexts;
  /** Bytes of all buffers, and of the largest one and the largest binding. */
  memory: Span;
  buffer: Span;
  binding: Span;
}

/** What `rdrr web` writes: where a package lies, and the programs that run it. */
export interface IndexFile {
  format: 'rdrr-web';
  version: number;
  model: string;
  /** URL of the folder with the manifest, relative to the index. */
  package: string;
  /** SHA-256 of the manifest. */
  manifest: string;
  /** Bytes of the shards that the programs load, and their numbers; all of them where that is left out. */
  size: number;
  loads?: readonly number[];
  /** SHA-256 of the shards, where the manifest has other hashes. */
  shards?: readonly string[];
  /** Files of the text beside the manifest; those that the package lacks are left out. */
  text: { tokenizer?: string; config?: string; special?: string; template?: string };
  /** The best first. */
  programs: readonly ProgramEntry[];
  /** Programs of the vision tower, whose contexts are numbers of patches. */
  towers?: readonly ProgramEntry[];
}

/** Return the index that a file holds. */
export function readIndex(text: string, where: string): IndexFile {
  return parseVersioned(text, where, 'an index of a package', 'rdrr-web', 1);
}

/** Return a size of a program at a context. */
export function sizeAt([least, most]: Span, contexts: Contexts, context: number): number {
  const range = contexts.most - contexts.least;
  return range ? Math.ceil(least + ((most - least) * (context - contexts.least)) / range) : least;
}
