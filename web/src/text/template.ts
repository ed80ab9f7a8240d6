// The chat template of a package: the messages of a conversation as the text of a prompt.
import { RdrrError } from '../errors.js';
import { isObject } from './literals.js';
import { read, render, type Parsed } from './jinja.js';
import type { AddedToken } from './prepare.js';

const ANSWER = '\u2063answer\u2063';

// The names of a message's reasoning; templates read the first, and those of gpt-oss the second.
const REASONING = ['reasoning_content', 'thinking', 'reasoning'];

export interface Settings {
  readonly chat_template?: unknown;
  readonly chat_control_tokens?: unknown;
  readonly [name: string]: unknown;
}

export interface Rendering {
  readonly addGenerationPrompt?: boolean;
  readonly tools?: readonly unknown[] | null;
  readonly variables?: Readonly<Record<string, unknown>>;
}

type Message = Readonly<Record<string, unknown>>;

export class ChatTemplate {
  private readonly template: Parsed;
  private readonly tokens: Readonly<Record<string, string>>;
  private readonly stated: readonly string[] | null;

  constructor(readonly source: string, settings: Settings) {
    try {
      this.template = read(source);
    } catch (error) {
      throw new RdrrError('format', `the chat template cannot be read in browsers: ${messageOf(error)}`, { cause: error });
    }
    this.tokens = namedTokens(settings);
    const stated = settings.chat_control_tokens;
    this.stated = Array.isArray(stated) ? stated.map(String) : null;
  }

  render(messages: readonly Message[], { addGenerationPrompt = true, tools = null, variables = {} }: Rendering = {}): string {
    const given = { tools, documents: null, ...this.tokens, ...variables, messages: messages.map(plain) };
    try {
      return render(this.template, { ...given, add_generation_prompt: addGenerationPrompt });
    } catch (error) {
      throw new RdrrError('usage', `the chat template refuses the messages: ${messageOf(error)}`, { cause: error });
    }
  }

  /** The tokens that a message must not contain: special ones, and the template's own. */
  controlTokens(added: readonly AddedToken[]): string[] {
    const literals = this.stated ? '' : literalText(this.template);
    const belongs = (text: string): boolean =>
      this.stated ? this.stated.includes(text) : literals.includes(text) && text.trim() !== '';
    return added.filter(({ content, special }) => special || belongs(content)).map(({ content }) => content);
  }

  /** The text that the template writes after an assistant's message; empty if it refuses the attempt. */
  afterAnswer(): string {
    const messages = [{ role: 'user', content: '?' }, { role: 'assistant', content: ANSWER }];
    try {
      const text = this.render(messages, { addGenerationPrompt: false });
      const at = text.indexOf(ANSWER);
      return at < 0 ? '' : text.slice(at + ANSWER.length);
    } catch {
      return '';
    }
  }
}

/** The template in a package's settings; of several, that for tools if it is asked for. */
export function templateSource(settings: Settings, tools: boolean): string | null {
  const templates = namedTemplates(settings.chat_template);
  return (tools ? templates['tool_use'] : undefined) ?? templates['default'] ?? null;
}

function namedTemplates(stated: unknown): Record<string, string> {
  const entries = Array.isArray(stated)
    ? stated.map((entry?: { name: string; template: unknown }) => [entry?.name, entry?.template])
    : Object.entries(isObject(stated) ? stated : { default: stated });
  return Object.fromEntries(entries.filter((entry): entry is [string, string] => typeof entry[1] === 'string'));
}

// Special tokens by the names that templates use for them.
function namedTokens(settings: Settings): Record<string, string> {
  const own = Object.entries(settings).filter(([name]) => name.endsWith('_token'));
  const more = ['model_specific_special_tokens', 'extra_special_tokens'].flatMap((key) => {
    const stated = settings[key];
    return isObject(stated) ? Object.entries(stated) : [];
  });
  const texts = [...own, ...more].map(([name, value]) => [name, textOf(value)] as const);
  return Object.fromEntries(texts.filter((entry): entry is [string, string] => entry[1] !== null));
}

function textOf(token: unknown): string | null {
  const text = isObject(token) ? token['content'] : token;
  return typeof text === 'string' ? text : null;
}

// A message without keys whose value is null, its parts as one text, and its reasoning under both names.
function plain(message: Message): Message {
  const stated: Record<string, unknown> = Object.fromEntries(Object.entries(message).filter(([, value]) => value != null));
  const name = REASONING.find((key) => key in stated);
  return name ? { thinking: stated[name], ...stated, reasoning_content: stated[name] } : stated;
}

// All texts that a template holds, with a null character between them.
function literalText(node: unknown): string {
  if (node === null || typeof node !== 'object') return '';
  if (node instanceof Map) return [...node].flat().map(literalText).join('\0');
  const { type, value } = node as { type?: string; value?: unknown };
  if (type === 'StringLiteral') return String(value);
  return Object.values(node).map(literalText).join('\0');
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
