// The dialog of settings, and what they mean for the engine.
import { byId } from './dom.js';
import type { Sampling } from './engine.js';
import { DEFAULTS, keepSettings, key, type Settings } from './store.js';

const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'repeat_penalty', 'max_tokens'] as const;
const TEXTS = ['system', 'stop'] as const;

/** The options of a request: what is off is left out. */
export function samplingOf(settings: Settings): Sampling {
  const stop = settings.stop.split('\n').filter(Boolean);
  const isGreedy = settings.temperature === 0;
  return {
    temperature: settings.temperature,
    ...(!isGreedy && settings.top_p < 1 && { top_p: settings.top_p }),
    ...(!isGreedy && settings.top_k > 0 && { top_k: settings.top_k }),
    ...(!isGreedy && settings.min_p > 0 && { min_p: settings.min_p }),
    ...(settings.repeat_penalty !== 1 && { repeat_penalty: settings.repeat_penalty }),
    ...(settings.seed !== null && { seed: settings.seed }),
    ...(settings.max_tokens > 0 && { max_tokens: settings.max_tokens }),
    ...(stop.length && { stop }),
  };
}

export function followSettings(settings: Settings, onKey: () => void): void {
  const dialog = byId<HTMLDialogElement>('settings');
  const form = byId<HTMLFormElement>('settings-form');
  byId('open-settings').onclick = () => {
    fill(form, settings);
    dialog.showModal();
  };
  byId('reset-settings').onclick = () => fill(form, { ...DEFAULTS, theme: settings.theme, engine: settings.engine });
  form.onsubmit = () => {
    const before = key.get();
    read(form, settings);
    keepSettings(settings);
    if (key.get() !== before) onKey();
  };
}

const field = (form: HTMLFormElement, name: string): HTMLInputElement => form.elements.namedItem(name) as HTMLInputElement;

function fill(form: HTMLFormElement, settings: Settings): void {
  for (const name of [...NUMBERS, ...TEXTS]) field(form, name).value = String(settings[name]);
  field(form, 'seed').value = settings.seed === null ? '' : String(settings.seed);
  field(form, 'key').value = key.get();
  byId('key-field').hidden = settings.engine !== 'server';
}

function read(form: HTMLFormElement, settings: Settings): void {
  for (const name of NUMBERS) {
    const value = field(form, name).valueAsNumber;
    settings[name] = Number.isFinite(value) ? value : DEFAULTS[name];
  }
  for (const name of TEXTS) settings[name] = field(form, name).value;
  const seed = field(form, 'seed').valueAsNumber;
  settings.seed = Number.isFinite(seed) ? seed : null;
  key.set(field(form, 'key').value);
}
