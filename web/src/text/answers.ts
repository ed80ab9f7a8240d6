// The parts of an answer: content, reasoning and calls of tools.
//
// One machine reads an answer in pieces or as a whole, as runtime/rdrr_runtime/text/answers.py does. Text
// that may be the beginning of a mark waits until it is certain, the text of a call until the call is
// complete. What is no call although it is marked as one stays content, as it was written.
import { attempt, plainName, readArguments, readCalls, type Call, type Schemas } from './bodies.js';
import type { AnswerFormat, Marks } from './formats.js';
import { withoutEnd } from './literals.js';
import type { ToolCallDelta } from './messages.js';
import { overlap } from './stop.js';

export type Delta = { readonly content: string } | { readonly reasoning_content: string } | { readonly tool_calls: readonly ToolCallDelta[] };

interface State {
  readonly name: 'content' | 'reasoning' | 'call' | 'head'; // the text of a call and a head is kept until its end
  readonly ends: readonly string[];
  readonly marks?: Marks; // of a call
  readonly opening?: string; // the mark that began it, which stays text if there is no call
  readonly tool?: string; // where it stands before the arguments
}

export interface AnswerOptions {
  readonly schemas?: Schemas | null; // of the tools; null where none may be called
  readonly prompt?: string; // its end may begin reasoning or a channel
}

export class Answer {
  private form: AnswerFormat;
  private schemas: Schemas;
  private calls: Marks | null;
  private mayCall: boolean;
  private outside: State;
  private state: State;
  private held = '';
  private kept = ''; // of a call or a head, before what is held: it has no mark
  private space = ''; // white space that is left out if another part follows
  private before = ''; // what was left out before a call, in case that it is none
  private trims: boolean;
  private mayBeBare = true;
  private deltas: Delta[] = [];
  private callCount = 0;

  constructor(form: AnswerFormat, { schemas = null, prompt = '' }: AnswerOptions = {}) {
    this.form = form;
    this.schemas = schemas ?? {};
    this.mayCall = schemas !== null;
    this.calls = this.mayCall ? form.calls : null;
    this.outside = { name: 'content', ends: this.outerMarks() };
    this.state = this.first(withoutEnd(prompt));
    this.trims = this.state.name !== 'content';
  }

  /** Whether the answer has called a tool. */
  get hasCalls(): boolean {
    return this.callCount > 0;
  }

  /** The parts that are certain with a text. */
  push(text: string): Delta[] {
    this.held += text;
    while (this.step());
    return this.deltas.splice(0);
  }

  /** The parts that the end of the answer leaves. */
  end(): Delta[] {
    const [state, text] = [this.state, this.kept + this.held];
    this.held = this.kept = '';
    if (state.name === 'call') this.call(state, text, '');
    else if (state.name === 'head') this.emit('content', (state.opening ?? '') + text);
    else this.emit(state.name, text);
    if (this.state.name === 'content' && this.space && !this.trims) this.deltas.push({ content: this.space });
    this.space = '';
    return this.deltas.splice(0);
  }

  private outerMarks(): string[] {
    const rows = [this.form.reasoning, this.form.channels, this.calls].filter((row) => row !== null);
    // An end without its beginning is no text, such as that of a channel that the prompt began.
    return [...rows.flatMap(({ begin, hidden }) => [...begin, ...hidden]), ...rows.flatMap(({ message, end }) => (message ? end : []))];
  }

  private first(prompt: string): State {
    const { channels, reasoning } = this.form;
    if (channels && prompt.endsWith(channels.prompt)) return { name: 'head', ends: [channels.message] };
    if (reasoning?.begin.some((mark) => prompt.endsWith(mark))) return { name: 'reasoning', ends: reasoning.end };
    return this.outside;
  }

  // Handles the text up to the next mark; false if more text must come first.
  private step(): boolean {
    const state = this.state;
    if (this.mayBeBare && state.name === 'content' && this.calls) {
      const bare = this.isBare(this.calls);
      if (bare === null) return false;
      this.mayBeBare = false;
      if (bare) {
        this.enter({ name: 'call', ends: this.calls.begin, marks: this.calls });
        return true;
      }
    }
    const { at, mark } = earliest(this.held, state.ends);
    if (mark) {
      const text = this.kept + this.held.slice(0, at);
      this.held = this.held.slice(at + mark.length);
      this.kept = '';
      this.leave(state, text, mark);
      return true;
    }
    const certain = this.held.length - overlap(this.held, state.ends);
    const text = this.held.slice(0, certain);
    if (state.name === 'call' || state.name === 'head') this.kept += text;
    else this.emit(state.name, text);
    this.held = this.held.slice(certain);
    return false;
  }

