import type { Usage } from './requests.js';

/** Counts the tokens of a request, and measures its speed. */
export class Timing {
  private cached = 0;
  private made = 0;
  private prefilled = 0; // tokens and seconds of prompts
  private waited = 0;
  private decoded = 0; // tokens behind the first ones, and seconds
  private seconds = 0;
  private started = 0;
  private first = 0;
  private isFirst = true;

  constructor(private readonly prompt: number) {}

  /** A text begins. */
  start(): void {
    this.started = performance.now();
    this.isFirst = true;
  }

  /** Its first token was chosen; so many tokens of its prompt were in the cache. */
  begun(reused: number): void {
    if (!this.made) this.cached = reused;
    this.first = performance.now();
    this.prefilled += this.prompt - reused;
    this.waited += (this.first - this.started) / 1000;
  }

  count(tokens: number): void {
    this.made += tokens;
    this.decoded += this.isFirst ? tokens - 1 : tokens;
    this.isFirst = false;
  }

  end(): void {
    if (!this.isFirst) this.seconds += (performance.now() - this.first) / 1000;
  }

  get usage(): Usage {
    return {
      prompt_tokens: this.prompt,
      completion_tokens: this.made,
      total_tokens: this.prompt + this.made,
      prompt_tokens_details: { cached_tokens: this.cached },
      speed: { prefill: rate(this.prefilled, this.waited), decode: rate(this.decoded, this.seconds) },
    };
  }
}

function rate(tokens: number, seconds: number): number {
  return seconds > 0 ? tokens / seconds : 0;
}
