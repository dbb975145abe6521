/** Chat page: shows one conversation, switches between those stored in this browser, and connects the
 * parts of the page. */

import type { ConnectionState, EventRefusedError } from '../client/index.js';
import { apiKey, fetchModels, type Model } from './api.js';
import { Composer } from './composer.js';
import { ConnectionBanner } from './connection_banner.js';
import { ConversationController } from './conversation_controller.js';
import { askApiKey, type ChosenSettings, openSettings } from './dialogs.js';
import { h, iconButton } from './dom.js';
import { MetricsPanel } from './metrics_panel.js';
import { Sidebar } from './sidebar.js';
import { Speech } from './speech.js';
import {
  defaultSettings,
  listConversations,
  loadConversation,
  newConversation,
  type StoredConversation,
} from './storage.js';
import { switchTheme } from './theme.js';
import { Transcript } from './transcript.js';
import { UndoDelete } from './undo_delete.js';

const SUGGESTIONS = ['Tell me a short story.', 'Count from one to ten.', 'What can you do?'];
const PANEL_STORAGE = 'continuo.panel';
const NOTICE_MS = 8000;
/** Whether the sidebar fits beside the conversation. */
const FITS_SIDEBAR = matchMedia('(min-width: 900px)');
/** Whether the metrics panel fits as well. */
const FITS_PANEL = matchMedia('(min-width: 1180px)');

export class App {
  readonly #root: HTMLElement;
  readonly #title = h('h1', { class: 'title' });
  readonly #status = h('span', { class: 'status' });
  readonly #scroller = h('div', { class: 'scroller', tabindex: '-1' });
  readonly #notice = h('div', { class: 'notice', role: 'alert', hidden: true });
  readonly #banner: ConnectionBanner;
  readonly #composer: Composer;
  readonly #sidebar: Sidebar;
  readonly #deletedConversations: UndoDelete;
  readonly #speech: Speech;
  readonly #main = h('main', {});
  #conversation: ConversationController | null = null;
  /** The last conversation deleted while it was open, and the one opened in its place. */
  #replacement: { id: string; conversation: ConversationController | null } | null = null;
  #transcript: Transcript | null = null;
  #panel: MetricsPanel | null = null;
  #models: Model[] = [];
  #noticeTimer: ReturnType<typeof setTimeout> | undefined;
  #askingApiKey = false;

