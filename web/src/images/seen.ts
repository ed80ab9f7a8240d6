// The images that a model has seen. Each token of one has an id behind those of text, so that texts with images are
// compared, and their beginnings reused, like any others.
import { RdrrError } from '../errors.js';
import type { Images } from '../program/schema.js';
import { picturesOf, type TileGrid } from './patches.js';

/** What stands in place of the tokens of an image: the embeddings, then what is added after the first layers. */
export interface Features {
  parts: readonly Float32Array[];
  /** Rows and columns of the tokens of a tile; without tiles of the image. */
  rows: number;
  columns: number;
  tiles: TileGrid;
}

export interface SeenImage extends Features {
  /** Id of the first token. */
  first: number;
  tokens: number;
}

/** Rows of a pass that are tokens of an image: the first row, their number, the image and its first token there. */
export interface Run {
  at: number;
  count: number;
  image: SeenImage;
  start: number;
}

const MOST_BYTES = 256 << 20; // of features that are kept for later prompts

export class SeenImages {
  readonly first: number;
  /** Whether the position of a token of an image counts in time, height and width; if not, it is its slot. */
  readonly hasAxes: boolean;
  private readonly whole: boolean;
  private next: number;
  private readonly byKey = new Map<string, SeenImage>(); // in the order of their last use

  constructor({ first, ropes, whole = false }: Pick<Images, 'first' | 'ropes' | 'whole'>) {
    [this.first, this.next] = [first, first];
    this.hasAxes = ropes.length > 0;
    this.whole = whole;
  }

  /** Return the image of a key, which is encoded if it is a new one. */
  async add(key: string, encode: () => Promise<Features>): Promise<SeenImage> {
    let image = this.byKey.get(key);
    if (image) {
      this.byKey.delete(key);
    } else {
      const features = await encode();
      image = { ...features, first: this.next, tokens: features.rows * features.columns * picturesOf(features.tiles) };
      this.next += image.tokens;
    }
    this.byKey.set(key, image);
    return image;
  }

  /** Forget the images that were not used for longest, before those of a prompt are added, which must all stay. */
  forget(): void {
    const bytes = ({ parts }: SeenImage): number => parts.reduce((sum, { byteLength }) => sum + byteLength, 0);
    let sum = [...this.byKey.values()].reduce((total, image) => total + bytes(image), 0);
    for (const [key, image] of this.byKey) {
      if (sum <= MOST_BYTES) return;
      this.byKey.delete(key);
      sum -= bytes(image);
    }
  }

  /** Return the parts of images among ids. */
  runs(ids: readonly number[]): Run[] {
    const runs: Run[] = [];
    for (let at = 0; at < ids.length; at += 1) {
      if (ids[at]! < this.first) continue;
      const image = this.of(ids[at]!);
      const start = ids[at]! - image.first;
      let count = 1;
      while (start + count < image.tokens && ids[at + count] === ids[at]! + count) count += 1;
      runs.push({ at, count, image, start });
      at += count - 1;
    }
    return runs;
  }

  /** Return where a pass over ids from `begin` on ends: at `end`, unless that cuts an image that must run in one pass. */
  border(ids: readonly number[], begin: number, end: number): number {
    if (!this.whole || end >= ids.length || ids[end]! < this.first) return end;
    const image = this.of(ids[end]!);
    const start = end - (ids[end]! - image.first);
    if (begin < start) return start;
    throw new RdrrError('usage', `an image has ${image.tokens} tokens, which must run in one pass: expected at most ${end - begin}; take a smaller one`);
  }

  private of(id: number): SeenImage {
    for (const image of this.byKey.values()) if (id >= image.first && id < image.first + image.tokens) return image;
    throw new RdrrError('usage', 'an image of the prompt is forgotten: ask again');
  }
}

/** The positions of the tokens of a text, which images make differ from their slots. */
export class Positions {
  /** For each image the slot behind it, and by how much positions fall behind slots from there on. */
  private marks: { slot: number; behind: number }[] = [];

  constructor(readonly images: SeenImages) {}

  /** Return the positions of ids from a slot on, in time, height and width; what was there before is forgotten. */
  of(ids: readonly number[], base: number): [number, number, number][] {
    this.marks = this.marks.filter(({ slot }) => slot <= base);
    let behind = this.marks.at(-1)?.behind ?? 0;
    const runs = this.images.hasAxes ? this.images.runs(ids) : [];
    return ids.map((_, row) => {
      const run = runs[0];
      const slot = base + row;
      if (!run || row < run.at) return [slot - behind, slot - behind, slot - behind];
      const { image, at, count, start } = run;
      const first = base + at - start - behind;
      const token = start + row - at;
      if (row === at + count - 1) {
        runs.shift();
        if (start + count === image.tokens) {
          behind = slot + 1 - (first + Math.max(image.rows, image.columns));
          this.marks.push({ slot: slot + 1, behind });
        }
      }
      return [first, first + Math.floor(token / image.columns), first + (token % image.columns)];
    });
  }
}
