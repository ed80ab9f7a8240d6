// What the engine needs of text: ids of texts and conversations, and the text of ids.
import { RdrrError } from '../errors.js';
import type { ChatMessage } from './messages.js';
import { ChatPrompt, type PromptOptions } from './prompt.js';
import { StopFilter } from './stop.js';
import { ChatTemplate, templateSource, type Settings } from './template.js';
import { Tokenizer, type IdStream } from './tokenizer.js';

export type { ChatMessage, Tool, ToolCall, ToolCallDelta } from './messages.js';

/** The files of a package that are about text. */
export interface TextFiles {
  readonly tokenizer: string; // tokenizer.json
  readonly config: string | null; // tokenizer_config.json
  readonly special?: string | null; // special_tokens_map.json
  readonly template: string | null; // chat_template.jinja
  readonly stated: { readonly bosTokenId?: number | null; readonly addBosToken?: boolean | null } | null; // of the manifest
  readonly ends?: readonly number[]; // ids that end a text, of the manifest
}

export class Text {
  readonly chat: Chat | null;
  #tokenizer: Tokenizer;
  #bos: number | null;

  constructor(files: TextFiles) {
    this.#tokenizer = new Tokenizer(files.tokenizer);
    this.#bos = files.stated?.addBosToken ? (files.stated.bosTokenId ?? null) : null;
    this.chat = chatOf(this.#tokenizer, files);
  }

  /** The ids of a prompt; `bos` adds what every prompt begins with, `control: false` makes no added token. */
  encode(text: string, { bos = true, control = true } = {}): number[] {
    const ids = this.#tokenizer.encode(text, { special: bos, control });
    return bos && this.#bos !== null && ids[0] !== this.#bos ? [this.#bos, ...ids] : ids;
  }

  decode(ids: readonly number[]): string {
    return this.#tokenizer.decode(ids);
  }

  /** The text of one id, special tokens shown. */
  tokenText(id: number): string {
    return this.#tokenizer.isSpecial(id) ? (this.#tokenizer.token(id) ?? '') : this.#tokenizer.decode([id]);
  }

  /** The text that ids add to that of a prompt, up to a stop string. */
  stream(prompt: readonly number[], stop: readonly string[]): TextStream {
    return new TextStream(this.#tokenizer.stream(prompt), stop);
  }
}

export const openText = (files: TextFiles): Text => new Text(files);

export class TextStream {
  #filter: StopFilter;
  #ids: IdStream;

  constructor(ids: IdStream, stop: readonly string[]) {
    this.#filter = new StopFilter(stop);
    this.#ids = ids;
  }

  /** The stop string that ended the text. */
  get stoppedBy(): string | null {
    return this.#filter.found;
  }

  get stopped(): boolean {
    return this.#filter.found !== null;
  }

  /** The text that is certain with these ids; those after a stop string are not read. */
  push(ids: readonly number[]): string {
    let text = '';
    for (const id of ids) {
      if (this.stopped) break;
      text += this.#filter.feed(this.#ids.push(id));
      const held = this.#ids.held();
      if (this.#filter.wouldStop(held)) text += this.#filter.feed(held);
    }
    return text;
  }

  /** What was held back: incomplete characters, what may have been a stop string. */
  end(): string {
    return this.#filter.feed(this.#ids.rest()) + this.#filter.rest();
  }
}

export class Chat {
  // Ids that end an answer, beside those that end any text.
  readonly ends: readonly number[];
  #prompt: (options: PromptOptions) => ChatPrompt;

  constructor(tokenizer: Tokenizer, template: (tools: boolean) => ChatTemplate, ends: readonly number[]) {
    const [after] = tokenizer.encode(template(false).afterAnswer());
    this.ends = after !== undefined && tokenizer.isSpecial(after) ? [after] : [];
    this.#prompt = (options) => new ChatPrompt(tokenizer, template(Boolean(options.tools?.length)), [...ends, ...this.ends], options);
  }

  /** The ids of a conversation and of the beginning of its next answer; no message becomes a control token. */
  encode(messages: readonly ChatMessage[], options: PromptOptions = {}): number[] {
    return this.#prompt(options).ids(messages);
  }
}

function chatOf(tokenizer: Tokenizer, files: TextFiles): Chat | null {
  const settings = mergedSettings(files);
  const sources = (tools: boolean): string | null => files.template ?? templateSource(settings, tools);
  if (sources(false) === null) return null;
  const templates = new Map<string, ChatTemplate>();
  return new Chat(tokenizer, (tools) => {
    const source = sources(tools)!;
    const template = templates.get(source) ?? new ChatTemplate(source, settings);
    templates.set(source, template);
    return template;
  }, files.ends ?? []);
}

// The older file for special tokens replaces the settings, unless these hold `added_tokens_decoder`.
function mergedSettings({ config, special }: TextFiles): Settings {
  const settings = objectOf(config, 'tokenizer_config.json');
  return settings['added_tokens_decoder'] ? settings : { ...settings, ...objectOf(special ?? null, 'special_tokens_map.json') };
}

function objectOf(text: string | null, name: string): Settings {
  if (text === null) return {};
  try {
    const value: unknown = JSON.parse(text);
    return value !== null && typeof value === 'object' && !Array.isArray(value) ? value as Settings : {};
  } catch (error) {
    throw new RdrrError('format', `${name} is not JSON`, { cause: error });
  }
}
