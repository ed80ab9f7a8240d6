/** What kind of fault it is, for programs. */
export type ErrorCode = 'network' | 'integrity' | 'format' | 'device' | 'memory' | 'quota' | 'usage';

/** The error of all rooms: its message says where, what was expected, what was found and what to do. */
export class RdrrError extends Error {
  override readonly name = 'RdrrError';

  constructor(
    readonly code: ErrorCode,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}
