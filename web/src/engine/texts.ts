import { RdrrError } from '../errors.js';
import type { Program } from '../program/schema.js';
import type { ImageSource } from '../images/sources.js';
import type { Recorded, TokenLogprob } from '../sampling/logprobs.js';
import type { Generation, Group } from '../sequence/sequence.js';
import { Grammars, type Answer, type GrammarSource, type PromptImages, type SchemaConstraint, type Text } from '../text/index.js';
import { keptOf, samplingOf, schemaOf, stopsOf, tokensOf, topOf, type AnyTextRequest, type Logprob, type TextEvent, type TextRequest, type TokenEntry } from './requests.js';
import { takenImages, type Sight } from './sight.js';
import { Timing } from './timing.js';

/** Makes the texts of requests out of the ids that `generate` yields. */
export class Texts {
  private grammars: Promise<Grammars> | null = null;

  constructor(
    readonly text: Text | null,
    private readonly program: Program,
    private readonly grammar: GrammarSource | undefined,
    private readonly sight: Sight | null,
    private readonly generate: (prompt: readonly number[], options: Generation) => AsyncIterable<Group>,
  ) {}

  /** Yield the parts of the texts of a request. */
  async *of(given: AnyTextRequest, signal?: AbortSignal): AsyncGenerator<TextEvent> {
    const { request } = given;
    if (!this.program.passes.length) throw new RdrrError('usage', 'the package generates no text; use embeddings');
    const [prompt, ends] = await this.prompt(given);
    const copies = request.n ?? 1;
    const timing = new Timing(prompt.length);
    const common = { max_tokens: tokensOf(given), logprobs: topOf(given), context_shift: keptOf(request), signal };
    for (let index = 0; index < copies; index += 1) {
      const constraint = await this.constraint(request);
      const begun = (reused: number): void => timing.begun(reused);
      try {
        const parts = this.textOf(given, prompt, ends, timing, { ...samplingOf(request, index), ...common, constraint, begun });
        for await (const part of parts) yield { index, ...part, ...(part.finish && index === copies - 1 && { usage: timing.usage }) };
      } finally {
        constraint?.close();
      }
    }
  }

  /** Yield the parts of a text, the last of which says how it ended. */
  private async *textOf(
    given: AnyTextRequest,
    prompt: readonly number[],
    ends: ReadonlySet<number>,
    timing: Timing,
    options: Generation,
  ): AsyncGenerator<Omit<TextEvent, 'index'>> {
    const said = prompt.filter((id) => id < this.program.vocabulary);
    const answer = this.answerTo(given, said);
    const stream = this.text?.stream(said, stopsOf(given.request), answer ? this.text.chat!.shows : undefined) ?? null;
    let ended = false;
    timing.start();
    for await (const { ids, recorded } of this.generate(prompt, options)) {
      const at = ids.findIndex((id) => ends.has(id));
      const some = at < 0 ? ids : ids.slice(0, at + 1);
      timing.count(some.length);
      const text = stream?.push(some) ?? '';
      ended = at >= 0 || Boolean(stream?.stopped);
      const logprobs = recorded && this.named(recorded.slice(0, some.length));
      yield { text, ids: some, finish: null, ...(answer && { deltas: answer.push(text) }), ...(logprobs && { logprobs }) };
      if (ended) break;
    }
    timing.end();
    const text = stream?.end() ?? '';
    const deltas = answer ? [...answer.push(text), ...answer.end()] : [];
    const finish = answer?.hasCalls ? 'tool_calls' : ended ? 'stop' : 'length';
    yield { text, ids: [], finish, ...(answer && { deltas }) };
  }

  /** Return what a request's schema lets follow; undefined if its texts are free. */
  private async constraint(request: TextRequest): Promise<SchemaConstraint | undefined> {
    const schema = schemaOf(request);
    if (!schema) return undefined;
    if (!this.grammar) throw new RdrrError('usage', 'response_format: give the engine `grammar`, the URL of the script of @mlc-ai/web-xgrammar');
    const { vocabulary, ends } = this.program;
    const text = this.requireText();
    this.grammars ??= Grammars.open(this.grammar, text.vocabulary, vocabulary, [...ends, ...(text.chat?.ends ?? [])]);
    this.grammars.catch(() => (this.grammars = null));
    return (await this.grammars).constraint(schema);
  }

  /** Return log-probabilities with the texts of their tokens. */
  private named(recorded: readonly Recorded[]): Logprob[] {
    const text = this.requireText();
    const entry = ({ id, logprob }: TokenLogprob): TokenEntry => {
      const token = text.decode([id]);
      return { token, logprob, bytes: [...new TextEncoder().encode(token)] };
    };
    return recorded.map(({ top, ...token }) => ({ ...entry(token), top_logprobs: top.map(entry) }));
  }

  /** Return what reads the answer to a chat: its content, reasoning and calls of tools. */
  private answerTo(given: AnyTextRequest, prompt: readonly number[]): Answer | null {
    if (given.kind === 'completion') return null;
    const { tools, tool_choice } = given.request;
    return this.requireText().chat!.answer(prompt, tool_choice === 'none' ? [] : tools);
  }

  /** Return the ids of a request's prompt, and those that end its texts. */
  private async prompt(given: AnyTextRequest): Promise<[number[], Set<number>]> {
    const { ends } = this.program;
    if (given.kind === 'completion') {
      const { prompt } = given.request;
      return [typeof prompt === 'string' ? this.requireText().encode(prompt) : [...prompt], new Set(ends)];
    }
    const { chat } = this.requireText();
    if (!chat) throw new RdrrError('usage', 'the package has no chat template; use completions');
    const { messages, tools, tool_choice, reasoning_effort, chat_template_kwargs } = given.request;
    const variables = { ...(reasoning_effort != null && { reasoning_effort }), ...chat_template_kwargs };
    const calls = tools && tool_choice !== 'none' ? { tools } : {};
    const [plain, sources] = takenImages(messages);
    const images = sources.length ? await this.seen(sources) : null;
    const options = { ...calls, variables, ...(images && { images }) };
    return [chat.encode(plain, options), new Set([...ends, ...chat.ends])];
  }

  private async seen(sources: readonly ImageSource[]): Promise<PromptImages> {
    if (this.sight) return { images: await this.sight.look(sources), recipe: this.sight.recipe };
    throw new RdrrError('usage', 'the model sees no images here: the package has no vision tower that browsers run, or this adapter lacks what it needs');
  }

  /** Return the tokenizer and what is read with it; an error says that there is none. */
  requireText(): Text {
    if (this.text) return this.text;
    throw new RdrrError('usage', 'the package has no tokenizer: give token ids as the prompt');
  }
}
