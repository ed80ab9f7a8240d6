// Conversations: the ids of a prompt, and the parts of the answer to it.
import { Answer } from './answers.js';
import type { Schemas } from './bodies.js';
import { recognise, type AnswerFormat } from './formats.js';
import type { ChatMessage, Tool } from './messages.js';
import { ChatPrompt, type PromptOptions } from './prompt.js';
import { textOf } from './stream.js';
import type { ChatTemplate } from './template.js';
import type { Tokenizer } from './tokenizer.js';

const END = 32; // ids at the end of a prompt that tell where an answer begins

export class Chat {
  // Ids that end an answer, beside those that end any text.
  readonly ends: readonly number[];
  private readonly format: AnswerFormat;

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly templates: readonly [ChatTemplate, ChatTemplate], // without tools and with
    private readonly textEnds: readonly number[],
  ) {
    const [after] = tokenizer.encode(templates[0].afterAnswer());
    this.ends = after !== undefined && tokenizer.isSpecial(after) ? [after] : [];
    this.format = recognise(templates[1].source);
  }

  /** The ids of a conversation and of the beginning of its next answer; no message becomes a control token. */
  encode(messages: readonly ChatMessage[], options: PromptOptions = {}): number[] {
    const template = this.templates[options.tools?.length ? 1 : 0];
    return new ChatPrompt(this.tokenizer, template, [...this.textEnds, ...this.ends], options).ids(messages);
  }

  /** Whether the text of an answer has a special token, since it is part of a mark: for `Text.stream`. */
  readonly shows = (token: string): boolean => this.format.shows(token);

  /** What reads the text of an answer to a prompt; without tools it finds no calls. */
  answer(prompt: readonly number[], tools: readonly Tool[] = []): Answer {
    const stream = this.tokenizer.stream([]);
    const end = textOf(prompt.slice(-END).flatMap((id) => stream.push(id)));
    const schemas: Schemas = Object.fromEntries(tools.map(({ function: { name, parameters } }) => [name, parameters ?? {}]));
    return new Answer(this.format, { schemas: tools.length ? schemas : null, prompt: end });
  }
}
