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

// The conversations are there at once, whatever answers.
const engines: Engines = {};
const app = new App(engines, settings);
followSettings(settings, () => void app.reopen());
const base = new URL('./', location.href).href;
if (await ServerEngine.isThere(base)) engines.server = new ServerEngine(base, () => key.get());
// `rdrr web --page` writes the index beside the page; a server has it in the package's folder.
const asked = new URLSearchParams(location.search).get('model');
if (asked) engines.browser = new BrowserEngine(asked); // what is wrong with it is said when it is surveyed
for (const place of ['index.json', 'package/web/index.json']) {
  const index = new URL(place, base).href;
  if (!engines.browser && (await BrowserEngine.isThere(index))) engines.browser = new BrowserEngine(index);
}

const names = Object.keys(engines) as Settings['engine'][];
const [first] = names;
if (first && !engines[settings.engine]) settings.engine = first;

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
