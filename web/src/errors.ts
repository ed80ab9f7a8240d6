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

/** Return the value of a JSON file, which the caller has not checked yet. */
export function parseJson<Value>(text: string, where: string): Value {
  try {
    return JSON.parse(text) as Value;
  } catch (error) {
    throw new RdrrError('format', `${where}: not JSON`, { cause: error });
  }
}

/** Return a part of a file that another part names; an error says that there is none. */
export function partOf<Value>(parts: readonly Value[] | Readonly<Record<string, Value>>, key: number | string, kind: string): Value {
  const part = (parts as Readonly<Record<string, Value>> | undefined)?.[key];
  if (part === undefined) throw new RdrrError('format', `the program has no ${kind} ${key}`);
  return part;
}
