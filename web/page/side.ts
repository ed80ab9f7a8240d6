// The conversations beside the page, the colors, and the menu of narrow windows.
import { button, byId, element } from './dom.js';
import { conversations, keepSettings, type Conversation, type Settings } from './store.js';

export function showConversations(current: string, open: (conversation: Conversation) => void, remove: (conversation: Conversation) => void): void {
  byId('conversations').replaceChildren(...conversations().map((conversation) => {
    const { id, title } = conversation;
    const name = button(title, () => open(conversation), { title });
    if (id === current) name.setAttribute('aria-current', 'true');
    const erase = button('×', () => remove(conversation), { ariaLabel: `Delete the conversation ${title}`, title: 'Delete' });
    return element('li', { className: id === current ? 'current' : '' }, name, erase);
  }));
}

export function followTheme(settings: Settings): void {
  const choice = byId<HTMLSelectElement>('theme');
  const apply = (): void => {
    if (settings.theme === 'auto') delete document.documentElement.dataset['theme'];
    else document.documentElement.dataset['theme'] = settings.theme;
  };
  choice.value = settings.theme;
  choice.onchange = () => {
    settings.theme = choice.value as Settings['theme'];
    keepSettings(settings);
    apply();
  };
  apply();
}

const side = (): HTMLElement => byId('side');

export function closeMenu(): void {
  side().classList.remove('open');
  byId('menu').setAttribute('aria-expanded', 'false');
}

export function followMenu(): void {
  const menu = byId('menu');
  menu.onclick = () => {
    const isOpen = side().classList.toggle('open');
    menu.setAttribute('aria-expanded', String(isOpen));
    if (isOpen) byId('new').focus();
  };
  byId('scroll').addEventListener('pointerdown', closeMenu);
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !side().classList.contains('open')) return;
    closeMenu();
    menu.focus();
  });
}
