// A tokenizer.json as the library reads it right, or a refusal.
//
// The library differs from Python's in places. What can be said in other words of the same file is
// rewritten here; what cannot is refused with its name, because ids that differ would go unnoticed.
import { parseJson, RdrrError } from '../errors.js';
import { refused, type Description } from './steps.js';

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
  readonly normalized: boolean;
  readonly single_word?: boolean;
  readonly lstrip?: boolean;
  readonly rstrip?: boolean;
}

export interface TokenizerFile {
  readonly model: Description;
  readonly normalizer: Description | null;
  readonly pre_tokenizer: Description | null;
  readonly post_processor: Description | null;
  readonly decoder: Description | null;
  readonly added_tokens: readonly AddedToken[];
}

export function readFile(text: string): TokenizerFile {
  const file = parseJson<Partial<TokenizerFile> | null>(text, 'tokenizer.json');
  if (typeof file?.model !== 'object') throw new RdrrError('format', 'tokenizer.json has no model');
  const { model, normalizer = null, pre_tokenizer = null, post_processor = null, decoder = null, added_tokens = [] } = file;
  // Older files leave the model's type out.
  return { model: { ...model, type: model.type ?? typeOf(model) }, normalizer, pre_tokenizer, post_processor, decoder, added_tokens };
}

function typeOf(model: Description): string {
  if (Array.isArray(model['vocab'])) return 'Unigram';
  return model['merges'] ? 'BPE' : 'continuing_subword_prefix' in model ? 'WordPiece' : 'WordLevel';
}

/** The file for the library. */
export function prepared(file: TokenizerFile): TokenizerFile {
  checkModel(file.model);
  const normalizer = file.normalizer && normalizerOf(file.normalizer);
  const pre = file.pre_tokenizer && preTokenizerOf(file.pre_tokenizer);
  checkPostProcessor(file.post_processor);
  // Added tokens are found by added.ts: the library takes text that looks like some for them.
  const model = { continuing_subword_prefix: file.model.type === 'WordPiece' ? '##' : null, ...file.model };
  return { ...file, model, normalizer, pre_tokenizer: pre, added_tokens: [] };
}

const MODELS = ['BPE', 'Unigram', 'WordLevel', 'WordPiece'];

function checkModel(model: Description): void {
  if (!MODELS.includes(model.type)) throw refused(`a model of type ${model.type}`);
  const isWordPiece = model.type === 'WordPiece';
  for (const field of ['dropout', 'continuing_subword_prefix', 'end_of_word_suffix']) {
    if (model[field] && !(isWordPiece && field === 'continuing_subword_prefix')) throw refused(`a model with ${field}`);
  }
}

const NORMALIZERS: Readonly<Record<string, (step: Description) => Description>> = {
  Sequence: (step) => normalizers(...(step['normalizers'] as Description[]).map(normalizerOf)),
  ...Object.fromEntries(['NFC', 'NFD', 'NFKC', 'NFKD', 'Precompiled', 'StripAccents'].map((type) => [type, (step: Description) => step])),
  Replace: (step) => ({ ...step, pattern: patternOf(step), content: contentOf(step['content']) }),
  // Nothing is put before an empty text.
  Prepend: ({ prepend }) => replaced('\\A(?=[\\s\\S])', contentOf(prepend)),
  BertNormalizer: bert,
  // Python's library knows no special sigma for the end of a word.
  Lowercase: (step) => normalizers(replaced('Σ', 'σ'), step),
  // ^ and $ are the ends of lines, as in the patterns of Python's library.
  Strip: ({ strip_left: left = true, strip_right: right = true }) =>
    normalizers(...(left ? [replaced('\\A\\p{White_Space}+', '')] : []), ...(right ? [replaced('\\p{White_Space}+\\z', '')] : [])),
};

function normalizerOf(step: Description): Description {
  const rewrite = NORMALIZERS[step.type];
  if (!rewrite) throw refused(`the normalizer ${step.type}`);
  return rewrite(step);
}

const normalizers = (...steps: Description[]): Description => ({ type: 'Sequence', normalizers: steps });
// The library gives the content to a function that reads $ as a reference.
const contentOf = (content: unknown): string => String(content).replaceAll('$', '$$$$');
const replaced = (Regex: string, content: string): Description => ({ type: 'Replace', pattern: { Regex }, content });

const IDEOGRAPHS =
  '[\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{2a6df}\\u{2a700}-\\u{2b81f}\\u{2b920}-\\u{2ceaf}\\u{2f800}-\\u{2fa1f}]';

function bert({ clean_text: clean, handle_chinese_chars: chinese, strip_accents: strip, lowercase = true }: Description): Description {
  const steps: Description[] = [];
  if (clean !== false) steps.push(replaced('[\\0\\ufffd]|(?![\\t\\n\\r])[\\p{Cc}\\p{Cf}\\p{Co}]', ''), replaced('\\p{White_Space}', ' '));
  if (chinese !== false) steps.push(replaced(IDEOGRAPHS, ' $& '));
  if (strip ?? lowercase) steps.push({ type: 'NFD' }, replaced('\\p{Mn}', ''));
  if (lowercase) steps.push(normalizerOf({ type: 'Lowercase' }));
  return normalizers(...steps);
}

// The pattern of GPT-2, which the library writes with its own idea of white space.
const WORDS = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// The characters of words for Python's library itself; patterns in files take fractions and the like for such characters too.
export const WORD = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}';

const PUNCTUATION = '[\\p{P}!-/:-@\\[-`{-~]';

