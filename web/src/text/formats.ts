// How answers mark reasoning and calls of tools: a table that Python reads too, selected by what a chat
// template holds. docs/explanation/answer-formats.md says what the fields mean.
import answerFormats from '../../../runtime/rdrr_runtime/text/answer_formats.json' with { type: 'json' };

export type Form = 'json' | 'named' | 'tags' | 'braces' | 'python';

export interface Tags {
  readonly name: Pair;
  readonly key: Pair;
  readonly value: Pair;
}

export type Pair = readonly [string, string];

/** A row of the table. */
export interface Marks {
  readonly begin: readonly string[];
  readonly end: readonly string[];
  readonly hidden: readonly string[];
  readonly arguments: readonly Form[];
  readonly separators: readonly string[];
  readonly tags: Tags | null;
  readonly quote: string;
  readonly bare: readonly string[];
  readonly message: string;
  readonly prompt: string;
  readonly recipient: string;
  readonly reasoning: readonly string[];
}

const NONE: Marks = {
  begin: [], end: [], hidden: [], arguments: [], separators: [], tags: null, quote: '"', bare: [], message: '', prompt: '', recipient: '', reasoning: [],
};

/** The format of a model's answers; null for what is not marked. */
export interface AnswerFormat {
  readonly reasoning: Marks | null;
  readonly calls: Marks | null;
  readonly channels: Marks | null;
  // Whether the text of a special token is part of a mark, so that it must be kept.
  shows(token: string): boolean;
}

type Row = Partial<Marks> & { readonly marks: readonly (readonly string[])[] };
const table = answerFormats as Readonly<Record<'channels' | 'reasoning' | 'calls', readonly Row[]>>;

/** The format of the answers to prompts of a chat template. */
export function recognise(template: string): AnswerFormat {
  const first = (rows: readonly Row[]): Row | null =>
    rows.find(({ marks }) => marks.some((all) => all.every((mark) => template.includes(mark)))) ?? null;
  const channels = first(table.channels);
  const reasoning = channels ? null : first(table.reasoning);
  const calls = channels ? null : first(table.calls);
  const texts = [channels, reasoning, calls].flatMap(textsOf);
  const marks = (row: Row | null): Marks | null => row && { ...NONE, ...row };
  return { channels: marks(channels), reasoning: marks(reasoning), calls: marks(calls), shows: (token) => texts.some((text) => text.includes(token)) };
}

function textsOf(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  return value !== null && typeof value === 'object' ? Object.values(value).flatMap(textsOf) : [];
}
