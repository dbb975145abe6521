/** The page: one conversation at a time, those beside it, and what is seen of them. */

import type { ConnectionState, Refused } from '../client/index.js';
import { key, type Model, models } from './api.js';
import { Banner } from './connection_banner.js';
import { Bin } from './undo_delete.js';
import { Composer } from './composer.js';
import { h, type Icon, iconButton } from './dom.js';
import { Panel } from './metrics_panel.js';
import { askKey, type Chosen, openSettings } from './dialogs.js';
import { Sidebar } from './sidebar.js';
import { Speech } from './speech.js';
import { all, defaults, fresh, type Kept, load } from './storage.js';
import { Talk } from './conversation_controller.js';
import { switchTheme } from './theme.js';
import { Transcript } from './transcript.js';

const SUGGESTIONS = ['Tell me a short story.', 'Count from one to ten.', 'What can you do?'];
const PANEL = 'continuo.panel';
const NOTICE_MS = 8000;
/** There is room beside the conversation for the others, and for the figures too. */
const WIDE = matchMedia('(min-width: 900px)');
const WIDEST = matchMedia('(min-width: 1180px)');

export class App {
  readonly #root: HTMLElement;
  readonly #title = h('h1', { class: 'title' });
  readonly #status = h('span', { class: 'status' });
  readonly #scroller = h('div', { class: 'scroller', tabindex: '-1' });
  readonly #notice = h('div', { class: 'notice', role: 'alert', hidden: true });
  readonly #banner: Banner;
  readonly #composer: Composer;
  readonly #sidebar: Sidebar;
  readonly #bin: Bin;
  readonly #speech: Speech;
  readonly #main = h('main', {});
  #talk: Talk | null = null;
  /** What was deleted while it was shown, and what has been shown instead. */
  #instead: { id: string; talk: Talk | null } | null = null;
  #transcript: Transcript | null = null;
  #panel: Panel | null = null;
  #models: Model[] = [];
  #noticing: ReturnType<typeof setTimeout> | undefined;
  #askingKey = false;

