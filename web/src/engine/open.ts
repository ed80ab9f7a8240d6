import { checked, gpuOf, lackOf, openAdapter, openDevice, together, type Demand } from '../device/device.js';
import { RdrrError } from '../errors.js';
import { addressOfIndex, FileCache } from '../load/cache.js';
import { Tower } from '../images/tower.js';
import { readManifest, type Manifest } from '../load/manifest.js';
import { addressOf, readHashed, readShard, readText, type Access, type Fetch } from '../load/source.js';
import { fill, refill } from '../player/fill.js';
import { Player } from '../player/player.js';
import { contextOf, readProgram } from '../program/program.js';
import type { Program } from '../program/schema.js';
import type { GrammarSource } from '../text/index.js';
import { projectionTensors } from './pooling.js';
import { readIndex, sizeAt, type IndexFile, type ProgramEntry } from './index_file.js';

/** How far a load is: bytes of the weights, also those that the browser kept; shaders are compiled meanwhile. */
export interface Progress {
  stage: 'download' | 'compile' | 'ready';
  loaded: number;
  total: number;
}

export interface LoadOptions {
  /** Tokens that the cache has room for, the prompt included. By default the smallest of the program, and it grows when a text needs more. */
  context?: number | undefined;
  onProgress?: ((progress: Progress) => void) | undefined;
  signal?: AbortSignal | undefined;
  /** Whether the browser keeps the files, so that the next load needs no network; true by default. */
  cache?: boolean | undefined;
  /** When kernels are compiled: while the weights arrive (the default), or each when it first runs. */
  compile?: 'ahead' | 'lazily' | undefined;
  /** A grammar library, for requests with a JSON schema: a function that returns it, or the URL of its script. */
  grammar?: GrammarSource | undefined;
  fetch?: Fetch | undefined;
  gpu?: GPU | undefined;
}

/** What an index says, the program for an adapter, and how files are read. */
export interface Source {
  url: string;
  index: IndexFile;
  base: string;
  access: Access;
}

/** A model on a device. */
export interface Opened {
  player: Player;
  manifest: Manifest;
  /** Values of tensors that the host computes with, by name. */
  tensors: ReadonlyMap<string, Float32Array>;
  entry: ProgramEntry;
  adapter: GPUAdapter;
  /** The program of the vision tower, which is loaded when the first image comes. */
  tower: ProgramEntry | null;
}

/** Read the index at a URL, which may be that of its folder. */
export async function openSource(url: string, options: LoadOptions = {}): Promise<Source> {
  const absolute = addressOfIndex(url);
  const access: Access = {
    fetch: options.fetch ?? ((...request) => fetch(...request)),
    cache: options.cache === false || !globalThis.caches ? null : new FileCache(absolute),
    signal: options.signal,
    arrived: () => {},
  };
  const index = await readText(absolute, access, (text) => readIndex(text, absolute));
  const base = new URL(index.package.replace(/\/?$/, '/'), absolute).href;
  return { url: absolute, index, base, access };
}

/** Return the best program that an adapter runs at a context; an error says why there is none. */
export function programFor(index: IndexFile, adapter: GPUAdapter, { gpu, context: wanted }: LoadOptions): [ProgramEntry, Demand] {
  const language = languageOf(gpu);
  let lack = 'any program';
  for (const entry of index.programs) {
    const demand = demandOf(entry, contextOf(entry.contexts, wanted));
    const missing = lackOf(adapter, demand, language);
    if (!missing) return [entry, demand];
    lack = missing;
  }
  throw new RdrrError('device', `${index.model}: this adapter lacks ${lack}; \`rdrr web --target\` makes programs for other devices`);
}

/** Return the best program of the vision tower that an adapter runs; null if there is none. */
export function towerFor({ towers = [] }: IndexFile, adapter: GPUAdapter, { gpu }: LoadOptions): ProgramEntry | null {
  return towers.find((entry) => !lackOf(adapter, demandOf(entry, entry.contexts.least), languageOf(gpu))) ?? null;
}

function languageOf(gpu: GPU | undefined): ReadonlySet<string> | undefined {
  return gpuOf(gpu)?.wgslLanguageFeatures as ReadonlySet<string> | undefined;
}

