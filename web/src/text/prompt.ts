// The token ids of a conversation: the template's text around messages, and the ids of answers.
import { RdrrError } from '../errors.js';
import type { SeenImage } from '../images/seen.js';
import type { ProcessorBlock } from '../load/manifest.js';
import { ControlTokens, markedParts } from './control.js';
import type { ChatMessage, Tool } from './messages.js';
import { textOf } from './stream.js';
import type { ChatTemplate } from './template.js';
import type { Tokenizer } from './tokenizer.js';

const ANSWER = '\u2063answer\u2063'; // stands for an answer whose ids are known

export interface PromptOptions {
  readonly tools?: readonly Tool[];
  readonly variables?: Readonly<Record<string, unknown>>;
  readonly images?: PromptImages;
}

/** The images of a prompt in its order, each with the ids of its tokens, and what stands for them in texts. */
export interface PromptImages {
  readonly images: readonly Pick<SeenImage, 'first' | 'tokens' | 'tiles'>[];
  readonly recipe: Pick<ProcessorBlock, 'placeholder' | 'token' | 'before' | 'after' | 'tiles'>;
}

export class ChatPrompt {
  private readonly control: ControlTokens;
  private places = 0; // of images, in the text so far

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly template: ChatTemplate,
    private readonly ends: readonly number[],
    private readonly options: PromptOptions = {},
  ) {
    this.control = controlTokens(tokenizer, template);
  }

  /** The ids of messages, and of the beginning of the answer to them. */
  ids(given: readonly ChatMessage[]): number[] {
    return this.seen(this.joined(given));
  }

  private joined(given: readonly ChatMessage[]): number[] {
    const messages = given.map(plain);
    this.places = 0;
    const answers = given.flatMap(({ token_ids: ids }, at) => (at && ids?.length ? [{ at, ids }] : []));
    const [first] = answers;
    if (!first) return this.encode(this.text(messages), false);
    const ids = this.encode(this.text(messages.slice(0, first.at)), false);
    for (const [index, answer] of answers.entries()) {
      const text = this.after(messages.slice(0, answers[index + 1]?.at ?? messages.length), answer.at);
      if (text === null) return this.encode(this.text(messages), false);
      ids.push(...this.withoutEnd(answer.ids), ...this.encode(text, true));
    }
    return ids;
  }

  // The template writes the end of an answer.
  private withoutEnd(ids: readonly number[]): readonly number[] {
    return this.ends.includes(ids.at(-1)!) ? ids.slice(0, -1) : ids;
  }

  // The text after the answer at a position; null if the template leaves the answer out.
  private after(messages: readonly Plain[], at: number): string | null {
    let marker = ANSWER;
    const all = JSON.stringify(messages);
    while (all.includes(marker)) marker += ANSWER; // nobody can write it into a message
    const text = this.text(messages.map((message, index) => (index === at ? { ...message, content: marker } : message)));
    const begin = text.lastIndexOf(marker);
    return begin < 0 ? null : text.slice(begin + marker.length);
  }

  private text(messages: readonly Plain[]): string {
    const { images: _, ...options } = this.options;
    const { tools = null, variables = {} } = this.control.marked(options);
    return this.template.render(this.control.marked(messages), { tools, variables });
  }

  // Marked parts become no control tokens, all other text the ids that it has in the middle of a text.
  private encode(text: string, follows: boolean): number[] {
    const ids: number[] = [];
    for (const part of markedParts(text)) {
      const written = part.marked ? part.text : this.filled(part.text);
      if (part.marked) ids.push(...encodePlain(this.tokenizer, written));
      else if (ids.length || follows) ids.push(...continued(this.tokenizer, written, true));
      else ids.push(...this.tokenizer.encode(written));
    }
    return ids;
  }

  // A text of the template with the tokens of images in place of placeholders.
  private filled(text: string): string {
    const { images, recipe } = this.options.images ?? {};
    if (!images || !recipe) return text;
    return text.replaceAll(recipe.placeholder, () => imageText(recipe, images[this.places++]));
  }

  // Ids with those of the images in place of their tokens.
  private seen(ids: number[]): number[] {
    const { images, recipe } = this.options.images ?? {};
    if (!images || !recipe) return ids;
    if (this.places !== images.length) {
      throw new RdrrError('usage', `the chat template does not have one place for each image: expected ${images.length}, found ${this.places}`);
    }
    const [token, ...more] = continued(this.tokenizer, recipe.token, true);
    const expected = images.flatMap(({ first, tokens }) => Array.from({ length: tokens }, (_, index) => first + index));
    const count = ids.filter((id) => id === token).length;
    if (more.length || count !== expected.length) {
      throw new RdrrError('usage', `the prompt has other tokens of images than its images need: expected ${expected.length}, found ${count}`);
    }
    let next = 0;
    return ids.map((id) => (id === token ? expected[next++]! : id));
  }
}