const PRE_TOKENIZERS: Readonly<Record<string, (step: Description) => Description>> = {
  Sequence: (step) => {
    const steps = step['pretokenizers'] as Description[];
    // The library takes every word for the first.
    if (JSON.stringify(steps.slice(1)).includes('"prepend_scheme":"first"')) throw refused('the pre-tokenizer Metaspace (first) behind another');
    return sequence(...steps.map(preTokenizerOf));
  },
  ByteLevel: byteLevel,
  Metaspace: metaspace,
  Split: splitOf,
  Digits: ({ individual_digits: single }) => (single ? isolated('\\p{N}') : matched('\\p{N}+|\\P{N}+')),
  Whitespace: () => matched(`[${WORD}]+|[^${WORD}\\p{White_Space}]+`),
  WhitespaceSplit: () => matched('\\S+'),
  Punctuation: ({ behavior = 'Isolated' }) => {
    if (behavior !== 'Isolated') throw refused(`the pre-tokenizer Punctuation (${String(behavior)})`);
    return isolated(PUNCTUATION);
  },
  BertPreTokenizer: () => sequence(matched('\\P{White_Space}+'), isolated(PUNCTUATION)),
};

function preTokenizerOf(step: Description): Description {
  const rewrite = PRE_TOKENIZERS[step.type];
  if (!rewrite) throw refused(`the pre-tokenizer ${step.type}`);
  return rewrite(step);
}

const sequence = (...pretokenizers: Description[]): Description => ({ type: 'Sequence', pretokenizers });
const matched = (Regex: string): Description => ({ type: 'Split', pattern: { Regex }, behavior: 'Removed', invert: true });
const isolated = (Regex: string): Description => ({ type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false });

function byteLevel(step: Description): Description {
  if (step['use_regex'] === false) return step;
  // The space of the prefix is added to the whole text, before it is split.
  if (step['add_prefix_space']) throw refused('the pre-tokenizer ByteLevel with add_prefix_space');
  return sequence(isolated(WORDS), { ...step, use_regex: false });
}

function metaspace({ replacement = '▁', prepend_scheme: scheme, add_prefix_space: prefix, split }: Description): Description {
  const prepend = scheme ?? (prefix === false ? 'never' : 'always');
  const whole: Description = { type: 'Metaspace', replacement, prepend_scheme: prepend };
  const mark = codeOf(String(replacement));
  return split === false ? whole : sequence(whole, matched(`${mark}[^${mark}]*|[^${mark}]+`));
}

function splitOf(step: Description): Description {
  const pattern = patternOf(step);
  const { String: text } = pattern;
  const behavior = String(step['behavior']);
  const invert = step['invert'] === true;
  if (behavior === 'Isolated' && !invert) return { ...step, pattern };
  if (behavior === 'Removed') return { ...step, pattern: { Regex: ungrouped(pattern.Regex ?? Array.from(text!, codeOf).join('')) } };
  if (behavior === 'MergedWithPrevious' && !invert && text !== undefined && [...text].length === 1) {
    const mark = codeOf(text);
    return matched(`[^${mark}]*${mark}|[^${mark}]+`);
  }
  throw refused(`the pre-tokenizer Split (${behavior}${invert ? ', inverted' : ''})`);
}

// The library keeps what groups hold; escapes and classes have none.
const ungrouped = (regex: string): string => regex.replace(/\\.|\[(?:\\.|[^\]\\])*\]|\((?!\?)/gs, (part) => (part === '(' ? '(?:' : part));

// A character as patterns may have it anywhere.
const codeOf = (character: string): string => `\\u{${character.codePointAt(0)!.toString(16)}}`;

type Pattern = { readonly Regex?: string; readonly String?: string };

function patternOf(step: Description): Pattern {
  const pattern = step['pattern'] as Pattern;
  return pattern.Regex === undefined ? pattern : { Regex: folded(pattern.Regex) };
}

const FOLDED: Readonly<Record<string, string>> = { s: 'sS\u017f', k: 'kK\u212a' };
const IGNORING_CASE = /\(\?i:((?:[^()[\]\\]|\[[a-z]+\])*)\)/gi;
// What Python's library compares with other letters than the two cases of each, such as ss with a sharp s.
const FOLDED_OTHERWISE = /[^\0-\x7f]|ss|st|f[fil]/i;

// Writes out what (?i:...) accepts beyond ASCII: the long s and the sign of the kelvin.
function folded(regex: string): string {
  const written = regex.replace(IGNORING_CASE, (group, body: string) => {
    if (FOLDED_OTHERWISE.test(body)) return group;
    const classes = body.replace(/\[?([a-z]+)\]?/gi, (part, letters: string) => {
      const each = Array.from(letters.toLowerCase(), (letter) => FOLDED[letter] ?? letter + letter.toUpperCase());
      return part === letters ? each.map((cases) => `[${cases}]`).join('') : `[${each.join('')}]`;
    });
    return `(?:${classes})`;
  });
  if (/\(\?[a-z]*i/.test(written)) throw refused('a pattern that ignores case');
  return written;
}

const POST_PROCESSORS = ['TemplateProcessing', 'ByteLevel', 'RobertaProcessing', 'BertProcessing'];

function checkPostProcessor(step: Description | null): void {
  const steps = step?.type === 'Sequence' ? (step['processors'] as Description[]) : step ? [step] : [];
  for (const { type } of steps) if (!POST_PROCESSORS.includes(type)) throw refused(`the post-processor ${type}`);
}