function demandOf(entry: ProgramEntry, context: number): Demand {
  const [binding, buffer] = [entry.binding, entry.buffer].map((span) => sizeAt(span, entry.contexts, context));
  return { needs: entry.needs, binding: binding!, buffer: buffer! };
}

/** Give a model a cache for at least so many tokens, at least twice of what it has; null if there is no such program or device. */
export async function grownModel(opened: Opened, least: number): Promise<Player | null> {
  const { player, entry } = opened;
  const { most } = entry.contexts;
  if (least > most) return null;
  const context = contextOf(entry.contexts, Math.min(most, Math.max(least, 2 * player.context)));
  if (lackOf(player.device, demandOf(entry, context))) return null;
  opened.player = await Player.grown(player, context);
  refill(opened.player);
  return opened.player;
}

/** Open a device, and load a package's weights into it. */
export async function openModel(source: Source, options: LoadOptions): Promise<Opened> {
  const { index, base, access } = source;
  const { onProgress = () => {}, context } = options;
  const adapter = await openAdapter(options.gpu);
  const [entry, demand] = programFor(index, adapter, options);
  const program = await programOf(source, entry);
  const manifestText = await readHashed(`${base}manifest.json`, index.manifest, access);
  const manifest = readManifest(manifestText, `${base}manifest.json`, index.shards);
  const tower = towerFor(index, adapter, options);
  const withTower = (needed: Demand, patches: 'least' | 'most'): Demand => (tower ? together(needed, demandOf(tower, tower.contexts[patches])) : needed);
  const later = context === undefined ? demandOf(entry, entry.contexts.most) : demand;
  const device = await openDevice(adapter, withTower(demand, 'least'), withTower(later, 'most'));
  try {
    const player = await Player.open(device, program, contextOf(entry.contexts, context));
    let loaded = 0;
    const counting: Access = {
      ...access,
      arrived: (bytes) => onProgress({ stage: 'download', loaded: (loaded += bytes), total: index.size }),
    };
    const compiling = options.compile === 'lazily' ? null : player.prepare();
    compiling?.catch(() => {}); // awaited below, unless a download fails first
    const read = (shard: number): Promise<Uint8Array> => readShard(base, manifest.shards[shard]!, counting);
    const tensors = await checked(device, 'weights', () => fill(player, manifest, read, projectionTensors(manifest.embedding)));
    onProgress({ stage: 'compile', loaded, total: index.size });
    await compiling;
    await access.cache?.write();
    await access.cache?.keepOnly(filesOf(source, manifest, tower ? [entry, tower] : [entry]));
    onProgress({ stage: 'ready', loaded, total: index.size });
    return { player, manifest, tensors, entry, adapter, tower };
  } catch (error) {
    device.destroy();
    throw error;
  }
}

/** Load the vision tower of a model onto its device; an error says why there is none. */
export async function openTower(source: Source, { tower, manifest, player: { device } }: Opened): Promise<Tower> {
  const { base, access } = source;
  if (!tower) throw new RdrrError('device', `${source.index.model}: this adapter runs no vision tower of the package`);
  const player = await Player.open(device, await programOf(source, tower), tower.contexts.least);
  try {
    await checked(device, 'weights of the vision tower', () => fill(player, manifest, (shard) => readShard(base, manifest.shards[shard]!, access)));
    await access.cache?.write();
    return new Tower(player);
  } catch (error) {
    player.close();
    throw error;
  }
}

async function programOf({ url, access }: Source, { file, sha256 }: ProgramEntry): Promise<Program> {
  return readProgram(await readHashed(new URL(file, url).href, sha256, access), file);
}

/** Return the addresses of all files that a load needs. */
function filesOf({ url, index, base }: Source, manifest: Manifest, programs: readonly ProgramEntry[]): string[] {
  const files = Object.values(index.text).map((name) => base + name);
  const shards = manifest.shards.map((shard) => addressOf(base, shard));
  return [url, `${base}manifest.json`, ...programs.map(({ file }) => new URL(file, url).href), ...files, ...shards];
}
