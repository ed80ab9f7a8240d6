// Keeps the page and its small files, so that it opens without a network. The network comes first:
// what is kept is for when there is none. Weights are kept by the runtime itself.

interface Fetching extends Event {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
  waitUntil(done: Promise<unknown>): void;
}

interface Scope {
  readonly registration: { readonly scope: string };
  readonly clients: { claim(): Promise<void> };
  addEventListener(name: string, listener: (event: Fetching) => void): void;
  skipWaiting(): Promise<void>;
}

// The types of workers exclude those of pages.
const worker = globalThis as unknown as Scope;

const CACHE = 'rdrr-page';
const PAGE = ['./', 'page.js', 'page.css', 'rdrr.js', 'worker.js'];
// Beside these: what describes a package and its programs.
const KEPT = /^(package\/web\/)?(index\.json|programs\/[\w-]+\.json)$/;

const inScope = (path: string): string => new URL(path, worker.registration.scope).href;

async function fill(): Promise<void> {
  const cache = await caches.open(CACHE);
  // A page of a server alone may have no runtime: what is missing is left out.
  await Promise.all(PAGE.map((path) => cache.add(inScope(path)).catch(() => undefined)));
}

async function fromNetworkFirst(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: request.mode === 'navigate' });
    if (kept) return kept;
    throw error;
  }
}

function isKept({ method, url }: Request): boolean {
  const { scope } = worker.registration;
  const [place] = url.split(/[?#]/) as [string];
  if (method !== 'GET' || !place.startsWith(scope)) return false;
  return PAGE.some((path) => inScope(path) === place) || KEPT.test(place.slice(scope.length));
}

worker.addEventListener('install', (event) => event.waitUntil(fill().then(() => worker.skipWaiting())));
worker.addEventListener('activate', (event) => event.waitUntil(worker.clients.claim()));
worker.addEventListener('fetch', (event) => {
  if (isKept(event.request)) event.respondWith(fromNetworkFirst(event.request));
});

export {};
