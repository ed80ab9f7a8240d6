import { RdrrError } from '../errors.js';
import { patchesOf, tokensOf, type Patches } from '../images/patches.js';
import { SeenImages, type SeenImage } from '../images/seen.js';
import { pixelsOf, type ImageSource } from '../images/sources.js';
import type { Tower } from '../images/tower.js';
import type { ProcessorBlock } from '../load/manifest.js';
import { sha256Of } from '../load/source.js';
import type { ChatMessage } from '../text/index.js';

const KINDS = ['image', 'image_url', 'input_image'];

/** Sees the images of messages: each is encoded once, by a tower that is loaded when the first one comes. */
export class Sight {
  private tower: Promise<Tower> | null = null;

  constructor(
    readonly seen: SeenImages,
    readonly recipe: ProcessorBlock,
    private readonly most: () => number,
    private readonly open: () => Promise<Tower>,
  ) {}

  /** Return the images of messages, encoded. */
  async look(sources: readonly ImageSource[]): Promise<SeenImage[]> {
    this.seen.forget();
    const pictures = [];
    let total = 0;
    for (const [index, source] of sources.entries()) {
      const where = `image ${index + 1}`;
      const pixels = await pixelsOf(source, where);
      const tokens = tokensOf(this.recipe, pixels);
      total += tokens;
      if (total > this.most()) {
        throw new RdrrError('usage', `${where} needs ${tokens} tokens, which do not fit the context: expected at most ${this.most()} tokens of all images, found ${total}; take a smaller one`);
      }
      pictures.push(pixels);
    }
    const images: SeenImage[] = [];
    for (const pixels of pictures) {
      const patches = patchesOf(this.recipe, pixels);
      images.push(await this.seen.add(await keyOf(patches), async () => (await this.loaded()).encode(patches)));
    }
    return images;
  }

  private async loaded(): Promise<Tower> {
    this.tower ??= this.open();
    try {
      return await this.tower;
    } catch (error) {
      this.tower = null; // the next image tries again
      throw error;
    }
  }

  /** Free the memory of the tower. */
  close(): void {
    void this.tower?.then((tower) => tower.close(), () => {});
    this.tower = null;
  }
}

/** Return messages whose images are `{ type: 'image' }`, and where the images are. */
export function takenImages(messages: readonly ChatMessage[]): [messages: readonly ChatMessage[], sources: ImageSource[]] {
  const sources: ImageSource[] = [];
  const plain = messages.map((message) => {
    const { content: parts } = message;
    if (typeof parts === 'string' || !parts) return message;
    const content = parts.map((part) => {
      if (!KINDS.includes(part?.type)) return part;
      const stated = part.image_url ?? part.image;
      const source = (stated as { url?: string } | null)?.url ?? stated;
      if (typeof source !== 'string' && (typeof source !== 'object' || source === null)) {
        throw new RdrrError('usage', 'a part of a message is an image without content: expected a URL in `image_url`, or a file or pixels in `image`');
      }
      sources.push(source as ImageSource);
      return { type: 'image' };
    });
    return { ...message, content };
  });
  return [plain, sources];
}

async function keyOf({ values, rows, columns, tiles }: Patches): Promise<string> {
  return `${tiles.join('x')} ${rows}x${columns} ${await sha256Of(values)}`;
}