  constructor(root: HTMLElement) {
    this.#root = root;
    this.#banner = new ConnectionBanner({
      retry: () => this.#conversation?.client.retryNow(),
      reconnect: () => this.#reconnect(),
      askKey: (message) => void this.#askApiKey(message),
    });
    this.#composer = new Composer({
      input: (text) => this.#conversation?.setDraft(text),
      send: () => void this.#send(),
      stop: () => void this.#conversation?.cancelResponse(),
      editLast: () => {
        const edits = root.querySelectorAll<HTMLElement>('.message.user [aria-label^="Edit"]');
        [...edits].at(-1)?.click();
      },
    });
    this.#sidebar = new Sidebar({
      select: () => {
        this.#closeOverlays();
      },
      create: () => {
        this.#startConversation();
        this.#closeOverlays();
      },
      delete: (id) => {
        this.#delete(id);
      },
      restore: (id) => {
        this.#undoDelete(id);
      },
    });
    this.#deletedConversations = new UndoDelete({
      inUse: (id) => this.#sidebar.inUse(id),
      deleted: () => {
        this.#drawSidebar();
      },
    });
    this.#speech = new Speech({
      conversation: () => this.#conversation,
      interim: (text) => {
        this.#composer.text = text;
        this.#conversation?.setDraft(text);
      },
      final: () => void this.#send(),
      failed: (reason) => {
        this.#showNotice(reason);
      },
    });
  }

  start(): void {
    this.#build();
    addEventListener('hashchange', () => {
      this.#route();
    });
    addEventListener('keydown', (event) => {
      this.#handleKey(event);
    });
    this.#route();
    void this.#loadModels();
  }

  // ---------------------------------------------------------------- conversations

  /** Open the conversation named in the URL's fragment, or a new one. */
  #route(): void {
    const id = location.hash.slice(1);
    if (id && id === this.#conversation?.record.id) return;
    const stored = id ? loadConversation(id) : null;
    if (stored) this.#openConversation(new ConversationController(stored));
    else this.#startConversation();
  }

  #startConversation(settings = defaultSettings.get(), model: string | null = null): void {
    const open = this.#conversation;
    if (open?.empty && !open.record.draft && !open.ended && model === null) {
      this.#composer.field.focus();
      return;
    }
    this.#openConversation(new ConversationController({ ...newConversation(), settings, model }));
  }

  /** Show `conversation` instead of the open one, which is closed at once or after `closeAfter`. */
  #openConversation(conversation: ConversationController, closeAfter?: Promise<unknown>): void {
    const previous = this.#conversation;
    if (previous && closeAfter) void closeAfter.then(() => previous.close());
    else previous?.close();
    this.#panel?.stopPolling();
    this.#speech.stop();
    this.#notice.hidden = true;
    this.#conversation = conversation;
    const { client } = conversation;
    history.replaceState(null, '', `#${conversation.record.id}`);
    this.#transcript = new Transcript(
      conversation,
      {
        edit: (id, text) => void this.#connected().then((connected) => connected?.editMessage(id, text)),
        branch: (id) => {
          this.#branch(id);
        },
        regenerate: () => void this.#connected().then((connected) => connected?.regenerate()),
        submitToolResult: (call, output) =>
          void this.#connected().then((connected) => connected?.submitToolResult(call, output)),
      },
      this.#scroller,
    );
    this.#scroller.replaceChildren(this.#welcome(conversation), this.#transcript.element);
    const panel = new MetricsPanel(conversation);
    this.#root.querySelector('.panel')?.replaceWith(panel.element);
    this.#panel = panel;
    this.#composer.queued = false;
    this.#composer.text = conversation.record.draft;
    conversation.onRefused = (refused) => {
      this.#showRefusal(refused);
    };
    conversation.onResponseStatus = () => {
      this.#transcript?.draw();
    };
    conversation.onDraft = () => {
      this.#composer.text = conversation.record.draft;
    };
    conversation.onTitle = () => {
      this.#drawTitle();
    };
    client.state.subscribe((state) => {
      if (conversation === this.#conversation) this.#connectionChanged(state);
    });
    client.onConversationChange(() => {
      if (conversation === this.#conversation) this.#conversationChanged(conversation);
    });
    this.#drawTitle();
    this.#conversationChanged(conversation);
    this.#transcript.scrollToEnd();
    panel.rebuild();
    client.connect();
    this.#connectionChanged(client.state.value);
    if (matchMedia('(pointer: fine)').matches) this.#composer.field.focus();
  }

  /** Reopen an ended conversation on a new connection, with its unacknowledged events. */
  #reconnect(): void {
    if (!this.#conversation) return;
    this.#openConversation(new ConversationController(this.#conversation.recordForReconnect()));
  }

  /** Returns the open conversation; if it had ended, reconnects and synchronizes it first. */
  async #connected(): Promise<ConversationController | null> {
    if (!this.#conversation?.ended) return this.#conversation;
    this.#reconnect();
    await this.#conversation.synchronize();
    return this.#conversation;
  }

  /** Open a new conversation that shares the current one up to the item `at`. */
  #branch(at: string): void {
    const conversation = this.#conversation;
    if (!conversation) return;
    conversation.save();
    const { record, client } = conversation;
    const { items, turns } = client.conversation.toJSON();
    const sharedItems = items.slice(0, items.findIndex((item) => item.id === at) + 1);
    const ids = new Set(sharedItems.map((item) => item.id));
    const sharedTurns = turns.filter((turn) => turn.items.some((id) => ids.has(id)));
    const branch: StoredConversation = {
      ...newConversation(record),
      title: record.title,
      saved: { items: sharedItems, turns: sharedTurns },
      metrics: record.metrics.filter((metrics) => sharedTurns.some((turn) => turn.id === metrics.id)),
    };
    const { resumePoint: position } = client;
    const child = new ConversationController(
      branch,
      position === null
        ? undefined
        : { sessionId: position.sessionId, itemId: at, ...(position.token && { token: position.token }) },
    );
    // The parent session must stay open until the server has forked it.
    const settled = new Promise<void>((resolve) => {
      child.client.state.subscribe(({ phase }) => {
        if (phase === 'open' || phase === 'closed') resolve();
      });
    });
    this.#openConversation(child, settled);
    this.#showNotice('New branch. It shares the conversation up to this message.');
  }

  #delete(id: string): void {
    const conversation = this.#conversation;
    if (id === conversation?.record.id) {
      conversation.close();
      this.#conversation = null;
      this.#deletedConversations.delete(id);
      const next = listConversations()[0];
      const stored = next && loadConversation(next.id);
      if (stored) this.#openConversation(new ConversationController(stored));
      else this.#startConversation();
      this.#replacement = { id, conversation: this.#conversation };
    } else this.#deletedConversations.delete(id);
    this.#drawSidebar();
    this.#sidebar.focus(id);
  }

  #undoDelete(id: string): void {
    this.#deletedConversations.restore(id);
    this.#drawSidebar();
    this.#sidebar.focus(id);
    const replacement = this.#replacement;
    if (id === replacement?.id && this.#conversation === replacement.conversation) location.hash = id;
  }

  async #send(): Promise<void> {
    if (this.#conversation?.ended) this.#reconnect();
    const conversation = this.#conversation;
    if (!conversation) return;
    this.#transcript?.scrollToEnd();
    this.#composer.queued = true;
    await conversation.send();
    if (conversation !== this.#conversation) return;
    this.#composer.queued = false;
    this.#composer.text = conversation.record.draft;
    this.#transcript?.draw();
  }

  // ---------------------------------------------------------------- drawing

  #build(): void {
    const header = h(
      'header',
      { class: 'top' },
      iconButton('list', 'Conversations', () => {
        this.#root.classList.toggle('with-sidebar');
      }),
      h('a', { class: 'brand', href: '/', 'aria-label': 'Continuo: new conversation' }, 'Continuo'),
      this.#title,
      this.#status,
      iconButton('cut', 'Drop the connection to test recovery', () => {
        this.#conversation?.client.reconnect('you dropped the connection');
      }),
      iconButton('settings', 'Settings', () => {
        this.#openSettings();
      }),
      iconButton('sun', 'Switch between light and dark', () => {
        switchTheme();
        this.#panel?.rebuild();
      }),
      iconButton('panel', 'Live metrics', () => {
        const shown = this.#root.classList.toggle('with-panel');
        localStorage.setItem(PANEL_STORAGE, shown ? 'shown' : 'hidden');
        this.#panel?.rebuild();
      }),
    );
    this.#composer.tools.append(...this.#speech.buttons);
    const foot = h('div', { class: 'foot' }, this.#banner.element, this.#notice, this.#composer.element);
    this.#main.append(this.#scroller, foot);
    this.#main.addEventListener('click', () => {
      this.#closeOverlays();
    });
    this.#root.className = 'app';
    const preference = localStorage.getItem(PANEL_STORAGE);
    this.#root.classList.toggle('with-panel', FITS_PANEL.matches && preference !== 'hidden');
    this.#root.classList.toggle('with-sidebar', FITS_SIDEBAR.matches);
    this.#root.append(header, this.#sidebar.element, this.#main, h('aside', { class: 'panel' }));
  }

  /** On a small screen, hide the sidebar and the panel, which cover the conversation. */
  #closeOverlays(): void {
    if (!FITS_SIDEBAR.matches) this.#root.classList.remove('with-sidebar');
    if (!FITS_PANEL.matches) this.#root.classList.remove('with-panel');
  }

  #welcome(conversation: ConversationController): HTMLElement {
    const sendSuggestion = (text: string): void => {
      this.#composer.text = text;
      conversation.setDraft(text);
      void this.#send();
    };
    const buttons = SUGGESTIONS.map((text) =>
      h('button', { type: 'button', onclick: () => sendSuggestion(text) }, text),
    );
    return h(
      'section',
      { class: 'welcome', 'aria-label': 'Welcome' },
      h('h2', {}, 'Start a conversation'),
      h(
        'p',
        {},
        'Text is prefilled while you type, and earlier turns are reused from the KV cache. ' +
          'Reload, go offline or restart the server: the conversation continues.',
      ),
      h('div', { class: 'row' }, ...buttons),
    );
  }

  #conversationChanged(conversation: ConversationController): void {
    this.#composer.running = conversation.running;
    this.#root.classList.toggle('empty', conversation.empty && conversation.unsent.length === 0);
    this.#speech.conversationChanged();
  }

  #connectionChanged(state: ConnectionState): void {
    this.#banner.show(state);
    const labels = {
      idle: 'Not connected',
      connecting: 'Connecting',
      open: 'Connected',
      waiting: 'Not connected',
      closed: 'Not connected',
    };
    this.#status.textContent = labels[state.phase];
    this.#status.dataset.phase = state.phase;
    this.#transcript?.draw();
    if (state.phase === 'open' && this.#models.length === 0) void this.#loadModels();
  }

  #drawTitle(): void {
    const title = this.#conversation?.record.title ?? '';
    this.#title.textContent = title;
    document.title = title ? `${title} · Continuo` : 'Continuo';
    this.#conversation?.save();
    this.#drawSidebar();
  }

  #drawSidebar(): void {
    this.#sidebar.draw(this.#conversation?.record.id ?? '', this.#deletedConversations.summaries);
  }

  #showRefusal(refused: EventRefusedError): void {
    const harmless = ['response_cancel_not_active', 'input_text_buffer_commit_empty'];
    if (!harmless.includes(refused.code ?? '')) this.#showNotice(refused.message);
  }

  #showNotice(text: string): void {
    clearTimeout(this.#noticeTimer);
    this.#notice.textContent = text;
    this.#notice.hidden = false;
    this.#noticeTimer = setTimeout(() => {
      this.#notice.hidden = true;
    }, NOTICE_MS);
  }

  #handleKey(event: KeyboardEvent): void {
    if (document.querySelector('dialog[open]')) return;
    const typing = event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLInputElement;
    if (event.key === 'Escape' && this.#conversation?.running) {
      event.preventDefault();
      this.#speech.stopSpeaking();
      void this.#conversation.cancelResponse();
    } else if (event.key === '/' && !typing) {
      event.preventDefault();
      this.#composer.field.focus();
    }
  }

  // ---------------------------------------------------------------- settings and keys

  #openSettings(): void {
    const conversation = this.#conversation;
    if (!conversation) return;
    openSettings({
      current: conversation.client.session ?? conversation.record.settings,
      model: conversation.record.model ?? conversation.client.session?.model ?? null,
      models: this.#models,
      apply: (chosen) => this.#applySettings(conversation, chosen),
    });
  }

  /** Apply changed settings; another model begins a new conversation. */
  async #applySettings(
    conversation: ConversationController,
    { settings, model }: ChosenSettings,
  ): Promise<void> {
    await conversation.updateSettings(settings);
    defaultSettings.set(settings);
    const currentModel = conversation.record.model ?? conversation.client.session?.model;
    if (model !== null && currentModel !== undefined && model !== currentModel) {
      this.#startConversation(settings, model);
    }
  }

  async #askApiKey(message: string): Promise<void> {
    if (this.#askingApiKey) return;
    this.#askingApiKey = true;
    apiKey.set('');
    const entered = await askApiKey(message);
    this.#askingApiKey = false;
    if (entered === null) return;
    apiKey.set(entered);
    this.#reconnect();
    void this.#loadModels();
  }

  async #loadModels(): Promise<void> {
    this.#models = await fetchModels().catch(() => []);
  }
}

