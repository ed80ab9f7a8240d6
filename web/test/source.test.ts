// Shards from the network and from the cache, with every fault that a transfer has.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { openSource } from '../src/engine/open.js';
import { surveyOf } from '../src/engine/survey.js';
import { addressOfIndex, FileCache } from '../src/load/cache.js';
import { addressOf, readHashed, readShard, readText, type Access } from '../src/load/source.js';

const CONTENT = Uint8Array.from({ length: 1000 }, (_, index) => index % 251);
const BASE = 'http://host/model/';
const shard = { filename: 'shard.bin', size: 1000, sha256: createHash('sha256').update(CONTENT).digest('hex') };

/** A Cache storage in memory, which takes so many bytes. */
class MemoryCache {
  readonly files = new Map<string, Uint8Array<ArrayBuffer>>();
  constructor(private readonly quota = Infinity) {}

  async match(url: string): Promise<Response | undefined> {
    const file = this.files.get(url);
    return file && new Response(file);
  }

  async put(url: string, answer: Response): Promise<void> {
    const file = new Uint8Array(await answer.arrayBuffer());
    if (file.length > this.quota) throw new DOMException('full', 'QuotaExceededError');
    this.files.set(url, file);
  }

  async delete(url: string): Promise<boolean> {
    return this.files.delete(url);
  }
}

function cacheOf(memory: MemoryCache): FileCache {
  Object.assign(globalThis, { caches: { open: async () => memory, match: async (url: string) => memory.match(url) } });
  return new FileCache(BASE);
}

/** A server of CONTENT whose n-th answer breaks off after `breaks[n]` bytes, and what it was asked for. */
function server(breaks: number[] = [], content = CONTENT, ranges = true): { asked: (string | null)[]; fetch: Access['fetch'] } {
  const asked: (string | null)[] = [];
  const fetch = async (_: string, init: RequestInit = {}): Promise<Response> => {
    const range = new Headers(init.headers).get('range');
    asked.push(range);
    const first = ranges && range ? Number(/\d+/.exec(range)![0]) : 0;
    const end = breaks[asked.length - 1];
    const body = new ReadableStream({
      start(stream) {
        stream.enqueue(content.slice(first, end));
      },
      pull(stream) {
        if (end === undefined) stream.close();
        else stream.error(new TypeError('broken'));
      },
    });
    return new Response(body, { status: ranges && range ? 206 : 200 });
  };
  return { asked, fetch };
}

function accessTo(fetch: Access['fetch'], cache: FileCache | null = null): Access & { bytes: () => number } {
  let bytes = 0;
  return { fetch, cache, arrived: (some) => (bytes += some), bytes: () => bytes };
}

const read = (access: Access): Promise<Uint8Array> => readShard(BASE, shard, access);
const offline = async (): Promise<Response> => Promise.reject(new TypeError('offline'));

test('a shard is downloaded whole, verified and kept', async () => {
  const memory = new MemoryCache();
  const { asked, fetch } = server();
  const access = accessTo(fetch, cacheOf(memory));
  assert.deepEqual(await read(access), CONTENT);
  assert.deepEqual(memory.files.get(addressOf(BASE, shard)), CONTENT);
  assert.deepEqual(await read(accessTo(offline, cacheOf(memory))), CONTENT);
  assert.deepEqual(asked, [null]);
  assert.equal(access.bytes(), 1000);
});

test('a connection that breaks goes on behind what arrived', async () => {
  const { asked, fetch } = server([300, 700]);
  const access = accessTo(fetch);
  assert.deepEqual(await read(access), CONTENT);
  assert.deepEqual(asked, [null, 'bytes=300-', 'bytes=700-']);
  assert.equal(access.bytes(), 1000);
});

test('a server without ranges begins again, and progress goes back', async () => {
  const { fetch } = server([300], CONTENT, false);
  const access = accessTo(fetch);
  assert.deepEqual(await read(access), CONTENT);
  assert.equal(access.bytes(), 1000);
});