  constructor(root: HTMLElement) {
    this.#root = root;
    this.#banner = new Banner({
      retry: () => this.#talk?.client.retry(),
      goOn: () => this.#goOn(),
      askKey: (message) => void this.#askKey(message),
    });
    this.#composer = new Composer({
      type: (text) => this.#talk?.type(text),
      send: () => void this.#send(),
      stop: () => void this.#talk?.stop(),
      editLast: () => {
        const edits = root.querySelectorAll<HTMLElement>('.message.user [aria-label^="Edit"]');
        [...edits].at(-1)?.click();
      },
    });
    this.#sidebar = new Sidebar({
      chosen: () => {
        this.#uncover();
      },
      begin: () => {
        this.#begin();
        this.#uncover();
      },
      remove: (id) => {
        this.#remove(id);
      },
      restore: (id) => {
        this.#restore(id);
      },
    });
    this.#bin = new Bin({
      held: (id) => this.#sidebar.held(id),
      gone: () => {
        this.#list();
      },
    });
    this.#speech = new Speech({
      talk: () => this.#talk,
      heard: (text) => {
        this.#composer.text = text;
        this.#talk?.type(text);
      },
      said: () => void this.#send(),
      failed: (why) => {
        this.#notify(why);
      },
    });
  }

  start(): void {
    this.#build();
    addEventListener('hashchange', () => {
      this.#route();
    });
    addEventListener('keydown', (event) => {
      this.#key(event);
    });
    this.#route();
    void this.#loadModels();
  }

  // ---------------------------------------------------------------- conversations

  #route(): void {
    const id = location.hash.slice(1);
    if (id && id === this.#talk?.kept.id) return;
    const kept = id ? load(id) : null;
    if (kept) this.#show(new Talk(kept));
    else this.#begin();
  }

  #begin(settings = defaults.get(), model: string | null = null): void {
    if (this.#talk?.empty && !this.#talk.kept.draft && !this.#talk.over && model === null) {
      this.#composer.field.focus();
      return;
    }
    this.#show(new Talk({ ...fresh(), settings, model }));
  }

  #show(talk: Talk, leaveAfter?: Promise<unknown>): void {
    const before = this.#talk;
    if (before && leaveAfter) void leaveAfter.then(() => before.leave());
    else before?.leave();
    this.#panel?.stop();
    this.#speech.stop();
    this.#notice.hidden = true;
    this.#talk = talk;
    const { client } = talk;
    history.replaceState(null, '', `#${talk.kept.id}`);
    this.#transcript = new Transcript(
      talk,
      {
        edit: (id, text) => void this.#live().then((live) => live?.edit(id, text)),
        branch: (id) => {
          this.#branch(id);
        },
        regenerate: () => void this.#live().then((live) => live?.regenerate()),
        answer: (call, output) => void this.#live().then((live) => live?.answer(call, output)),
      },
      this.#scroller,
    );
    this.#scroller.replaceChildren(this.#welcome(talk), this.#transcript.element);
    const panel = new Panel(talk);
    this.#root.querySelector('.panel')?.replaceWith(panel.element);
    this.#panel = panel;
    this.#composer.waits = false;
    this.#composer.text = talk.kept.draft;
    talk.onRefused = (refused) => {
      this.#refused(refused);
    };
    talk.onAnswered = () => {
      this.#transcript?.draw();
    };
    talk.onDraft = () => {
      this.#composer.text = talk.kept.draft;
    };
    talk.onTitle = () => {
      this.#names();
    };
    client.state.subscribe((state) => {
      if (talk === this.#talk) this.#connection(state);
    });
    client.onChange(() => {
      if (talk === this.#talk) this.#changed(talk);
    });
    this.#names();
    this.#changed(talk);
    this.#transcript.follow();
    panel.rebuild();
    client.connect();
    this.#connection(client.state.value);
    if (matchMedia('(pointer: fine)').matches) this.#composer.field.focus();
  }

  /** The same conversation over another connection, with what this one could not say any more. */
  #goOn(): void {
    if (this.#talk) this.#show(new Talk(this.#talk.whatNext()));
  }

  /** The conversation; one that had ended goes on, and has heard what was said meanwhile. */
  async #live(): Promise<Talk | null> {
    if (!this.#talk?.over) return this.#talk;
    this.#goOn();
    await this.#talk.caughtUp();
    return this.#talk;
  }

  /** A conversation of its own that begins as this one was after an item. */
  #branch(at: string): void {
    const talk = this.#talk;
    if (!talk) return;
    talk.save();
    const { kept, client } = talk;
    const { items, turns } = client.conversation.save();
    const shared = items.slice(0, items.findIndex((item) => item.id === at) + 1);
    const ids = new Set(shared.map((item) => item.id));
    const own = turns.filter((turn) => turn.items.some((id) => ids.has(id)));
    const branch: Kept = {
      ...fresh(kept),
      title: kept.title,
      saved: { items: shared, turns: own },
      metrics: kept.metrics.filter((metrics) => own.some((turn) => turn.id === metrics.id)),
    };
    const { position } = client;
    const child = new Talk(
      branch,
      position === null
        ? undefined
        : { session: position.sessionId, at, ...(position.token && { token: position.token }) },
    );
    // The other session must be there until its history is shared.
    const settled = new Promise<void>((resolve) => {
      child.client.state.subscribe(({ phase }) => {
        if (phase === 'open' || phase === 'ended') resolve();
      });
    });
    this.#show(child, settled);
    this.#notify('A branch: what was said up to here is shared, what follows is its own.');
  }

  #remove(id: string): void {
    const talk = this.#talk;
    if (id === talk?.kept.id) {
      talk.leave();
      this.#talk = null;
      this.#bin.add(id);
      const next = all()[0];
      const kept = next && load(next.id);
      if (kept) this.#show(new Talk(kept));
      else this.#begin();
      this.#instead = { id, talk: this.#talk };
    } else this.#bin.add(id);
    this.#list();
    this.#sidebar.focus(id);
  }

  #restore(id: string): void {
    this.#bin.restore(id);
    this.#list();
    this.#sidebar.focus(id);
    if (id === this.#instead?.id && this.#talk === this.#instead.talk) location.hash = id;
  }

  async #send(): Promise<void> {
    if (this.#talk?.over) this.#goOn();
    const talk = this.#talk;
    if (!talk) return;
    this.#transcript?.follow();
    this.#composer.waits = true;
    await talk.send();
    if (talk !== this.#talk) return;
    this.#composer.waits = false;
    this.#composer.text = talk.kept.draft;
    this.#transcript?.draw();
  }

  // ---------------------------------------------------------------- what is shown

  #build(): void {
    const act = (name: Icon, label: string, run: () => void): HTMLElement =>
      iconButton(name, label, run);
    const header = h(
      'header',
      { class: 'top' },
      act('list', 'Conversations', () => {
        this.#root.classList.toggle('with-sidebar');
      }),
      h('a', { class: 'brand', href: '/', 'aria-label': 'Continuo, a new conversation' }, 'Continuo'),
      this.#title,
      this.#status,
      act('cut', 'Cut the connection, to see it come back', () => {
        this.#talk?.client.drop('you cut the connection');
      }),
      act('settings', 'Settings', () => {
        this.#settings();
      }),
      act('sun', 'Light or dark', () => {
        switchTheme();
        this.#panel?.rebuild();
      }),
      act('panel', 'Live figures', () => {
        const shown = this.#root.classList.toggle('with-panel');
        localStorage.setItem(PANEL, shown ? 'shown' : 'hidden');
        this.#panel?.rebuild();
      }),
    );
    this.#composer.tools.append(...this.#speech.buttons);
    const foot = h('div', { class: 'foot' }, this.#banner.element, this.#notice, this.#composer.element);
    this.#main.append(this.#scroller, foot);
    this.#main.addEventListener('click', () => {
      this.#uncover();
    });
    this.#root.className = 'app';
    const wished = localStorage.getItem(PANEL);
    this.#root.classList.toggle('with-panel', WIDEST.matches && wished !== 'hidden');
    this.#root.classList.toggle('with-sidebar', WIDE.matches);
    this.#root.append(header, this.#sidebar.element, this.#main, h('aside', { class: 'panel' }));
  }

  /** On a small screen, what lies over the conversation goes. */
  #uncover(): void {
    if (!WIDE.matches) this.#root.classList.remove('with-sidebar');
    if (!WIDEST.matches) this.#root.classList.remove('with-panel');
  }

  #welcome(talk: Talk): HTMLElement {
    const say = (text: string): void => {
      this.#composer.text = text;
      talk.type(text);
      void this.#send();
    };
    const buttons = SUGGESTIONS.map((text) =>
      h('button', { type: 'button', onclick: () => say(text) }, text),
    );
    return h(
      'section',
      { class: 'welcome', 'aria-label': 'Welcome' },
      h('h2', {}, 'Talk. It listens while you type.'),
      h(
        'p',
        {},
        'Each word is computed as it comes, and what was said need not be computed again. ' +
          'Reload, go offline, restart the server: the conversation goes on.',
      ),
      h('div', { class: 'row' }, ...buttons),
    );
  }

  #changed(talk: Talk): void {
    this.#composer.running = talk.running;
    this.#root.classList.toggle('empty', talk.empty && talk.unsent.length === 0);
    this.#speech.changed();
  }

  #connection(state: ConnectionState): void {
    this.#banner.show(state);
    const words = {
      idle: 'Not connected',
      connecting: 'Connecting',
      open: 'Connected',
      waiting: 'Not connected',
      ended: 'Not connected',
    };
    this.#status.textContent = words[state.phase];
    this.#status.dataset.phase = state.phase;
    this.#transcript?.draw();
    if (state.phase === 'open' && this.#models.length === 0) void this.#loadModels();
  }

  #names(): void {
    const title = this.#talk?.kept.title ?? '';
    this.#title.textContent = title;
    document.title = title ? `${title} · Continuo` : 'Continuo';
    this.#talk?.save();
    this.#list();
  }

  #list(): void {
    this.#sidebar.draw(this.#talk?.kept.id ?? '', this.#bin.listed);
  }

  #refused(refused: Refused): void {
    const harmless = ['response_cancel_not_active', 'input_text_buffer_commit_empty'];
    if (!harmless.includes(refused.code ?? '')) this.#notify(refused.message);
  }

  #notify(words: string): void {
    clearTimeout(this.#noticing);
    this.#notice.textContent = words;
    this.#notice.hidden = false;
    this.#noticing = setTimeout(() => {
      this.#notice.hidden = true;
    }, NOTICE_MS);
  }

  #key(event: KeyboardEvent): void {
    if (document.querySelector('dialog[open]')) return;
    const typing = event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLInputElement;
    if (event.key === 'Escape' && this.#talk?.running) {
      event.preventDefault();
      this.#speech.hush();
      void this.#talk.stop();
    } else if (event.key === '/' && !typing) {
      event.preventDefault();
      this.#composer.field.focus();
    }
  }

  // ---------------------------------------------------------------- settings and keys

  #settings(): void {
    const talk = this.#talk;
    if (!talk) return;
    openSettings({
      now: talk.client.session ?? talk.kept.settings,
      model: talk.kept.model ?? talk.client.session?.model ?? null,
      models: this.#models,
      apply: (chosen) => this.#apply(talk, chosen),
    });
  }

  async #apply(talk: Talk, { settings, model }: Chosen): Promise<void> {
    await talk.configure(settings);
    defaults.set(settings);
    const used = talk.kept.model ?? talk.client.session?.model;
    if (model !== null && used !== undefined && model !== used) this.#begin(settings, model);
  }

  async #askKey(message: string): Promise<void> {
    if (this.#askingKey) return;
    this.#askingKey = true;
    key.set('');
    const given = await askKey(message);
    this.#askingKey = false;
    if (given === null) return;
    key.set(given);
    this.#goOn();
    void this.#loadModels();
  }

  async #loadModels(): Promise<void> {
    this.#models = await models().catch(() => []);
  }
}

