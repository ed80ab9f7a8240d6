// The messages of a conversation on the page.
import { button, element } from './dom.js';
import { picture } from './pictures.js';
import type { Turn } from './store.js';

export interface Actions {
  regenerate(): void;
  edit(at: number): void;
  copy(text: string): void;
}

const NAMES = { user: 'You', assistant: 'Model' } as const;

/** A message that can change while it is written. */
export class MessageView {
  readonly node: HTMLElement;
  #content = element('div', { className: 'content' });
  #thoughts = element('details', { className: 'thoughts', hidden: true });
  #thoughtText = element('div', { className: 'content' });
  #note = element('p', { className: 'note', hidden: true });
  #stats = element('span', { className: 'stats' });
  #shown = '';

  constructor(turn: Turn, at: number, isLast: boolean, actions: Actions) {
    this.#thoughts.append(element('summary', {}, 'Thoughts'), this.#thoughtText);
    const buttons = element('div', { className: 'actions' });
    // Pages that are not loaded securely have no clipboard.
    if (navigator.clipboard) buttons.append(button('Copy', () => actions.copy(turn.content), { ariaLabel: `Copy message ${at + 1}` }));
    if (turn.role === 'user') buttons.append(button('Edit', () => actions.edit(at), { ariaLabel: `Edit message ${at + 1}` }));
    else if (isLast) buttons.append(button('Regenerate', () => actions.regenerate()));
    buttons.append(this.#stats);
    this.node = element('article', { className: `message ${turn.role}`, ariaLabel: NAMES[turn.role] },
      element('h2', { className: 'role' }, NAMES[turn.role]), ...pictures(turn), this.#thoughts, this.#content, this.#note, buttons);
    this.update(turn);
  }

  update(turn: Turn): void {
    if (turn.content !== this.#shown) {
      this.#content.replaceChildren(...blocks(turn.content));
      this.#shown = turn.content;
    }
    this.#thoughts.hidden = !turn.reasoning;
    this.#thoughtText.textContent = turn.reasoning ?? '';
    this.#note.hidden = !turn.note;
    this.#note.textContent = turn.note ?? '';
    this.#stats.textContent = turn.stats ?? '';
  }
}

function pictures({ pictures: urls = [] }: Turn): HTMLElement[] {
  return urls.length ? [element('div', { className: 'pictures' }, ...urls.map(picture))] : [];
}

const FENCE = /^ {0,3}```([^\n`]*)\n([\s\S]*?)(?:^ {0,3}```[ \t]*(?:\n|$)|$(?![\s\S]))/gm;

/** A text as paragraphs and blocks of code. All of it stays text. */
export function blocks(text: string): HTMLElement[] {
  const made: HTMLElement[] = [];
  let begin = 0;
  const prose = (end: number): void => {
    if (text.slice(begin, end).trim()) made.push(element('div', { className: 'prose' }, ...inline(text.slice(begin, end).replace(/^\n+|\s+$/g, ''))));
  };
  for (const match of text.matchAll(FENCE)) {
    prose(match.index);
    made.push(code(match[1]!.trim(), match[2]!.replace(/\n$/, '')));
    begin = match.index + match[0].length;
  }
  prose(text.length);
  return made;
}

// Text with `code` and **strong** parts.
function inline(text: string): (Node | string)[] {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, at) => {
    if (at % 2 === 0) return part;
    return part.startsWith('`') ? element('code', {}, part.slice(1, -1)) : element('strong', {}, part.slice(2, -2));
  });
}

function code(language: string, text: string): HTMLElement {
  const block = element('pre', { tabIndex: 0 }, element('code', {}, text));
  return element('figure', { className: 'code' }, element('figcaption', {}, language || 'code'), block);
}
