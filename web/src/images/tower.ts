import { RdrrError } from '../errors.js';
import { Player } from '../player/player.js';
import { packSegments, packStep } from '../program/records.js';
import type { Tower as TowerPasses, TowerStep } from '../program/schema.js';
import { picturesOf, type Patches } from './patches.js';
import { interpolation, rotations } from './places.js';
import type { Features } from './seen.js';

/** The vision tower of a package on a device. Its buffers grow with the largest image so far. */
export class Tower {
  private readonly passes: TowerPasses;

  constructor(private player: Player) {
    if (!player.program.tower) throw new RdrrError('format', 'the program of the vision tower has none');
    this.passes = player.program.tower;
  }

  /** Return the features of the patches of an image. */
  async encode(patches: Patches): Promise<Features> {
    const { merge, width, parts } = this.passes;
    const pictures = picturesOf(patches.tiles);
    const count = pictures * patches.rows * patches.columns;
    if (count > this.player.context) this.player = await Player.grown(this.player, count);
    const { player } = this;
    const [nearest, factors] = interpolation(patches, this.passes);
    player.write(this.passes.patches, patches.values);
    player.write(this.passes.nearest, nearest);
    player.write(this.passes.factors, factors);
    if (this.passes.rope != null) player.write(this.passes.rope, rotations(patches, this.passes));
    const tokens = count / merge ** 2;
    if (this.passes.of_token != null) player.write(this.passes.of_token, Uint32Array.from({ length: 2 * tokens }, (_, at) => merge ** 2 * ((at + 1) >> 1)));
    this.writeRows(this.passes.patch_rows, count, pictures);
    this.writeRows(this.passes.token_rows, tokens, pictures);
    await player.prepare(parts.flatMap(({ phases }) => phases.map(({ kernel }) => kernel)));
    const running = parts.map(({ phases, result }) =>
      result == null ? player.run(phases, count) : player.run(phases, tokens, { reads: [{ range: result, first: 0, count: tokens * width }] }));
    const results = (await Promise.all(running)).flat().map((words) => new Float32Array(words.buffer));
    if (!results.every((values) => values.every(Number.isFinite))) throw new RdrrError('device', 'the vision tower gave values that are not finite');
    const embeddings = results.pop()!;
    return { parts: [embeddings, ...results], rows: patches.rows / merge, columns: patches.columns / merge, tiles: patches.tiles };
  }

  /** Write the rows of an image, whose pictures are packed as texts are, since they do not attend to each other. */
  private writeRows({ step, segments }: TowerStep, rows: number, pictures: number): void {
    const { records } = this.player.program;
    const slots = Array.from({ length: rows }, (_, row) => row);
    this.player.write(step, packStep(records, { tokens: slots.map(() => 0), slots }));
    this.player.write(segments, packSegments(records, Array<number>(pictures).fill(rows / pictures)));
  }

  close(): void {
    this.player.close();
  }
}
