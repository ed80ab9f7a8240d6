// The page: it holds a conversation and the engine that answers.
import type { ChatMessage } from '../src/index.js';
import { byId, element } from './dom.js';
import type { ModelInfo, PageEngine, Piece, Question } from './engine.js';
import { Loader } from './loader.js';
import { MessageView, type Actions } from './messages.js';
import { Meter, showSpeed, showUsed } from './meter.js';
import { Pictures } from './pictures.js';
import { samplingOf } from './settings.js';
import { closeMenu, showConversations } from './side.js';
import { conversations, current, forget, isConversationKey, keep, newConversation, type Conversation, type Settings, type Turn } from './store.js';

export type Engines = Partial<Record<Settings['engine'], PageEngine>>;

export class App {
  #settings: Settings;
  #engines: Engines;
  #engine: PageEngine | null = null;
  #info: ModelInfo | null = null;
  #conversation: Conversation;
  #views: MessageView[] = [];
  #running: AbortController | null = null;
  #loader = new Loader(() => void this.reopen());
  #pictures = new Pictures((reason) => this.tell(reason));
  #isFollowing = true;

  constructor(engines: Engines, settings: Settings) {
    this.#engines = engines;
    this.#settings = settings;
    const all = conversations();
    this.#conversation = all.find(({ id }) => id === current.get()) ?? all[0] ?? newConversation();
    this.#follow();
    this.#show();
  }

