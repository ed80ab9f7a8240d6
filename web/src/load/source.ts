import { RdrrError } from '../errors.js';
import type { FileCache } from './cache.js';
import type { Shard } from './manifest.js';

const ATTEMPTS = 3;
const PAUSE = 500; // milliseconds before a file is asked for again

export type Fetch = (url: string, init?: RequestInit) => Promise<Response>;

/** Where files are read from, and what is told of it. */
export interface Access {
  fetch: Fetch;
  cache: FileCache | null;
  signal?: AbortSignal | undefined;
  /** Called with bytes that arrived; negative ones are read again. */
  arrived: (bytes: number) => void;
}

/** Return a small file as text: from the network, or without it from the cache. */
export async function readText(url: string, access: Access): Promise<string> {
  let answer: Response;
  try {
    answer = await access.fetch(url, signalOf(access));
  } catch (error) {
    access.signal?.throwIfAborted();
    const kept = await access.cache?.read(url);
    if (kept) return new TextDecoder().decode(kept);
    throw new RdrrError('network', `${url}: not reachable, and not kept in this browser`, { cause: error });
  }
  if (!answer.ok) throw new RdrrError('network', `${url}: HTTP ${answer.status}`);
  const text = await answer.text();
  await access.cache?.write(url, text);
  return text;
}

/** Return a file whose SHA-256 is known as text: from the cache, or from the network. */
export async function readHashed(url: string, sha256: string, access: Access): Promise<string> {
  const kept = await access.cache?.read(url);
  if (kept && (await sha256Of(kept)) === sha256) return new TextDecoder().decode(kept);
  const text = await readText(url, access);
  const digest = await sha256Of(new TextEncoder().encode(text));
  if (digest !== sha256) throw new RdrrError('integrity', `${url}: expected SHA-256 ${sha256}, found ${digest}`);
  return text;
}

/** Return the address under which a shard is kept, which depends on its content. */
export function addressOf(base: string, { filename, sha256 }: Shard): string {
  return `${base}${filename}${sha256 ? `?sha256=${sha256}` : ''}`;
}

/** Return the bytes of a shard, verified: from the cache, or from the network, then kept. */
export async function readShard(base: string, shard: Shard, access: Access): Promise<Uint8Array<ArrayBuffer>> {
  const { cache, signal } = access;
  if (!cache) return downloaded(base, shard, access);
  const kept = await keptShard(base, shard, access);
  // Another tab may be downloading the shard; then it is in the cache afterwards.
  return kept ?? cache.alone(addressOf(base, shard), async () => (await keptShard(base, shard, access)) ?? downloaded(base, shard, access), signal);
}

async function keptShard(base: string, shard: Shard, { cache, arrived }: Access): Promise<Uint8Array<ArrayBuffer> | null> {
  const address = addressOf(base, shard);
  const kept = await cache?.read(address);
  if (!kept) return null;
  if (await faultOf(kept, shard)) {
    await cache?.delete(address); // damaged: it is downloaded again
    return null;
  }
  arrived(shard.size);
  return new Uint8Array(kept);
}

async function downloaded(base: string, shard: Shard, access: Access): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = await download(base + shard.filename, shard.size, access);
  const fault = await faultOf(bytes.buffer, shard);
  if (fault) throw new RdrrError('integrity', `${base}${shard.filename}: ${fault}; the file or its transfer is damaged`);
  await access.cache?.write(addressOf(base, shard), bytes);
  return bytes;
}

async function faultOf(bytes: ArrayBuffer, { size, sha256 }: Shard): Promise<string | null> {
  if (bytes.byteLength !== size) return `expected ${size} bytes, found ${bytes.byteLength}`;
  if (!sha256) return null;
  const digest = await sha256Of(bytes);
  return digest === sha256 ? null : `expected SHA-256 ${sha256}, found ${digest}`;
}

export async function sha256Of(bytes: BufferSource): Promise<string> {
  if (!globalThis.crypto?.subtle) throw new RdrrError('usage', 'hashes need a secure page: serve it over https, or from localhost');
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Download a file; what arrived before a connection broke is not asked for again. */
async function download(url: string, size: number, access: Access): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = new Uint8Array(size);
  let at = 0;
  for (let attempt = 1; ; attempt += 1) {
    try {
      at = await receive(url, bytes, at, access);
      if (at === size) return bytes;
      throw new RdrrError('integrity', `${url}: expected ${size} bytes, found ${at}; the file is truncated`);
    } catch (error) {
      access.signal?.throwIfAborted();
      if (error instanceof Interrupted) at = error.at;
      const final = error instanceof RdrrError;
      if (final) throw error;
      if (attempt === ATTEMPTS) throw new RdrrError('network', `${url}: the connection broke ${ATTEMPTS} times`, { cause: error });
      await new Promise((done) => setTimeout(done, PAUSE * attempt));
    }
  }
}

/** A connection that broke after some bytes. */
class Interrupted extends Error {
  constructor(
    readonly at: number,
    cause: unknown,
  ) {
    super('the connection broke', { cause });
  }
}

/** Receive the bytes of a file from `at` on, and return how many there are. */
async function receive(url: string, bytes: Uint8Array, at: number, access: Access): Promise<number> {
  const headers: Record<string, string> = at ? { range: `bytes=${at}-` } : {};
  const answer = await access.fetch(url, { ...signalOf(access), headers });
  if (!answer.ok || !answer.body) throw new RdrrError('network', `${url}: HTTP ${answer.status}`);
  if (at && answer.status !== 206) {
    access.arrived(-at);
    at = 0;
  }
  const reader = answer.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return at;
      if (at + value.length > bytes.length) {
        throw new RdrrError('integrity', `${url}: expected ${bytes.length} bytes, found more`);
      }
      bytes.set(value, at);
      at += value.length;
      access.arrived(value.length);
    }
  } catch (error) {
    if (error instanceof RdrrError) throw error;
    throw new Interrupted(at, error);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function signalOf({ signal }: Access): RequestInit {
  return signal ? { signal } : {};
}
