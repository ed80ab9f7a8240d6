// The calls of tools in the text between their marks, for each form of arguments.
import type { Form, Marks, Pair, Tags } from './formats.js';
import { isObject, LiteralReader, NotReadable, toJson, trimmed, type Value } from './literals.js';

export interface Call {
  readonly name: string;
  readonly arguments: string; // an object as JSON
}

/** The JSON schema of each tool's arguments. */
export type Schemas = Readonly<Record<string, Readonly<Record<string, unknown>>>>;

/** The calls in a text; none if the text has none of the forms of the format. */
export function readCalls(body: string, marks: Marks, schemas: Schemas): Call[] {
  for (const form of marks.arguments) {
    const calls = attempt(() => FORMS[form](trimmed(body), marks, schemas)) ?? [];
    if (calls.length) return calls;
  }
  return [];
}

/** What a reader returns; null if the text is none of what it reads. */
export function attempt<T>(read: () => T): T | null {
  try {
    return read();
  } catch (error) {
    if (error instanceof NotReadable) return null;
    throw error;
  }
}

/** The arguments that a text begins with, as JSON: as they are written, if that is JSON. */
export function readArguments(text: string): string {
  const reader = new LiteralReader(text);
  reader.skip();
  const begin = reader.at;
  return asJson(reader.value(), text.slice(begin, reader.at));
}

function asJson(given: Value, written: string): string {
  // An object within a string is one too.
  const [value, text] = typeof given === 'string' ? [new LiteralReader(given).value(), given] : [given, written];
  if (!isObject(value)) throw new NotReadable('arguments are an object');
  return isJsonOf(text, value) ? text : toJson(value);
}

function isJsonOf(text: string, value: Value): boolean {
  try {
    JSON.parse(text);
  } catch {
    return false;
  }
  return toJson(new LiteralReader(text).value()) === toJson(value);
}

type Read = (body: string, marks: Marks, schemas: Schemas) => Call[];

function json(body: string): Call[] {
  const reader = new LiteralReader(body);
  const calls: Call[] = [];
  while (reader.at < body.length) {
    const value = reader.value();
    calls.push(...(Array.isArray(value) ? value : [value]).map(callOf));
    while (reader.skips(';') || reader.skips(','));
  }
  return calls;
}

function callOf(given: Value): Call {
  if (!isObject(given)) throw new NotReadable('a call is an object');
  const value = isObject(given['function']) ? given['function'] : given;
  const name = ['name', 'tool_name', 'function'].map((key) => value[key]).find((text) => typeof text === 'string');
  if (!name) throw new NotReadable('a call has a name');
  const key = ['arguments', 'parameters'].find((stated) => stated in value);
  return { name, arguments: asJson((key && value[key]) ?? {}, '') };
}

function named(body: string, { separators }: Marks): Call[] {
  const brace = body.indexOf('{');
  const head = separators.reduce((text, separator) => text.replaceAll(separator, '\n'), body.slice(0, Math.max(brace, 0)));
  // The name stands behind the kind of the tool where a format states it.
  const [word] = head.split(/\s+/).filter((part) => part && part !== 'function');
  if (brace < 0 || word === undefined) throw new NotReadable('a name and an object');
  return [{ name: plainName(word), arguments: readArguments(body.slice(brace)) }];
}

/** A tool's name without the namespace and the number that some formats write. */
export const plainName = (name: string): string => name.replace(/^functions\./, '').split(':')[0]!;

function tags(body: string, { tags: marks }: Marks, schemas: Schemas): Call[] {
  const { name: around } = marks!;
  const calls: Call[] = [];
  let name: Between | null;
  for (let at = 0; (name = between(body, around, at)); ) {
    const tool = name.text.trim();
    const next = around[0] ? body.indexOf(around[0], name.end) : -1;
    // A name without a mark before it ends where the first key begins, or with the text.
    const until = next < 0 ? body.length : next;
    const properties = (schemas[tool]?.['properties'] ?? {}) as Record<string, unknown>;
    calls.push({ name: tool, arguments: toJson(tagged(body.slice(around[0] ? name.end : 0, until), marks!, properties)) });
    at = until;
    if (!around[0]) break;
  }
  return calls;
}

function tagged(text: string, { key: around, value: inside }: Tags, properties: Record<string, unknown>): Value {
  const entries: [string, Value][] = [];
  let key: Between | null;
  for (let at = 0; (key = between(text, around, at)); ) {
    const value = between(text, inside, key.end);
    if (!value) throw new NotReadable('a value does not end');
    const name = key.text.trim();
    entries.push([name, typed(value.text.replace(/^\n/, '').replace(/\n$/, ''), properties[name])]);
    at = value.end;
  }
  return Object.fromEntries(entries);
}

interface Between {
  readonly text: string;
  readonly end: number; // the position behind
}

function between(text: string, [before, behind]: Pair, at: number): Between | null {
  let begin = text.indexOf(before, at);
  if (begin < 0) return null;
  begin += before.length;
  const end = text.indexOf(behind, begin);
  if (end >= 0) return { text: text.slice(begin, end), end: end + behind.length };
  return !before && text.slice(at).trim() ? { text: text.slice(at), end: text.length } : null; // a name without arguments
}

// A value that is marked by itself: text, unless the schema says something else.
function typed(text: string, schema: unknown): Value {
  const type = isObject(schema) ? schema['type'] : undefined;
  const kinds = typeof type === 'string' ? [type] : type;
  if (!Array.isArray(kinds) || kinds.includes('string')) return text;
  const value = attempt(() => new LiteralReader(text).value());
  return value === null && !/^\s*(null|None)\s*$/.test(text) ? text : value;
}

function braces(body: string, { quote }: Marks): Call[] {
  const reader = new LiteralReader(body, quote);
  const calls: Call[] = [];
  while (reader.skips('call:')) {
    const name = reader.word('{');
    calls.push({ name, arguments: toJson(Object.fromEntries(reader.pairs('{', ':'))) });
    while (reader.skips(','));
  }
  return calls;
}

function python(body: string): Call[] {
  const reader = new LiteralReader(body);
  const calls: Call[] = [];
  const isList = reader.skips('[');
  while (reader.at < body.length && !(isList && reader.skips(']'))) {
    const name = reader.word('([{,');
    if (!/^[\p{L}\p{N}]+$/u.test(name.replace(/[._-]/g, ''))) throw new NotReadable('a call has a name');
    calls.push({ name, arguments: toJson(Object.fromEntries(reader.pairs('(', '='))) });
    while (reader.skips(',') || reader.skips(';'));
  }
  return calls;
}

const FORMS: Readonly<Record<Form, Read>> = { json, named, tags, braces, python };