  /** Takes an engine, and asks before it downloads a model. */
  async use(name: Settings['engine']): Promise<void> {
    const engine = this.#engines[name];
    if (!engine || engine === this.#engine) return;
    this.stop();
    await this.#engine?.close();
    this.#engine = engine;
    this.#info = null;
    await this.reopen();
  }

  async #choose(model: string): Promise<void> {
    if (!this.#engine) return;
    this.stop();
    this.#engine.model = model;
    this.#info = null;
    this.#show();
    byId('where').textContent = `${model} is loaded…`;
    await this.reopen();
  }

  async reopen(): Promise<void> {
    const engine = this.#engine;
    if (!engine) return;
    this.tell('');
    try {
      const info = await this.#loader.open(engine);
      if (engine !== this.#engine) return;
      this.#info = info;
    } catch (error) {
      if (engine === this.#engine) this.tell(messageOf(error));
    }
    this.#show();
  }

  stop(): void {
    this.#running?.abort();
  }

  #follow(): void {
    const text = byId<HTMLTextAreaElement>('text');
    byId<HTMLFormElement>('composer').onsubmit = (event) => {
      event.preventDefault();
      void this.#send(text);
    };
    text.onkeydown = (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      void this.#send(text);
    };
    byId('stop').onclick = () => this.stop();
    byId('models').onchange = () => void this.#choose(byId<HTMLSelectElement>('models').value);
    byId('again').onclick = () => void this.#continueAgain();
    byId('new').onclick = () => this.#open(newConversation());
    byId('notice-close').onclick = () => this.tell('');
    byId('draft-text').oninput = () => {
      this.#conversation.text = byId<HTMLTextAreaElement>('draft-text').value;
      this.#keep();
    };
    const scroll = byId('scroll');
    scroll.onscroll = () => {
      this.#isFollowing = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 40;
    };
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.#running && !document.querySelector('dialog[open]')) this.stop();
    });
    // Another tab has changed the conversations.
    addEventListener('storage', ({ key }) => isConversationKey(key) && this.#showSide());
  }

  // --- conversations

  #open(conversation: Conversation): void {
    this.stop();
    this.#conversation = conversation;
    current.set(conversation.id);
    closeMenu();
    this.tell('');
    this.#isFollowing = true;
    showSpeed(null);
    showUsed(null, null);
    this.#show();
    byId(this.#info?.chat === false ? 'draft-text' : 'text').focus();
  }

  #remove(conversation: Conversation): void {
    if (!confirm(`Delete the conversation “${conversation.title}”?`)) return;
    forget(conversation.id);
    if (conversation.id === this.#conversation.id) this.#open(conversations()[0] ?? newConversation());
    else this.#showSide();
  }

  #keep(): void {
    const { turns, text } = this.#conversation;
    this.#conversation.changed = Date.now();
    this.#conversation.title = (turns[0]?.content ?? text).trim().slice(0, 80) || 'New conversation';
    if (!keep(this.#conversation)) this.tell('This browser has no room for the conversation: it is lost on a reload. Delete others.');
    current.set(this.#conversation.id);
  }

  // --- what is shown

  #show(): void {
    const isChat = this.#info?.chat !== false;
    const { turns, text } = this.#conversation;
    byId('model').textContent = this.#info?.id ?? 'rdrr';
    byId('where').textContent = this.#info?.where ?? '';
    this.#showModels();
    document.title = this.#info ? `${this.#info.id} · rdrr` : 'rdrr';
    byId('log').hidden = !isChat;
    byId('draft').hidden = isChat;
    byId('text').hidden = !isChat;
    if (this.#info) this.#pictures.on = isChat && this.#info.sees;
    byId('welcome').hidden = !isChat || turns.length > 0 || this.#info === null;
    byId<HTMLTextAreaElement>('draft-text').value = text;
    this.#showTurns();
    this.#showRunning();
    this.#showSide();
    this.#scroll();
  }

  #showModels(): void {
    const models = this.#engine?.models ?? [];
    const choice = byId<HTMLSelectElement>('models');
    byId('choice').hidden = models.length < 2;
    choice.replaceChildren(...models.map((id) => element('option', { value: id, selected: id === this.#engine?.model }, id)));
  }

  #showTurns(): void {
    const { turns } = this.#conversation;
    const actions: Actions = {
      regenerate: () => void this.#regenerate(),
      edit: (at) => this.#edit(at),
      copy: (text) => void navigator.clipboard.writeText(text).then(() => this.#say('Copied')),
    };
    this.#views = turns.map((turn, at) => new MessageView(turn, at, at === turns.length - 1, actions));
    byId('log').replaceChildren(...this.#views.map(({ node }) => node));
  }

  #showRunning(): void {
    const isRunning = this.#running !== null;
    const isChat = this.#info?.chat !== false;
    byId('stop').hidden = !isRunning;
    const send = byId<HTMLButtonElement>('send');
    send.hidden = isRunning;
    send.disabled = this.#info === null;
    send.textContent = isChat ? 'Send' : 'Continue';
    byId('again').hidden = isRunning || isChat || this.#conversation.before === undefined;
    byId('log').setAttribute('aria-busy', String(isRunning));
    byId<HTMLTextAreaElement>('draft-text').readOnly = isRunning;
  }

  #showSide(): void {
    showConversations(this.#conversation.id, (conversation) => this.#open(conversation), (conversation) => this.#remove(conversation));
  }

  #scroll(): void {
    const scroll = byId('scroll');
    if (this.#isFollowing) scroll.scrollTop = scroll.scrollHeight;
  }

  /** Shows an error that stays; an empty text takes it away. */
  tell(text: string): void {
    byId('notice').hidden = !text;
    byId('notice-text').textContent = text;
  }

  // Something for those who listen to the page.
  #say(text: string): void {
    byId('status').textContent = text;
  }

  // --- answers

  async #send(text: HTMLTextAreaElement): Promise<void> {
    if (this.#running || !this.#info) return;
    if (!this.#info.chat) return this.#continue();
    const content = text.value.trim();
    const pictures = this.#pictures.take();
    if (!content && !pictures.length) return;
    text.value = '';
    this.#conversation.turns.push({ role: 'user', content, ...(pictures.length && { pictures }) });
    await this.#answer();
  }

  async #regenerate(): Promise<void> {
    if (this.#running || !this.#info) return;
    if (this.#conversation.turns.at(-1)?.role === 'assistant') this.#conversation.turns.pop();
    await this.#answer();
  }

  // Takes a message back into the field, with all that followed it.
  #edit(at: number): void {
    if (this.#running) return;
    const [turn] = this.#conversation.turns.splice(at);
    const text = byId<HTMLTextAreaElement>('text');
    text.value = turn?.content ?? '';
    this.#pictures.put(turn?.pictures ?? []);
    this.#keep();
    this.#show();
    text.focus();
  }

  async #answer(): Promise<void> {
    const { turns } = this.#conversation;
    const messages = messagesOf(turns, this.#settings.system, this.#info?.id);
    const turn: Turn = { role: 'assistant', content: '' };
    turns.push(turn);
    this.#isFollowing = true;
    await this.#run({ messages, sampling: samplingOf(this.#settings) }, turn, () => {
      this.#views.at(-1)?.update(turn);
      this.#scroll();
    });
  }

  async #continue(): Promise<void> {
    const conversation = this.#conversation;
    const field = byId<HTMLTextAreaElement>('draft-text');
    const before = field.value;
    if (!before) return;
    conversation.before = before;
    const turn: Turn = { role: 'assistant', content: '' };
    await this.#run({ prompt: before, sampling: { max_tokens: 256, ...samplingOf(this.#settings) } }, turn, () => {
      conversation.text = before + turn.content;
      if (conversation === this.#conversation) field.value = conversation.text;
      field.scrollTop = field.scrollHeight;
    });
    if (turn.note) this.tell(turn.note);
  }

  async #continueAgain(): Promise<void> {
    const { before } = this.#conversation;
    if (this.#running || before === undefined) return;
    byId<HTMLTextAreaElement>('draft-text').value = before;
    await this.#continue();
  }

  // Reads an answer into a turn, and shows it as often as the screen is drawn.
  async #run(question: Question, turn: Turn, show: () => void): Promise<void> {
    const engine = this.#engine!;
    const running = new AbortController();
    const meter = new Meter();
    const ids: number[] = [];
    const conversation = this.#conversation;
    this.#running = running;
    this.tell('');
    this.#keep();
    this.#show();
    const view = this.#views.at(-1)?.node;
    view?.setAttribute('data-writing', '');
    try {
      await everyFrame(engine.answer(question, running.signal), (piece) => {
        meter.add(piece);
        turn.content += piece.content;
        turn.reasoning = (turn.reasoning ?? '') + piece.reasoning;
        ids.push(...piece.ids);
        if (piece.finish === 'length') turn.note = 'The answer ended at the limit of tokens.';
      }, () => {
        show();
        showSpeed(meter.speed);
      });
    } catch (error) {
      turn.note = running.signal.aborted ? 'Stopped.' : messageOf(error);
    } finally {
      turn.stats = meter.summary;
      if (ids.length && this.#info) turn.ids = { model: this.#info.id, ids };
      view?.removeAttribute('data-writing');
      this.#running = null;
      show();
      this.#finish(conversation, meter);
    }
  }

  #finish(conversation: Conversation, meter: Meter): void {
    if (conversation !== this.#conversation) {
      keep(conversation);
      return;
    }
    this.#keep();
    this.#show();
    showSpeed(meter.speed);
    showUsed(meter.usage, this.#info?.context ?? null);
    this.#say('The answer is complete.');
    if (this.#info?.chat) byId('text').focus();
  }
}

// Answers of the same model go with their ids, so that it reads them from its cache.
function messagesOf(turns: readonly Turn[], system: string, model: string | undefined): ChatMessage[] {
  const said = turns.filter(({ role, content }) => role === 'user' || content);
  const first: ChatMessage[] = system.trim() ? [{ role: 'system', content: system }] : [];
  return [...first, ...said.map((turn) => {
    const { role, ids } = turn;
    return { role, content: contentOf(turn), ...(ids && ids.model === model && { token_ids: ids.ids }) };
  })];
}

// Pictures come before the text of their message.
function contentOf({ content, pictures = [] }: Turn): NonNullable<ChatMessage['content']> {
  if (!pictures.length) return content;
  const parts = pictures.map((url) => ({ type: 'image_url', image_url: { url } }));
  return content ? [...parts, { type: 'text', text: content }] : parts;
}

// Reads all pieces, and shows them at most once for each frame.
async function everyFrame(pieces: AsyncIterable<Piece>, read: (piece: Piece) => void, show: () => void): Promise<void> {
  let frame = 0;
  try {
    for await (const piece of pieces) {
      read(piece);
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        show();
      });
    }
  } finally {
    cancelAnimationFrame(frame);
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
