// The entry of the page: which engines there are, and which is used.
import { App, type Engines } from './app.js';
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
if (await ServerEngine.isThere(base)) engines.server = new ServerEngine(base, () => key.get());

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
await app.use(settings.engine);
