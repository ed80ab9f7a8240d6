// The messages of a conversation, as OpenAI's API names their parts.

/** A part of a message: `text`, or an image, of which the engine takes a URL or what the browser decodes. */
export interface ContentPart {
  readonly type: string;
  readonly text?: string;
  readonly image_url?: string | { readonly url: string };
  readonly image?: unknown;
}

export interface ChatMessage {
  readonly role: string;
  readonly content?: string | readonly ContentPart[] | null;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
  readonly name?: string;
  readonly reasoning_content?: string | null;
  // Of the assistant: the ids that were generated, so that a next prompt has them as they were.
  readonly token_ids?: readonly number[];
  readonly [key: string]: unknown;
}

export interface Tool {
  readonly type: 'function';
  readonly function: {
    readonly name: string;
    readonly description?: string;
    readonly parameters?: Readonly<Record<string, unknown>>;
  };
}

export interface ToolCall {
  readonly id: string;
  readonly type: 'function';
  readonly function: { readonly name: string; readonly arguments: string };
}

export interface ToolCallDelta {
  readonly index: number;
  readonly id?: string;
  readonly type?: 'function';
  readonly function: { readonly name?: string; readonly arguments?: string };
}
