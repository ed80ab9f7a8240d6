import { RdrrError } from '../errors.js';
import type { FileCache } from './cache.js';
import type { Shard } from './manifest.js';

const ATTEMPTS = 3;
const PAUSE = 500; // milliseconds before a file is asked for again
const PAGE = /^\s*<(!doctype|html)/i; // what many hosts answer where there is no such file
const WHERE = 'give the URL of the index that `rdrr web` wrote; the package must lie where the index says';
const AGAIN = 'reload the page if the package has changed since, or run `rdrr web` again';

export type Fetch = (url: string, init?: RequestInit) => Promise<Response>;

/** Where files are read from, and what is told of it. */
export interface Access {
  fetch: Fetch;
  cache: FileCache | null;
  signal?: AbortSignal | undefined;
  /** Called with bytes that arrived; negative ones are read again. */
  arrived: (bytes: number) => void;
}

/** Return what is read from a small file: from the network, then kept, or without a network from the cache. */
export async function readText<Value>(url: string, access: Access, read: (text: string) => Value | Promise<Value>): Promise<Value> {
  let text: string;
  try {
    text = await (await asked(url, access)).text();
  } catch (error) {
    access.signal?.throwIfAborted();
    if (error instanceof RdrrError) throw error;
    const kept = await access.cache?.read(url);
    if (kept) return read(new TextDecoder().decode(kept));
    throw unreachable(url, error);
  }
  if (PAGE.test(text)) throw pageFault(url);
  const value = await read(text);
  access.cache?.keepText(url, text);
  return value;
}

/** Return a file whose SHA-256 is known as text: from the cache, or from the network. */
export async function readHashed(url: string, sha256: string, access: Access): Promise<string> {
  return (await keptHashed(url, sha256, access)) ?? readText(url, access, async (text) => {
    const digest = await sha256Of(new TextEncoder().encode(text));
    if (digest !== sha256) throw new RdrrError('integrity', `${url}: expected SHA-256 ${sha256}, found ${digest}; ${AGAIN}`);
    return text;
  });
}

/** Return a file whose SHA-256 is known as text; null if the browser does not keep it. */
export async function keptHashed(url: string, sha256: string, { cache }: Access): Promise<string | null> {
  const kept = await cache?.read(url);
  return kept && (await sha256Of(kept)) === sha256 ? new TextDecoder().decode(kept) : null;
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
  const url = base + shard.filename;
  const file = { bytes: new Uint8Array(shard.size), at: 0 };
  await download(url, file, access);
  const fault = await faultOf(file.bytes.subarray(0, file.at), shard);
  if (fault) throw damaged(url, file.bytes, fault);
  await access.cache?.write(addressOf(base, shard), file.bytes);
  return file.bytes;
}

async function faultOf(bytes: BufferSource, { size, sha256 }: Shard): Promise<string | null> {
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

interface Arriving {
  readonly bytes: Uint8Array<ArrayBuffer>;
  at: number; // bytes that have arrived
}

/** Download a file; what arrived before a connection broke is not asked for again. */
async function download(url: string, file: Arriving, access: Access): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await receive(url, file, access);
    } catch (error) {
      access.signal?.throwIfAborted();
      if (error instanceof RdrrError) throw error;
      if (attempt === ATTEMPTS) throw file.at ? broken(url, file, error) : unreachable(url, error);
      await new Promise((done) => setTimeout(done, PAUSE * attempt));
    }
  }
}

/** Receive the bytes of a file behind those that have arrived. */
async function receive(url: string, file: Arriving, access: Access): Promise<void> {
  const answer = await asked(url, access, file.at ? { range: `bytes=${file.at}-` } : {});
  if (file.at && answer.status !== 206) {
    access.arrived(-file.at);
    file.at = 0;
  }
  const reader = answer.body!.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const { bytes, at } = file;
      if (at + value.length > bytes.length) throw damaged(url, at ? bytes : value, `expected ${bytes.length} bytes, found more`);
      bytes.set(value, at);
      file.at += value.length;
      access.arrived(value.length);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What hosts mean by the states that are not worth another attempt. */
const STATES: Readonly<Record<number, string>> = {
  401: 'the host wants to know who asks: serve the package without a login',
  403: 'the host does not give it to this page',
  404: `there is no such file: ${WHERE}`,
};

/** Return what a host answers; throws an error of another kind than `RdrrError` if another attempt may help. */
async function asked(url: string, { fetch, signal }: Access, headers: Record<string, string> = {}): Promise<Response> {
  const answer = await fetch(url, { ...(signal && { signal }), headers });
  if (answer.ok) return answer;
  const fault = `HTTP ${answer.status}`;
  if (answer.status >= 500 || answer.status === 429) throw new Error(fault);
  throw new RdrrError('network', `${url}: ${fault}; ${STATES[answer.status] ?? AGAIN}`);
}

function unreachable(url: string, cause: unknown): RdrrError {
  const advice = 'see whether there is a network, and for another host whether it allows this page by access-control-allow-origin';
  return new RdrrError('network', `${url}: not reachable, and not kept in this browser (${String(cause)}); ${advice}`, { cause });
}

function broken(url: string, { bytes, at }: Arriving, cause: unknown): RdrrError {
  const message = `${url}: the connection broke ${ATTEMPTS} times (${String(cause)}): expected ${bytes.length} bytes, found ${at}; load again, the shards before are kept`;
  return new RdrrError('network', message, { cause });
}

function damaged(url: string, bytes: Uint8Array, fault: string): RdrrError {
  if (PAGE.test(new TextDecoder().decode(bytes.subarray(0, 64)))) return pageFault(url);
  return new RdrrError('integrity', `${url}: ${fault}; the file or its transfer is damaged: ${AGAIN}`);
}

function pageFault(url: string): RdrrError {
  return new RdrrError('network', `${url}: found a web page, with which many hosts answer where there is no such file: ${WHERE}`);
}
