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

/** Return a JSON file that `rdrr web` writes, of the format and version that this runtime reads; `what` it is called in errors. */
export function parseVersioned<File extends { format?: string; version?: number }>(text: string, where: string, what: string, format: string, version: number): File {
  const file = parseJson<File>(text, where);
  if (file.format !== format) throw new RdrrError('format', `${where}: not ${what}, which \`rdrr web\` writes`);
  if (file.version === version) return file;
  const hint = 'run `rdrr web` again with the version of rdrr that this runtime is from';
  throw new RdrrError('format', `${where}: ${what} of version ${file.version}, expected ${version}; ${hint}`);
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
