// Templates as Python's Jinja renders them.
//
// The library for templates writes some values and reads some strings as JavaScript does: True, None,
// lists, the arguments of strip(), equality, characters beyond 16 bits. What templates are seen to use
// is mended here; what the library does not know at all, it refuses by itself.
import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja';

// What is used of the library's values, nodes and interpreter; its types hide the methods.
interface Value {
  readonly type: string;
  readonly value: unknown;
  readonly builtins?: Map<string, Value>;
}

interface Node {
  readonly type: string;
  readonly value?: unknown;
  readonly object?: Node;
  readonly property?: Node;
  readonly computed?: boolean;
  readonly left?: Node;
  readonly right?: Node;
  readonly operator?: { readonly value: string };
  readonly callee?: Node;
  readonly args?: readonly Node[];
}

interface Base {
  run(program: unknown): Value;
  evaluate(node: Node, environment: Environment): Value;
  evaluateBlock(nodes: readonly Node[], environment: Environment): Value;
  evaluateArguments(nodes: readonly Node[], environment: Environment): [Value[], Map<string, Value>];
  evaluateBinaryExpression(node: Node, environment: Environment): Value;
  evaluateMemberExpression(node: Node, environment: Environment): Value;
  applyFilter(operand: Value, filter: Node, environment: Environment): Value;
}

const Library = Interpreter as unknown as new (environment: Environment) => Base;
const STATEMENTS = new Set(['Set', 'Macro', 'For', 'If', 'Break', 'Continue', 'Comment', 'CallStatement', 'FilterStatement']);

/** A template that has been read. */
export interface Parsed {
  readonly body: readonly unknown[];
}

export const read = (source: string): Parsed => parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }));

export function render(template: Parsed, variables: Readonly<Record<string, unknown>>): string {
  const environment = new Environment();
  for (const [name, value] of Object.entries({ ...GLOBALS, ...variables })) environment.set(name, value);
  return String(new PythonLike(environment).run(template).value);
}

const GLOBALS = {
  true: true, false: false, none: null, True: true, False: false, None: null,
  range: (begin: number, end?: number, step = 1): number[] => range(...(end === undefined ? [0, begin] as const : [begin, end] as const), step),
  raise_exception: (message: unknown): never => {
    throw new Error(String(message));
  },
  strftime_now: (format: string): string => strftime(new Date(), format),
};

function range(begin: number, end: number, step: number): number[] {
  if (step === 0) throw new Error('range() with a step of 0');
  return Array.from({ length: Math.max(0, Math.ceil((end - begin) / step)) }, (_, at) => begin + at * step);
}

class PythonLike extends Library {
  override evaluateBlock(nodes: readonly Node[], environment: Environment): Value {
    const texts = nodes.map((node) => {
      const value = this.evaluate(node, environment);
      return STATEMENTS.has(node.type) && value.type === 'NullValue' ? '' : shown(value);
    });
    return made(texts.join(''));
  }

  override evaluateBinaryExpression(node: Node, environment: Environment): Value {
    const operator = node.operator!.value;
    if (!['==', '!=', '~', '%', 'in', 'not in'].includes(operator)) return super.evaluateBinaryExpression(node, environment);
    const [left, right] = [this.evaluate(node.left!, environment), this.evaluate(node.right!, environment)];
    if (operator === '~') return made(shown(left) + shown(right));
    if (operator === '==' || operator === '!=') return made(equal(left, right) === (operator === '=='));
    if (operator !== '%' && isList(right)) return made((right.value as Value[]).some((item) => equal(item, left)) === (operator === 'in'));
    if (operator === '%' && [left, right].every(({ type }) => type === 'IntegerValue')) {
      const divisor = right.value as number;
      return made((((left.value as number) % divisor) + divisor) % divisor);
    }
    // Both are values by now.
    const again = { ...node, left: fixed(left), right: fixed(right) };
    return super.evaluateBinaryExpression(again, environment);
  }

  override evaluate(node: Node, environment: Environment): Value {
    return node?.type === FIXED ? (node.value as Value) : super.evaluate(node, environment); // a slice has nodes that are left out
  }

  override evaluateMemberExpression(node: Node, environment: Environment): Value {
    const object = this.evaluate(node.object!, environment);
    const property = node.property!;
    if (object.type === 'UndefinedValue') throw new Error('an attribute of an undefined value');
    const name = node.computed ? null : String(property.value);
    if (object.type === 'StringValue') {
      if (name !== null && METHODS[name]) return made((...args: unknown[]) => METHODS[name]!(object.value as string, ...args));
      if (node.computed && property.type !== 'SliceExpression') {
        const at = this.evaluate(property, environment);
        if (at.type === 'IntegerValue') return made([...(object.value as string)].at(at.value as number));
      }
    }
    // Methods of a dictionary come before its keys, as in `schema.items`.
    if (object.type === 'ObjectValue' && name !== null && object.builtins?.has(name)) return object.builtins.get(name)!;
    return super.evaluateMemberExpression({ ...node, object: fixed(object) }, environment);
  }

