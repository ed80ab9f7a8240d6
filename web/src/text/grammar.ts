import { RdrrError } from '../errors.js';
import type { Constraint } from '../sequence/sequence.js';

/** What is used of a grammar library: `@mlc-ai/web-xgrammar`, or another with its interface. */
export interface GrammarLibrary {
  TokenizerInfo: { createTokenizerInfo(vocabulary: string[], kind: string, prepends: boolean, size: number, ends: number[]): Promise<object> };
  GrammarCompiler: { createGrammarCompiler(info: never): Promise<Compiler> };
  GrammarMatcher: { createGrammarMatcher(grammar: never): Promise<Matcher> };
}

interface Compiler {
  compileJSONSchema(schema: string, anyWhitespace: boolean, indent: number, separators: [string, string], strict: boolean): Promise<object>;
}

interface Matcher {
  acceptToken(id: number): boolean;
  getNextTokenBitmask(): Promise<Int32Array>;
  dispose(): void;
}

/** Where a grammar library is: a function that returns it, or the URL of its script, which is loaded when a request first needs it. */
export type GrammarSource = string | (() => Promise<GrammarLibrary>);

/** The constraint of a schema; whoever has it closes it. */
export interface SchemaConstraint extends Constraint {
  close(): void;
}

/** What a grammar library must know of a tokenizer. */
export interface Vocabulary {
  /** Tokens as the file has them, by id; special tokens are empty, since no grammar has them. */
  tokens: string[];
  kind: 'byte_level' | 'byte_fallback' | 'raw';
}

const ONE_LINE = -1;
const SEPARATORS: [string, string] = [', ', ': ']; // as in Python

/** Compiles JSON schemas for a tokenizer. */
export class Grammars {
  static async open(source: GrammarSource, { tokens, kind }: Vocabulary, size: number, ends: readonly number[]): Promise<Grammars> {
    const library = await loaded(source);
    const info = await library.TokenizerInfo.createTokenizerInfo(tokens.slice(0, size), kind, false, size, [...ends]);
    return new Grammars(library, await library.GrammarCompiler.createGrammarCompiler(info as never));
  }

  private constructor(
    private readonly library: GrammarLibrary,
    private readonly compiler: Compiler,
  ) {}

  /** Return the constraint of a schema for a new text. */
  async constraint(schema: unknown): Promise<SchemaConstraint> {
    let matcher: Matcher;
    try {
      const grammar = await this.compiler.compileJSONSchema(JSON.stringify(schema), false, ONE_LINE, SEPARATORS, false);
      matcher = await this.library.GrammarMatcher.createGrammarMatcher(grammar as never);
    } catch (error) {
      throw new RdrrError('usage', `response_format: the grammar library does not read the schema: ${String(error)}`, { cause: error });
    }
    return {
      mask: async () => Uint32Array.from(await matcher.getNextTokenBitmask()),
      accept: (id) => {
        if (!matcher.acceptToken(id)) throw new RdrrError('device', `the token ${id} was chosen, which the grammar does not allow`);
      },
      close: () => matcher.dispose(),
    };
  }
}

async function loaded(source: GrammarSource): Promise<GrammarLibrary> {
  if (typeof source !== 'string') return source();
  let module: Partial<GrammarLibrary> & { default?: GrammarLibrary };
  try {
    module = (await import(new URL(source, globalThis.location?.href).href)) as typeof module;
  } catch (error) {
    throw new RdrrError('network', `${source}: the grammar library cannot be loaded`, { cause: error });
  }
  // The published script is no module: it leaves a global name.
  const { xgrammar } = globalThis as { xgrammar?: GrammarLibrary };
  const library = module.GrammarCompiler ? (module as GrammarLibrary) : (module.default ?? xgrammar);
  if (library?.GrammarCompiler) return library;
  throw new RdrrError('usage', `${source}: expected the script of @mlc-ai/web-xgrammar`);
}
