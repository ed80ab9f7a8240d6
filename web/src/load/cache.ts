import { RdrrError } from '../errors.js';

const PREFIX = 'rdrr ';

/** Return the address of the index at a URL, which may be that of its folder. */
export function addressOfIndex(given: string): string {
  try {
    const url = new URL(given, globalThis.location?.href);
    if (!url.pathname.endsWith('.json')) url.pathname = `${url.pathname.replace(/\/$/, '')}/index.json`;
    return url.href;
  } catch (error) {
    throw new RdrrError('usage', `expected the URL of the index.json that \`rdrr web\` wrote, found ${String(given)}`, { cause: error });
  }
}

/** The files of a package that this browser keeps, in its Cache storage. Nothing is kept of a package of which no shard was read. */
export class FileCache {
  private readonly name: string;
  private readonly texts = new Map<string, string>(); // not written yet

  constructor(index: string) {
    this.name = PREFIX + index;
  }

  /** Return a file, or null if it is not kept. */
  async read(url: string): Promise<ArrayBuffer | null> {
    return (await this.match(url))?.arrayBuffer() ?? null;
  }

  async has(url: string): Promise<boolean> {
    return Boolean(await this.match(url));
  }

  /** Keep a small file as soon as a shard is kept. */
  keepText(url: string, text: string): void {
    this.texts.set(url, text);
  }

  /** Keep the small files that were read until now, and a shard. */
  async write(url?: string, content?: BufferSource): Promise<void> {
    await this.change(async (cache) => {
      for (const [at, text] of this.texts) await cache.put(at, new Response(text));
      this.texts.clear();
      if (url !== undefined) await cache.put(url, new Response(content));
    });
  }

  async delete(url: string): Promise<void> {
    await this.change((cache) => cache.delete(url));
  }

  /** Do work for a file that no other tab does at the same time; without waiting where the browser has no locks. */
  async alone<Result>(url: string, work: () => Promise<Result>, signal?: AbortSignal): Promise<Result> {
    const locks = globalThis.navigator?.locks;
    return locks ? locks.request(PREFIX + url, signal ? { signal } : {}, work) : work();
  }

  /** Delete all files but these, such as shards of an older version of the package. */
  async keepOnly(urls: readonly string[]): Promise<void> {
    const kept = new Set(urls.map((url) => new URL(url, location.href).href));
    await this.change(async (cache) => {
      for (const { url } of await cache.keys()) if (!kept.has(url)) await cache.delete(url);
    });
  }

  private match(url: string): Promise<Response | undefined> {
    return caches.match(url, { cacheName: this.name }).catch(() => undefined);
  }

  /** Change what is kept. No load fails where the browser keeps nothing: the quota is used up, a private window, an address of an extension. */
  private async change(work: (cache: Cache) => Promise<unknown>): Promise<void> {
    await caches.open(this.name).then(work).catch(() => {});
  }
}

/** The packages that this browser keeps, by the URL of their index. */
export const cache = {
  /** Return the URLs of all packages of which files are kept. */
  async list(): Promise<string[]> {
    const names = await storage().keys();
    return names.filter((name) => name.startsWith(PREFIX)).map((name) => name.slice(PREFIX.length));
  },

  /** Delete the files of a package; false if there were none. */
  async delete(url: string): Promise<boolean> {
    return storage().delete(PREFIX + addressOfIndex(url));
  },

  /** Return how many bytes this page's host uses, and how many it may use. */
  async quota(): Promise<{ usage: number; quota: number }> {
    const { usage = 0, quota = 0 } = await navigator.storage.estimate();
    return { usage, quota };
  },
};

function storage(): CacheStorage {
  if (globalThis.caches) return caches;
  throw new RdrrError('usage', 'this page has no Cache storage: serve it over https, or from localhost');
}