  override applyFilter(operand: Value, filter: Node, environment: Environment): Value {
    const name = String((filter.type === 'CallExpression' ? filter.callee! : filter).value);
    const [args, named] = filter.type === 'CallExpression' && FILTERS[name] ? this.evaluateArguments(filter.args!, environment) : [[], new Map<string, Value>()];
    const result = FILTERS[name]?.(operand, args, named);
    return result === undefined ? super.applyFilter(operand, filter, environment) : made(result);
  }
}

// A node whose value is known.
const FIXED = 'Fixed';
const fixed = (value: Value): Node => ({ type: FIXED, value });

// A value of the library.
const made = (value: unknown): Value => new Environment().set('value', value) as unknown as Value;

const isList = ({ type }: Value): boolean => type === 'ArrayValue' || type === 'TupleValue';
const isNumber = ({ type }: Value): boolean => ['IntegerValue', 'FloatValue', 'BooleanValue'].includes(type);

function equal(a: Value, b: Value): boolean {
  if (isNumber(a) && isNumber(b)) return Number(a.value) === Number(b.value);
  if (a.type !== b.type) return false;
  if (isList(a)) {
    const [these, those] = [a.value as Value[], b.value as Value[]];
    return these.length === those.length && these.every((item, at) => equal(item, those[at]!));
  }
  if (!(a.value instanceof Map)) return a.value === b.value;
  const [these, those] = [a.value as Map<string, Value>, b.value as Map<string, Value>];
  return these.size === those.size && [...these].every(([key, item]) => those.has(key) && equal(item, those.get(key)!));
}

/** A value as Python prints it. */
function shown(value: Value): string {
  return value.type === 'StringValue' ? String(value.value) : value.type === 'UndefinedValue' ? '' : literal(value);
}

function literal({ type, value }: Value): string {
  switch (type) {
    case 'StringValue': return quoted(String(value));
    case 'BooleanValue': return value ? 'True' : 'False';
    case 'NullValue': return 'None';
    case 'IntegerValue': return String(value);
    case 'FloatValue': return decimal(value as number);
    case 'ArrayValue': return `[${(value as Value[]).map(literal).join(', ')}]`;
    case 'TupleValue': return `(${(value as Value[]).map(literal).join(', ')}${(value as Value[]).length === 1 ? ',' : ''})`;
    case 'ObjectValue': return `{${[...(value as Map<string, Value>)].map(([key, item]) => `${quoted(key)}: ${literal(item)}`).join(', ')}}`;
    default: throw new Error(`a template must not write ${type}`);
  }
}

const decimal = (value: number): string => (Number.isInteger(value) && Math.abs(value) < 1e16 ? value.toFixed(1) : String(value).replace(/e([+-])(\d)$/, 'e$10$2'));

const ESCAPES: Readonly<Record<string, string>> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const written = text.replace(/[\\\n\r\t]/g, (character) => ESCAPES[character]!);
  return quote + (quote === "'" ? written.replaceAll("'", "\\'") : written) + quote;
}

function json(value: Value, separators: readonly [string, string], indent: number, depth = 0): string {
  const [comma, colon] = separators;
  const inner = (items: readonly string[], [open, close]: string): string => {
    if (!items.length) return `${open}${close}`;
    const line = (level: number): string => (indent ? `\n${' '.repeat(indent * level)}` : '');
    return `${open}${line(depth + 1)}${items.join(comma + line(depth + 1))}${line(depth)}${close}`;
  };
  if (isList(value)) return inner((value.value as Value[]).map((item) => json(item, separators, indent, depth + 1)), '[]');
  if (value.value instanceof Map) {
    const entries = [...(value.value as Map<string, Value>)];
    return inner(entries.map(([key, item]) => JSON.stringify(key) + colon + json(item, separators, indent, depth + 1)), '{}');
  }
  if (value.type === 'NullValue') return 'null';
  if (value.type === 'FloatValue') return decimal(value.value as number);
  if (value.type === 'UndefinedValue') throw new Error('an undefined value has no JSON');
  return JSON.stringify(value.value);
}

// White space as Python has it.
const SPACE = /[\s\u001c-\u001f\u0085]/u;
const isSpace = (character: string): boolean => character !== '\ufeff' && SPACE.test(character);

