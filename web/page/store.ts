// Conversations and settings, kept in this browser. Each conversation has a key of its own, so that two
// tabs do not overwrite each other's.

export interface Turn {
  role: 'user' | 'assistant';
  content: string;
  pictures?: readonly string[]; // as URLs that hold them
  reasoning?: string;
  note?: string; // why the answer is not complete
  stats?: string; // tokens and speed, for people
  ids?: { readonly model: string; readonly ids: readonly number[] }; // of the answer
}

export interface Conversation {
  readonly id: string;
  title: string;
  changed: number;
  turns: Turn[];
  text: string; // of a model that continues a text
  before?: string; // the text before the last continuation
}

export const DEFAULTS = {
  theme: 'auto' as 'auto' | 'light' | 'dark',
  engine: 'server' as 'server' | 'browser',
  system: '',
  temperature: 0.7,
  top_p: 0.95,
  top_k: 0,
  min_p: 0,
  repeat_penalty: 1,
  max_tokens: 0,
  seed: null as number | null,
  stop: '',
};

export type Settings = typeof DEFAULTS;

const CONVERSATION = 'rdrr:conversation:';
const SETTINGS = 'rdrr:settings';
const CURRENT = 'rdrr:current';
const KEY = 'rdrr:key';

/** The conversations, the last one first; what is none is left out. */
export function conversations(): Conversation[] {
  const keys = Array.from({ length: localStorage.length }, (_, at) => localStorage.key(at) ?? '');
  const all = keys.filter((key) => key.startsWith(CONVERSATION)).flatMap((key) => read<Conversation>(key) ?? []);
  return all.filter(isConversation).sort((a, b) => b.changed - a.changed);
}

function isConversation(value: Partial<Conversation>): boolean {
  return typeof value.id === 'string' && typeof value.text === 'string' && Array.isArray(value.turns);
}

export function newConversation(): Conversation {
  return { id: randomId(), title: 'New conversation', changed: Date.now(), turns: [], text: '' };
}

// crypto.randomUUID is there only where pages are loaded securely.
function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint32Array(3)), (word) => word.toString(36)).join('-');
}

/** Keeps a conversation; returns false if the browser has no room. */
export function keep(conversation: Conversation): boolean {
  return write(CONVERSATION + conversation.id, conversation);
}

export function forget(id: string): void {
  localStorage.removeItem(CONVERSATION + id);
}

export const isConversationKey = (key: string | null): boolean => key === null || key.startsWith(CONVERSATION);

export const current = {
  get: (): string | null => sessionStorage.getItem(CURRENT) ?? localStorage.getItem(CURRENT),
  set: (id: string): void => {
    // A tab has its own; a new one begins with the last of any.
    sessionStorage.setItem(CURRENT, id);
    write(CURRENT, id, String);
  },
};

export function settings(): Settings {
  return { ...DEFAULTS, ...read<Partial<Settings>>(SETTINGS) };
}

export function keepSettings(changed: Settings): boolean {
  return write(SETTINGS, changed);
}

/** The key of the server; only as long as the tab is open. */
export const key = {
  get: (): string => sessionStorage.getItem(KEY) ?? '',
  set: (text: string): void => sessionStorage.setItem(KEY, text),
};

function read<T>(name: string): T | null {
  try {
    return JSON.parse(localStorage.getItem(name) ?? 'null') as T | null;
  } catch {
    return null;
  }
}

function write(name: string, value: unknown, encode: (value: unknown) => string = JSON.stringify): boolean {
  try {
    localStorage.setItem(name, encode(value));
    return true;
  } catch {
    return false;
  }
}