test('a connection that always breaks is a fault of the network', async () => {
  const { asked, fetch } = server([1, 2, 3]);
  await assert.rejects(read(accessTo(fetch)), { code: 'network', message: /broke 3 times.*expected 1000 bytes, found 3/ });
  assert.equal(asked.length, 3);
});

test('a damaged shard and a truncated one are refused and not kept', async () => {
  const memory = new MemoryCache();
  const damaged = CONTENT.slice();
  damaged[500]! ^= 1;
  for (const [content, message] of [[damaged, /expected SHA-256/], [CONTENT.slice(0, 999), /expected 1000 bytes, found 999/]] as const) {
    const access = accessTo(server([], content).fetch, cacheOf(memory));
    await assert.rejects(read(access), { code: 'integrity', message });
  }
  assert.equal(memory.files.size, 0);
});

test('a file that is too long is refused before it fills the memory', async () => {
  const access = accessTo(server([], new Uint8Array(1001)).fetch);
  await assert.rejects(read(access), { code: 'integrity', message: /found more/ });
});

test('a kept shard that is damaged is downloaded again', async () => {
  const memory = new MemoryCache();
  memory.files.set(addressOf(BASE, shard), new Uint8Array(1000));
  const { asked, fetch } = server();
  assert.deepEqual(await read(accessTo(fetch, cacheOf(memory))), CONTENT);
  assert.equal(asked.length, 1);
  assert.deepEqual(memory.files.get(addressOf(BASE, shard)), CONTENT);
});

test('a full quota loads the model all the same', async () => {
  const memory = new MemoryCache(10);
  assert.deepEqual(await read(accessTo(server().fetch, cacheOf(memory))), CONTENT);
  assert.equal(memory.files.size, 0);
});

/** The locks of a browser, which let one work at a time go on for each name. */
function useLocks(): void {
  const last = new Map<string, Promise<unknown>>();
  const request = async (name: string, { signal }: LockOptions, work: () => Promise<unknown>): Promise<unknown> => {
    signal?.throwIfAborted();
    const before = last.get(name);
    const aborted = new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)));
    const done = Promise.race([Promise.resolve(before), aborted]).then(work);
    last.set(name, Promise.allSettled([before, done]));
    return done;
  };
  Object.defineProperty(globalThis, 'navigator', { value: { locks: { request } }, configurable: true });
}

test('tabs that read a shard at the same time download it once, unless the download of the first one fails', async () => {
  for (const [broken, downloads] of [[[], 1], [[1, 2, 3], 4]] as const) {
    useLocks();
    const cache = cacheOf(new MemoryCache());
    const { asked, fetch } = server([...broken]);
    const [first, second] = [accessTo(fetch, cache), accessTo(fetch, cache)];
    const [one, other] = await Promise.allSettled([read(first), read(second)]);
    assert.equal(one.status, broken.length ? 'rejected' : 'fulfilled');
    assert.deepEqual(other, { status: 'fulfilled', value: CONTENT });
    assert.equal(asked.length, downloads);
    assert.equal(second.bytes(), 1000);
  }
});

test('an abort ends the waiting for another tab', async () => {
  useLocks();
  const cache = cacheOf(new MemoryCache());
  const controller = new AbortController();
  const { asked, fetch } = server();
  let begin = (): void => {};
  const begun = new Promise<void>((resolve) => (begin = resolve));
  const first = read(accessTo(async (...request) => begun.then(() => fetch(...request)), cache));
  const second = read({ ...accessTo(fetch, cache), signal: controller.signal });
  controller.abort();
  await assert.rejects(second, { name: 'AbortError' });
  begin();
  assert.deepEqual(await first, CONTENT);
  assert.equal(asked.length, 1);
});

test('an abort ends a download, and is not retried', async () => {
  const controller = new AbortController();
  const { asked, fetch } = server([300]);
  const access = { ...accessTo(fetch), signal: controller.signal, arrived: () => controller.abort() };
  await assert.rejects(read(access), { name: 'AbortError' });
  assert.equal(asked.length, 1);
});