  // Ends a state at a mark, and enters the one that follows.
  private leave(state: State, text: string, mark: string): void {
    if (state.name === 'head') {
      this.enter(this.channel(text, state.opening ?? ''));
      return;
    }
    if (state.name === 'call') this.call(state, text, mark);
    else this.emit(state.name, text);
    const goesOn = state.name === 'call' && !this.trims; // it was text
    const space = this.space;
    this.enter(this.after(mark));
    if (goesOn && this.state === this.outside) {
      this.space = space;
      this.trims = false;
    }
  }

  // The state that a mark begins.
  private after(mark: string): State {
    const { channels, reasoning } = this.form;
    const calls = this.calls;
    if (channels?.begin.includes(mark)) return { name: 'head', ends: [channels.message], opening: mark };
    if (calls?.begin.includes(mark)) return { name: 'call', ends: calls.end.length ? calls.end : calls.begin, marks: calls, opening: mark };
    if (reasoning?.begin.includes(mark)) return { name: 'reasoning', ends: reasoning.end };
    return this.outside;
  }

  private enter(state: State): void {
    this.state = state;
    this.before = this.trims ? '' : this.space;
    this.space = '';
    this.trims = true;
    this.mayBeBare = state === this.outside;
  }

  // The state that the head of a channel begins.
  private channel(head: string, opening: string): State {
    const channels = this.form.channels!;
    const ends = [...channels.end, ...channels.begin];
    const at = head.indexOf(channels.recipient);
    const recipient = at < 0 ? '' : head.slice(at + channels.recipient.length);
    const [name] = recipient.split('<')[0]!.split(/\s+/).filter(Boolean);
    if (this.mayCall && name !== undefined) {
      return { name: 'call', ends, marks: channels, opening: opening + head + channels.message, tool: plainName(name) };
    }
    return { name: channels.reasoning.some((word) => head.includes(word)) ? 'reasoning' : 'content', ends };
  }

  // Whether the answer begins with a call without a mark; null if that is open.
  private isBare({ bare }: Marks): boolean | null {
    const begun = this.held.replace(/\s+/g, '');
    if (bare.some((text) => begun.startsWith(text))) return true;
    return bare.some((text) => text.startsWith(begun)) ? null : false;
  }

  // Emits the calls in a text, or the text if it has none.
  private call(state: State, text: string, mark: string): void {
    const calls = this.read(state, text);
    const isMarked = Boolean(state.opening || state.tool);
    if (calls.length && (isMarked || calls.every(({ name }) => Object.hasOwn(this.schemas, name)))) {
      for (const call of calls) this.deltas.push({ tool_calls: [{ index: this.callCount++, id: callId(), type: 'function', function: call }] });
      this.trims = true;
      return;
    }
    this.trims = false;
    this.emit('content', this.before + (state.opening ?? '') + text + (state.marks!.end.includes(mark) ? mark : ''));
  }

  private read({ tool, marks }: State, text: string): Call[] {
    if (!tool) return readCalls(text, marks!, this.schemas);
    const given = attempt(() => readArguments(text));
    return given === null ? [] : [{ name: tool, arguments: given }];
  }

  // Adds text to the parts, without white space at the borders of parts.
  private emit(kind: 'content' | 'reasoning', given: string): void {
    const text = this.trims ? (this.space + given).replace(/^[ \t\r\n]+/, '') : this.space + given;
    const shown = withoutEnd(text);
    this.space = text.slice(shown.length);
    if (!shown) return;
    this.trims = false;
    this.deltas.push(kind === 'content' ? { content: shown } : { reasoning_content: shown });
  }
}

// The first mark in a text, the longer of two; an empty one if there is none.
function earliest(text: string, marks: readonly string[]): { at: number; mark: string } {
  const hits = marks.map((mark) => ({ at: text.indexOf(mark), mark })).filter(({ at }) => at >= 0);
  hits.sort((a, b) => a.at - b.at || b.mark.length - a.mark.length);
  return hits[0] ?? { at: 0, mark: '' };
}

const callId = (): string => `call_${crypto.randomUUID().replaceAll('-', '')}`;
