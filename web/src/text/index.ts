// What the engine needs of text: ids of texts and conversations, and the text of ids.
import { parseJson } from '../errors.js';
import type { TokenizerBlock } from '../load/manifest.js';
import { Chat } from './chat.js';
import type { Vocabulary } from './grammar.js';
import { isObject } from './literals.js';
import { TextStream } from './stop.js';
import { ChatTemplate, templateSource, type Settings } from './template.js';
import { Tokenizer } from './tokenizer.js';

export type { Answer, Delta } from './answers.js';
export type { Chat } from './chat.js';
export { Grammars, type GrammarLibrary, type GrammarSource, type SchemaConstraint } from './grammar.js';
export type { ChatMessage, Tool, ToolCall, ToolCallDelta } from './messages.js';
export type { PromptImages } from './prompt.js';

/** The files of a package that are about text. */
export interface TextFiles {
  readonly tokenizer: string; // tokenizer.json
  readonly config?: string | null; // tokenizer_config.json
  readonly special?: string | null; // special_tokens_map.json
  readonly template?: string | null; // chat_template.jinja
  readonly stated?: TokenizerBlock; // of the manifest
  readonly ends?: readonly number[]; // ids that end a text, of the manifest
}

export class Text {
  readonly chat: Chat | null;
  private readonly tokenizer: Tokenizer;
  private readonly bos: number | null;

  constructor(files: TextFiles) {
    this.tokenizer = new Tokenizer(files.tokenizer);
    this.bos = files.stated?.addBosToken ? (files.stated.bosTokenId ?? null) : null;
    this.chat = chatOf(this.tokenizer, files);
  }

  /** The ids of a prompt, of at most `limit` tokens, with those that every prompt begins and ends with. */
  encode(text: string, limit = Infinity): number[] {
    return this.tokenizer.encode(text, { special: true, limit, bos: this.bos });
  }

  /** How many ids the tokenizer adds behind a text. */
  get suffix(): number {
    const [whole, text] = [{ special: true }, {}].map((options) => this.tokenizer.encode('a', options));
    return whole!.length - whole!.lastIndexOf(text!.at(-1)!) - 1;
  }

  /** What a grammar library must know of the tokenizer. */
  get vocabulary(): Vocabulary {
    return this.tokenizer.vocabulary;
  }

  decode(ids: readonly number[]): string {
    return this.tokenizer.decode(ids);
  }

  /** The text that ids add to that of a prompt, up to a stop string; `shows` says which special tokens it has. */
  stream(prompt: readonly number[], stop: readonly string[], shows?: (token: string) => boolean): TextStream {
    return new TextStream(this.tokenizer.stream(prompt), stop, shows);
  }
}

function chatOf(tokenizer: Tokenizer, files: TextFiles): Chat | null {
  const settings = mergedSettings(files);
  const source = (tools: boolean): string | null => files.template ?? templateSource(settings, tools);
  const plain = source(false);
  if (plain === null) return null;
  const template = new ChatTemplate(plain, settings);
  const other = source(true)!;
  return new Chat(tokenizer, [template, other === plain ? template : new ChatTemplate(other, settings)], files.ends ?? []);
}

// The older file for special tokens replaces the settings, unless these hold `added_tokens_decoder`.
function mergedSettings({ config = null, special = null }: TextFiles): Settings {
  const settings = objectOf(config, 'tokenizer_config.json');
  return settings['added_tokens_decoder'] ? settings : { ...settings, ...objectOf(special, 'special_tokens_map.json') };
}

function objectOf(text: string | null, name: string): Settings {
  const value = text === null ? null : parseJson<unknown>(text, name);
  return isObject(value) ? value : {};
}