function stripped(text: string, characters: unknown, left: boolean, right: boolean): string {
  const set = typeof characters === 'string' ? new Set(characters) : null;
  const goes = (character: string): boolean => (set ? set.has(character) : isSpace(character));
  const all = [...text];
  let [begin, end] = [0, all.length];
  while (left && begin < end && goes(all[begin]!)) begin += 1;
  while (right && begin < end && goes(all[end - 1]!)) end -= 1;
  return all.slice(begin, end).join('');
}

const capital = (text: string): string => text.slice(0, 1).toUpperCase() + text.slice(1).toLowerCase();

const METHODS: Readonly<Record<string, (text: string, ...args: unknown[]) => unknown>> = {
  strip: (text, characters) => stripped(text, characters, true, true),
  lstrip: (text, characters) => stripped(text, characters, true, false),
  rstrip: (text, characters) => stripped(text, characters, false, true),
  capitalize: capital,
  title: (text) => text.replace(/\p{L}+/gu, capital),
  find: (text, part) => [...text.slice(0, Math.max(0, text.indexOf(String(part))))].length - (text.includes(String(part)) ? 0 : 1),
  count: (text, part) => text.split(String(part)).length - 1,
  isdigit: (text) => /^\p{Nd}+$/u.test(text),
  join: (text, items) => (items as Value[]).map((item) => String(item.value)).join(text),
  splitlines: (text) => text.replace(/(\r\n|\n|\r)$/, '').split(/\r\n|\n|\r/),
  removeprefix: (text, prefix) => (text.startsWith(String(prefix)) ? text.slice(String(prefix).length) : text),
  removesuffix: (text, suffix) => (suffix && text.endsWith(String(suffix)) ? text.slice(0, -String(suffix).length) : text),
};

// Filters that the library has otherwise; undefined leaves the value to it.
type Filter = (operand: Value, args: readonly Value[], named: ReadonlyMap<string, Value>) => unknown;

const ofText = (filter: (text: string) => unknown): Filter => ({ type, value }) => (type === 'StringValue' ? filter(String(value)) : undefined);

const FILTERS: Readonly<Record<string, Filter>> = {
  trim: (operand, [characters]) => ofText((text) => stripped(text, characters?.value, true, true))(operand, [], new Map()),
  length: ofText((text) => [...text].length),
  count: ofText((text) => [...text].length),
  capitalize: ofText(capital),
  title: ofText((text) => text.split(/([-\s({[<]+)/).map(capital).join('')),
  string: (operand) => shown(operand),
  int: ({ type, value }) => (type === 'FloatValue' ? Math.trunc(value as number) : undefined),
  join: (operand, [separator]) => (isList(operand) && (!separator || separator.type === 'StringValue')
    ? (operand.value as Value[]).map(shown).join(String(separator?.value ?? '')) : undefined),
  tojson: (operand, args, named) => {
    if (args.length || named.get('sort_keys')?.value || named.get('ensure_ascii')?.value) {
      throw new Error('tojson with sort_keys or ensure_ascii is not read in browsers');
    }
    const indent = Number(named.get('indent')?.value ?? 0);
    const stated = named.get('separators')?.value as Value[] | undefined;
    const [comma, colon] = stated?.map(({ value }) => String(value)) ?? [indent ? ',' : ', ', ': '];
    return json(operand, [comma!, colon!], indent);
  },
};

const NAMES = { month: 'long', weekday: 'long' } as const;

function strftime(date: Date, format: string): string {
  const name = (key: keyof typeof NAMES, style: 'long' | 'short'): string => new Intl.DateTimeFormat('en-US', { [key]: style }).format(date);
  const two = (value: number): string => String(value).padStart(2, '0');
  const fields: Record<string, string> = {
    Y: String(date.getFullYear()), y: two(date.getFullYear() % 100), m: two(date.getMonth() + 1), d: two(date.getDate()),
    B: name('month', 'long'), b: name('month', 'short'), A: name('weekday', 'long'), a: name('weekday', 'short'),
    H: two(date.getHours()), I: two(date.getHours() % 12 || 12), M: two(date.getMinutes()), S: two(date.getSeconds()),
    p: date.getHours() < 12 ? 'AM' : 'PM', '%': '%',
  };
  return format.replace(/%(-?)(.)/g, (_, plain: string, key: string) => {
    const field = fields[key];
    if (field === undefined) throw new Error(`strftime_now with %${key} is not read in browsers`);
    return plain ? field.replace(/^0(?=.)/, '') : field;
  });
}
