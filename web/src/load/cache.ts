import { RdrrError } from '../errors.js';

const PREFIX = 'rdrr ';

/** The files of a package that this browser keeps, in its Cache storage; for tests another storage. */
export class FileCache {
  private constructor(private readonly cache: Cache) {}

  /** Return the cache of a package, or null where the browser has none (a page without TLS, private windows). */
  static async open(base: string): Promise<FileCache | null> {
    try {
      return new FileCache(await caches.open(PREFIX + base));
    } catch {
      return null;
    }
  }

  /** Return a file, or null if it is not kept. */
  async read(url: string): Promise<ArrayBuffer | null> {
    const answer = await this.cache.match(url);
    return answer ? answer.arrayBuffer() : null;
  }

  /** Keep a file; false if the browser's quota is used up. */
  async write(url: string, content: BufferSource | string): Promise<boolean> {
    try {
      await this.cache.put(url, new Response(content));
      return true;
    } catch (error) {
      if (error instanceof DOMException && error.name === 'QuotaExceededError') return false;
      throw error;
    }
  }

  async has(url: string): Promise<boolean> {
    return Boolean(await this.cache.match(url));
  }

  async delete(url: string): Promise<void> {
    await this.cache.delete(url);
  }

  /** Do work for a file that no other tab does at the same time; without waiting where the browser has no locks. */
  async alone<Result>(url: string, work: () => Promise<Result>, signal?: AbortSignal): Promise<Result> {
    const locks = globalThis.navigator?.locks;
    return locks ? locks.request(PREFIX + url, signal ? { signal } : {}, work) : work();
  }

  /** Delete all files but these, such as shards of an older version of the package. */
  async keepOnly(urls: readonly string[]): Promise<void> {
    const kept = new Set(urls.map((url) => new URL(url, location.href).href));
    for (const { url } of await this.cache.keys()) if (!kept.has(url)) await this.cache.delete(url);
  }
}

/** The packages that this browser keeps, by the URL that they were loaded from. */
export const cache = {
  /** Return the URLs of all packages of which files are kept. */
  async list(): Promise<string[]> {
    const names = await storage().keys();
    return names.filter((name) => name.startsWith(PREFIX)).map((name) => name.slice(PREFIX.length));
  },

  /** Delete the files of a package; false if there were none. */
  async delete(base: string): Promise<boolean> {
    return storage().delete(PREFIX + new URL(base, location.href).href);
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
