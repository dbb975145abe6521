/** Chat page: shows one conversation, switches between those stored in this browser, and connects the
 * parts of the page. */

import type { ConnectionState, EventRefusedError } from '../client/index.js';
import { apiKey, fetchModels, type Model } from './api.js';
import { Composer } from './composer.js';
import { ConnectionBanner } from './connection_banner.js';
import { ConversationController } from './conversation_controller.js';
import { type ChosenSettings, openSettingsDialog, promptForApiKey } from './dialogs.js';
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
const PANEL_STORAGE_KEY = 'continuo.panel';
const NOTICE_MS = 8000;
/** Whether the sidebar fits beside the conversation. */
const SIDEBAR_FITS = matchMedia('(min-width: 900px)');
/** Whether the metrics panel fits as well. */
const PANEL_FITS = matchMedia('(min-width: 1180px)');

export class App {
  readonly #root: HTMLElement;
  readonly #title = h('h1', { class: 'title' });
  readonly #connectionStatus = h('span', { class: 'status' });
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
  #promptingForApiKey = false;

  constructor(root: HTMLElement) {
    this.#root = root;
    this.#banner = new ConnectionBanner({
      retryNow: () => this.#conversation?.client.retryNow(),
      reconnect: () => this.#reconnect(),
      promptForApiKey: (message) => void this.#promptForApiKey(message),
    });
    this.#composer = new Composer({
      setDraft: (text) => this.#conversation?.setDraft(text),
      send: () => void this.#send(),
      cancelResponse: () => void this.#conversation?.cancelResponse(),
      editLastMessage: () => {
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
        this.#deleteConversation(id);
      },
      restore: (id) => {
        this.#undoDelete(id);
      },
    });
    this.#deletedConversations = new UndoDelete({
      isRowInUse: (id) => this.#sidebar.isRowInUse(id),
      deletedPermanently: () => {
        this.#drawSidebar();
      },
    });
    this.#speech = new Speech({
      conversation: () => this.#conversation,
      interimTranscript: (text) => {
        this.#composer.text = text;
        this.#conversation?.setDraft(text);
      },
      finalTranscript: () => void this.#send(),
      recognitionFailed: (reason) => {
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
    const current = this.#conversation;
    if (current?.isEmpty && !current.record.draft && !current.isClosed && model === null) {
      this.#composer.field.focus();
      return;
    }
    this.#openConversation(new ConversationController({ ...newConversation(), settings, model }));
  }

  /** Show `conversation` instead of the open one, which is disposed of at once or after `disposeAfter`. */
  #openConversation(conversation: ConversationController, disposeAfter?: Promise<unknown>): void {
    const previous = this.#conversation;
    if (previous && disposeAfter) void disposeAfter.then(() => previous.dispose());
    else previous?.dispose();
    this.#panel?.stopPolling();
    this.#speech.stop();
    this.#notice.hidden = true;
    this.#conversation = conversation;
    const { client } = conversation;
    history.replaceState(null, '', `#${conversation.record.id}`);
    this.#transcript = new Transcript(
      conversation,
      {
        edit: (id, text) =>
          void this.#ensureConnected().then((connected) => connected?.editMessage(id, text)),
        branch: (id) => {
          this.#branchConversation(id);
        },
        regenerate: () => void this.#ensureConnected().then((connected) => connected?.regenerate()),
        submitToolResult: (call, output) =>
          void this.#ensureConnected().then((connected) => connected?.submitToolResult(call, output)),
      },
      this.#scroller,
    );
    this.#scroller.replaceChildren(this.#createWelcome(conversation), this.#transcript.element);
    const panel = new MetricsPanel(conversation);
    this.#root.querySelector('.panel')?.replaceWith(panel.element);
    this.#panel = panel;
    this.#composer.isQueued = false;
    this.#composer.text = conversation.record.draft;
    conversation.onEventRefused = (refused) => {
      this.#showRefusal(refused);
    };
    conversation.onResponseStatusChange = () => {
      this.#transcript?.redraw();
    };
    conversation.onDraftChange = () => {
      this.#composer.text = conversation.record.draft;
    };
    conversation.onTitleChange = () => {
      this.#drawTitle();
    };
    client.state.subscribe((state) => {
      if (conversation === this.#conversation) this.#onConnectionStateChange(state);
    });
    client.onConversationChange(() => {
      if (conversation === this.#conversation) this.#onConversationChange(conversation);
    });
    this.#drawTitle();
    this.#onConversationChange(conversation);
    this.#transcript.scrollToEnd();
    panel.redraw();
    client.connect();
    this.#onConnectionStateChange(client.state.value);
    if (matchMedia('(pointer: fine)').matches) this.#composer.field.focus();
  }

  /** Reopen a closed conversation on a new connection, with its unacknowledged events. */
  #reconnect(): void {
    if (!this.#conversation) return;
    this.#openConversation(new ConversationController(this.#conversation.recordForReconnect()));
  }

  /** Returns the open conversation, reconnected and synchronized if it was closed. */
  async #ensureConnected(): Promise<ConversationController | null> {
    if (!this.#conversation?.isClosed) return this.#conversation;
    this.#reconnect();
    await this.#conversation.synchronize();
    return this.#conversation;
  }

  /** Open a new conversation that shares the current one up to an item. */
  #branchConversation(itemId: string): void {
    const conversation = this.#conversation;
    if (!conversation) return;
    conversation.save();
    const { record, client } = conversation;
    const { items, turns } = client.conversation.toJSON();
    const sharedItems = items.slice(0, items.findIndex((item) => item.id === itemId) + 1);
    const ids = new Set(sharedItems.map((item) => item.id));
    const sharedTurns = turns.filter((turn) => turn.items.some((id) => ids.has(id)));
    const branch: StoredConversation = {
      ...newConversation(record),
      title: record.title,
      saved: { items: sharedItems, turns: sharedTurns },
      metrics: record.metrics.filter((metrics) => sharedTurns.some((turn) => turn.id === metrics.id)),
    };
    const { resumePoint } = client;
    const child = new ConversationController(
      branch,
      resumePoint === null
        ? undefined
        : { sessionId: resumePoint.sessionId, itemId, ...(resumePoint.token && { token: resumePoint.token }) },
    );
    // The parent session must stay open until the server has forked it.
    const forkSettled = new Promise<void>((resolve) => {
      child.client.state.subscribe(({ phase }) => {
        if (phase === 'open' || phase === 'closed') resolve();
      });
    });
    this.#openConversation(child, forkSettled);
    this.#showNotice('New branch. It shares the conversation up to this message.');
  }

  #deleteConversation(id: string): void {
    const conversation = this.#conversation;
    if (id === conversation?.record.id) {
      conversation.dispose();
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
    if (this.#conversation?.isClosed) this.#reconnect();
    const conversation = this.#conversation;
    if (!conversation) return;
    this.#transcript?.scrollToEnd();
    this.#composer.isQueued = true;
    await conversation.send();
    if (conversation !== this.#conversation) return;
    this.#composer.isQueued = false;
    this.#composer.text = conversation.record.draft;
    this.#transcript?.redraw();
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
      this.#connectionStatus,
      iconButton('disconnect', 'Drop the connection to test recovery', () => {
        this.#conversation?.client.reconnect('you dropped the connection');
      }),
      iconButton('settings', 'Settings', () => {
        this.#openSettings();
      }),
      iconButton('sun', 'Switch between light and dark', () => {
        switchTheme();
        this.#panel?.redraw();
      }),
      iconButton('panel', 'Live metrics', () => {
        const shown = this.#root.classList.toggle('with-panel');
        localStorage.setItem(PANEL_STORAGE_KEY, shown ? 'shown' : 'hidden');
        this.#panel?.redraw();
      }),
    );
    this.#composer.extraButtons.append(...this.#speech.buttons);
    const foot = h('div', { class: 'foot' }, this.#banner.element, this.#notice, this.#composer.element);
    this.#main.append(this.#scroller, foot);
    this.#main.addEventListener('click', () => {
      this.#closeOverlays();
    });
    this.#root.className = 'app';
    const preference = localStorage.getItem(PANEL_STORAGE_KEY);
    this.#root.classList.toggle('with-panel', PANEL_FITS.matches && preference !== 'hidden');
    this.#root.classList.toggle('with-sidebar', SIDEBAR_FITS.matches);
    this.#root.append(header, this.#sidebar.element, this.#main, h('aside', { class: 'panel' }));
  }

  /** On a small screen, hide the sidebar and the panel, which cover the conversation. */
  #closeOverlays(): void {
    if (!SIDEBAR_FITS.matches) this.#root.classList.remove('with-sidebar');
    if (!PANEL_FITS.matches) this.#root.classList.remove('with-panel');
  }

  #createWelcome(conversation: ConversationController): HTMLElement {
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

  #onConversationChange(conversation: ConversationController): void {
    this.#composer.isResponding = conversation.isResponding;
    this.#root.classList.toggle('empty', conversation.isEmpty && conversation.pendingMessages.length === 0);
    this.#speech.onConversationChange();
  }

  #onConnectionStateChange(state: ConnectionState): void {
    this.#banner.show(state);
    const labels = {
      idle: 'Not connected',
      connecting: 'Connecting',
      open: 'Connected',
      waiting: 'Not connected',
      closed: 'Not connected',
    };
    this.#connectionStatus.textContent = labels[state.phase];
    this.#connectionStatus.dataset.phase = state.phase;
    this.#transcript?.redraw();
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
    const ignoredCodes = ['response_cancel_not_active', 'input_text_buffer_commit_empty'];
    if (!ignoredCodes.includes(refused.code ?? '')) this.#showNotice(refused.message);
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
    if (event.key === 'Escape' && this.#conversation?.isResponding) {
      event.preventDefault();
      this.#speech.stopSynthesis();
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
    openSettingsDialog({
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

  async #promptForApiKey(message: string): Promise<void> {
    if (this.#promptingForApiKey) return;
    this.#promptingForApiKey = true;
    apiKey.set('');
    const entered = await promptForApiKey(message);
    this.#promptingForApiKey = false;
    if (entered === null) return;
    apiKey.set(entered);
    this.#reconnect();
    void this.#loadModels();
  }

  async #loadModels(): Promise<void> {
    this.#models = await fetchModels().catch(() => []);
  }
}