const INDEX = `${BASE}index.json`;
const asIs = (text: string): string => text;
const answering = (text: string, status = 200) => async (): Promise<Response> => new Response(text, { status });
const WEB_PAGE = '\n<!DOCTYPE html><p>Welcome</p>';

test('small files come from the network, and without one, or while the host fails, from the cache', async () => {
  const cache = cacheOf(new MemoryCache());
  assert.equal(await readText(INDEX, accessTo(answering('{}'), cache), asIs), '{}');
  await cache.write();
  for (const fetch of [offline, answering('', 503)]) assert.equal(await readText(INDEX, accessTo(fetch, cache), asIs), '{}');
  await assert.rejects(readText(INDEX, accessTo(offline), asIs), { code: 'network', message: /not reachable.*TypeError: offline.*access-control-allow-origin/ });
  await assert.rejects(readText(INDEX, accessTo(answering('', 404), cache), asIs), { code: 'network', message: /HTTP 404; .*rdrr web/ });
});

test('a web page in place of a file is refused as that, and what was kept stays', async () => {
  const memory = new MemoryCache();
  const cache = cacheOf(memory);
  await readText(INDEX, accessTo(answering('{}'), cache), asIs);
  await cache.write();
  const access = accessTo(answering(WEB_PAGE), cache);
  for (const call of [() => readText(INDEX, access, asIs), () => readHashed(INDEX, shard.sha256, access), () => read(access)]) {
    await assert.rejects(call, { code: 'network', message: /found a web page/ });
  }
  await cache.write();
  assert.deepEqual([...memory.files.keys()], [INDEX]);
  assert.equal(await readText(INDEX, accessTo(offline, cache), asIs), '{}');
});

test('a small file that is refused is not kept', async () => {
  const memory = new MemoryCache();
  const access = accessTo(answering('[]'), cacheOf(memory));
  const refuse = (): string => {
    throw new Error('not an index');
  };
  await assert.rejects(readText(INDEX, access, refuse), /not an index/);
  await assert.rejects(readHashed(INDEX, shard.sha256, access), { code: 'integrity', message: /reload the page/ });
  await access.cache!.write();
  assert.equal(memory.files.size, 0);
});

test('a host that fails for a moment is asked again', async () => {
  const { fetch } = server();
  let asked = 0;
  const access = accessTo(async (url, init) => ((asked += 1) === 1 ? new Response('', { status: 503 }) : fetch(url, init)));
  assert.deepEqual(await read(access), CONTENT);
  await assert.rejects(read(accessTo(answering('', 403))), { code: 'network', message: /HTTP 403; the host does not give it to this page/ });
});

test('the index is found by its address or its folder, with a query and without', () => {
  for (const query of ['', '?v=2']) {
    for (const path of ['web', 'web/', 'web/index.json']) assert.equal(addressOfIndex(`http://host/${path}${query}`), `http://host/web/index.json${query}`);
  }
  assert.throws(() => addressOfIndex('org/name'), { code: 'usage', message: /found org\/name/ }); // there is no page that it could be relative to
});

test('nothing is kept of a package of which no shard was read, and with the first shard all is', async () => {
  const memory = new MemoryCache();
  cacheOf(memory);
  const index = { format: 'rdrr-web', version: 1, model: 'm', package: '..', manifest: shard.sha256, size: 1, text: {}, programs: [] };
  const source = await openSource(`${BASE}web`, { fetch: answering(JSON.stringify(index)) });
  assert.equal((await surveyOf(source, {})).cached, false);
  await assert.rejects(read({ ...source.access, fetch: answering('', 404) }), { code: 'network' });
  assert.deepEqual([...memory.files.keys()], []);
  await read({ ...source.access, fetch: server().fetch });
  assert.deepEqual([...memory.files.keys()], [source.url, addressOf(BASE, shard)]);
});
