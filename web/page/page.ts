// The entry of the page: which engines there are, and which is used.
import { App, type Engines } from './app.js';
import { BrowserEngine } from './browser.js';
import { byId } from './dom.js';
import { ServerEngine } from './server.js';
import { followSettings } from './settings.js';
import { followMenu, followTheme } from './side.js';
import { keepSettings, key, settings as keptSettings, type Settings } from './store.js';

const settings = keptSettings();
followTheme(settings);
followMenu();

const engines: Engines = {};
const base = new URL('./', location.href).href;
const index = new URL(new URLSearchParams(location.search).get('model') ?? 'index.json', base).href;
const [hasServer, hasIndex] = await Promise.all([ServerEngine.isThere(base), BrowserEngine.isThere(index)]);
if (hasServer) engines.server = new ServerEngine(base, () => key.get());
if (hasIndex) engines.browser = new BrowserEngine(index);

const app = new App(engines, settings);
const names = Object.keys(engines) as Settings['engine'][];
const [first] = names;
if (first && !engines[settings.engine]) settings.engine = first;
followSettings(settings, () => void app.reopen());

byId('engines').hidden = names.length < 2;
for (const choice of document.querySelectorAll<HTMLInputElement>('input[name=engine]')) {
  choice.checked = choice.value === settings.engine;
  choice.onchange = () => {
    settings.engine = choice.value as Settings['engine'];
    keepSettings(settings);
    void app.use(settings.engine);
  };
}
if ('serviceWorker' in navigator) navigator.serviceWorker.register('service-worker.js').catch(() => undefined);
if (first) await app.use(settings.engine);
else app.tell('There is no model here: neither a server of `rdrr serve` nor the files that `rdrr web` writes can be reached.');