/** Return what stands for an image in a prompt: its tiles, then the whole image. Rows and columns count from 1. */
export function imageText(recipe: PromptImages['recipe'], image?: Pick<PromptImages['images'][number], 'tokens' | 'tiles'>): string {
  const { tokens, tiles: [rows, columns] } = image ?? { tokens: 0, tiles: [0, 0] }; // a place without an image is refused later
  const { before = '', rowAfter = '', after = '' } = recipe.tiles ?? {};
  const picture = recipe.token.repeat(tokens / (rows * columns + 1));
  let text = '';
  for (let row = 1; row <= rows; row += 1) {
    for (let column = 1; column <= columns; column += 1) text += before.replaceAll('{row}', `${row}`).replaceAll('{column}', `${column}`) + picture;
    text += rowAfter;
  }
  return `${text}${rows ? after : ''}${recipe.before ?? ''}${picture}${recipe.after ?? ''}`;
}

type Plain = Readonly<Record<string, unknown>>;

// A message as templates know it: text instead of parts, no role `developer`, no ids.
function plain(message: ChatMessage, at: number): Plain {
  const { token_ids: _, content, ...rest } = message;
  const role = message.role === 'developer' ? 'system' : message.role;
  if (!Array.isArray(content)) return { ...rest, role, ...(content == null ? {} : { content }) };
  if (content.some(({ type }: { type: string }) => type === 'image')) return { ...rest, role, content };
  const texts = content.map(({ type, text }: { type: string; text?: string }) => {
    if (text === undefined) throw new RdrrError('usage', `messages.${at}: only text is read, found a part of type ${type}`);
    return text;
  });
  return { ...rest, role, content: texts.join('') };
}

function controlTokens(tokenizer: Tokenizer, template: ChatTemplate): ControlTokens {
  const texts = new Set(template.controlTokens(tokenizer.added));
  const becomes = (text: string): boolean => tokenizer.encode(text).some((id) => texts.has(tokenizer.token(id) ?? ''));
  return new ControlTokens(texts, tokenizer.normalizes ? becomes : null);
}

// The ids of a text none of which is an added token.
function encodePlain(tokenizer: Tokenizer, text: string): number[] {
  const added = new Set(tokenizer.added.map(({ content }) => content));
  for (const parts of [[text], [...text]]) {
    const ids = parts.flatMap((part) => continued(tokenizer, part, false));
    if (!ids.some((id) => added.has(tokenizer.token(id) ?? ''))) return ids;
  }
  throw new RdrrError('usage', `a message holds a control token that has no other tokens: ${text}; change the message`);
}

const LETTER = 'a';

// The ids of a text that follows another. Where the tokenizer puts a space before every text, they are
// those after a character that does not merge with the text.
export function continued(tokenizer: Tokenizer, text: string, control: boolean): number[] {
  const encode = (whole: string): number[] => tokenizer.encode(whole, { control });
  const letter = encode(LETTER);
  const alone = encode(text);
  const begun = tokenizer.stream(letter);
  if (textOf(letter.flatMap((id) => begun.push(id))) === LETTER) return alone;
  for (const before of ['\n', '.', LETTER]) {
    const first = encode(before);
    const ids = encode(before + text);
    if (first.every((id, at) => ids[at] === id)) return ids.slice(first.length);
  }
  return alone;
}
