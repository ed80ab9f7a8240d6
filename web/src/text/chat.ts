// Conversations: the ids of a prompt, and the parts of the answer to it.
import { AnswerReader, type Part } from './answers.js';
import type { Schemas } from './bodies.js';
import { recognise, type AnswerFormat } from './formats.js';
import type { ChatMessage, Tool, ToolCallDelta } from './messages.js';
import { ChatPrompt, type PromptOptions } from './prompt.js';
import type { ChatTemplate } from './template.js';
import type { Tokenizer } from './tokenizer.js';

export type Delta = { readonly content: string } | { readonly reasoning_content: string } | { readonly tool_calls: readonly ToolCallDelta[] };

const END = 32; // ids at the end of a prompt that tell where an answer begins

export class Chat {
  // Ids that end an answer, beside those that end any text.
  readonly ends: readonly number[];
  #tokenizer: Tokenizer;
  #templates: readonly [ChatTemplate, ChatTemplate]; // without tools and with
  #textEnds: readonly number[];
  #format: AnswerFormat;

  constructor(tokenizer: Tokenizer, templates: readonly [ChatTemplate, ChatTemplate], textEnds: readonly number[]) {
    const [after] = tokenizer.encode(templates[0].afterAnswer());
    this.ends = after !== undefined && tokenizer.isSpecial(after) ? [after] : [];
    this.#tokenizer = tokenizer;
    this.#templates = templates;
    this.#textEnds = textEnds;
    this.#format = recognise(templates[1].source);
  }

  /** The ids of a conversation and of the beginning of its next answer; no message becomes a control token. */
  encode(messages: readonly ChatMessage[], options: PromptOptions = {}): number[] {
    const template = this.#templates[options.tools?.length ? 1 : 0];
    return new ChatPrompt(this.#tokenizer, template, [...this.#textEnds, ...this.ends], options).ids(messages);
  }

  /** Whether the text of an answer has a special token, since it is part of a mark: for `Text.stream`. */
  readonly shows = (token: string): boolean => this.#format.shows(token);

  /** What reads the text of an answer to a prompt; without tools it finds no calls. */
  answer(prompt: readonly number[], tools: readonly Tool[] = []): Answer {
    const stream = this.#tokenizer.stream([]);
    const end = prompt.slice(-END).flatMap((id) => stream.push(id)).map(({ text }) => text).join('');
    const schemas: Schemas = Object.fromEntries(tools.map(({ function: { name, parameters } }) => [name, parameters ?? {}]));
    return new Answer(new AnswerReader(this.#format, { schemas: tools.length ? schemas : null, prompt: end }));
  }
}

export class Answer {
  #reader: AnswerReader;
  #calls = 0;

  constructor(reader: AnswerReader) {
    this.#reader = reader;
  }

  /** Whether the answer has called a tool. */
  get hasCalls(): boolean {
    return this.#calls > 0;
  }

  /** The parts that are certain with a text. */
  push(text: string): Delta[] {
    return this.#reader.feed(text).map((part) => this.#delta(part));
  }

  end(): Delta[] {
    return this.#reader.end().map((part) => this.#delta(part));
  }

  #delta(part: Part): Delta {
    if (part.kind === 'call') {
      const call: ToolCallDelta = { index: this.#calls, id: callId(), type: 'function', function: { name: part.name, arguments: part.arguments } };
      this.#calls += 1;
      return { tool_calls: [call] };
    }
    return part.kind === 'reasoning' ? { reasoning_content: part.text } : { content: part.text };
  }
}

const callId = (): string => `call_${Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;
