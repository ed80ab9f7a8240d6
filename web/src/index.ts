import { isCached } from './engine/survey.js';
import { cache as files } from './load/cache.js';

export { RdrrError, type ErrorCode } from './errors.js';
export { support, type Unsupported } from './device/device.js';
export { Engine, type ModelFacts } from './engine/engine.js';
export type { LoadOptions, Progress } from './engine/open.js';
export type { Session } from './engine/session.js';
export type { Survey } from './engine/survey.js';
export type { ChatRequest, CompletionRequest, EmbeddingRequest, TextRequest, Usage } from './engine/requests.js';
export type { CallOptions, ChatChunk, ChatCompletion, ChatMessageAnswer, Completion, CompletionChunk, EmbeddingList } from './engine/answers.js';
export type { ChatMessage, Tool, ToolCall } from './text/index.js';
export { connect, type RemoteEngine } from './worker/client.js';
export { serve, type Port } from './worker/server.js';

/** The packages that this browser keeps, by the URL of their index. */
export const cache = { ...files, has: isCached };
