import { support, type Unsupported } from '../device/device.js';
import { RdrrError } from '../errors.js';
import { readManifest } from '../load/manifest.js';
import { addressOf, keptHashed } from '../load/source.js';
import { contextOf } from '../program/program.js';
import type { Contexts } from '../program/schema.js';
import { sizeAt, type Span } from './index_file.js';
import { openSource, programFor, towerFor, type LoadOptions, type Source } from './open.js';

/** What a load would need. */
export interface Survey {
  model: string;
  /** Bytes to download, if nothing is cached. */
  size: number;
  /** Whether this browser keeps all shards. */
  cached: boolean;
  /** Why the model does not run here: a kind of fault, or what the adapter lacks; null if it runs. */
  reason: Unsupported | string | null;
  /** Bytes of the buffers at the context that was asked for; null if the model does not run here. */
  memory: number | null;
  /** Bytes of the buffers that the first image takes, and the largest; null if the model sees no images here. */
  vision: Span | null;
  contexts: Contexts | null;
}

export async function surveyOf(source: Source, options: LoadOptions): Promise<Survey> {
  const { index } = source;
  const facts = { model: index.model, size: index.size, cached: await holdsShards(source), memory: null, vision: null, contexts: null };
  const { reason, adapter } = await support(options.gpu);
  if (!adapter) return { ...facts, reason };
  try {
    const [{ contexts, memory }] = programFor(index, adapter, options);
    const context = contextOf(contexts, options.context);
    const vision = towerFor(index, adapter, options)?.memory ?? null;
    return { ...facts, reason: null, memory: sizeAt(memory, contexts, context), vision, contexts };
  } catch (error) {
    if (!(error instanceof RdrrError)) throw error;
    return { ...facts, reason: error.message };
  }
}

/** Return whether a browser keeps all shards of the package of an index. */
export async function isCached(url: string): Promise<boolean> {
  return holdsShards(await openSource(url));
}

async function holdsShards({ index, base, access }: Source): Promise<boolean> {
  const { cache } = access;
  const where = `${base}manifest.json`;
  const text = await keptHashed(where, index.manifest, access);
  if (!cache || text === null) return false;
  const manifest = readManifest(text, where, index.shards);
  const loaded = index.loads?.map((number) => manifest.shards[number]!) ?? manifest.shards;
  for (const shard of loaded) if (!(await cache.has(addressOf(base, shard)))) return false;
  return true;
}
