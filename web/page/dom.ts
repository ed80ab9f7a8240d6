// Elements of the page. Text becomes text nodes only: nothing here reads HTML.

type Properties<K extends keyof HTMLElementTagNameMap> = Partial<Omit<HTMLElementTagNameMap[K], 'innerHTML' | 'outerHTML'>>;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K, properties: Properties<K> = {}, ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

/** The element of index.html with an id. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const there = document.getElementById(id);
  if (!there) throw new Error(`index.html has no element ${id}`);
  return there as T;
}

export function button(label: string, onclick: () => void, properties: Properties<'button'> = {}): HTMLButtonElement {
  return element('button', { type: 'button', onclick, ...properties }, label);
}
