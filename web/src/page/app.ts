/** Chat page: shows one conversation, switches between those stored in this browser, and connects the
 * parts of the page. */

import type { ConnectionState, EventRefusedError, ResponseSettings } from '../client/index.js';
import { apiKey, fetchModels, isOperator, type Model } from './api.js';
import { Composer } from './composer.js';
import { ConnectionBanner } from './connection_banner.js';
import { ConversationController } from './conversation_controller.js';
import { type ChosenSettings, openSettingsDialog, promptForApiKey } from './dialogs.js';
import { demoToken } from './demo_mode.js';
import { DemonstrationPlayer } from './demonstration_player.js';
import { h, icon, iconButton } from './dom.js';
import { download } from './files.js';
import { Forks } from './forks.js';
import { importConversation } from './import.js';
import { menuButton } from './menu.js';
import { MetricsPanel } from './metrics_panel.js';
import { PageFrame } from './page_frame.js';
import { describeRefusal } from './refusal_text.js';
import { type ExportFormat, Sidebar } from './sidebar.js';
import { Speech } from './speech.js';
import {
  conversationOf,
  type ConversationSummary,
  defaultSettings,
  deleteVersion,
  forgetConversations,
  INDEX_STORAGE_KEY,
  listConversations,
  listVersions,
  loadConversation,
  loadVersions,
  newConversation,
  onStorageNotice,
  renameConversation,
} from './storage.js';
import { switchTheme } from './theme.js';
import { Transcript } from './transcript.js';
import { fileNameOf, toJson, toMarkdown } from './transfer.js';
import { UndoDelete } from './undo_delete.js';
import { createWelcome } from './welcome.js';

export class App {
  readonly #frame: PageFrame;
  readonly #banner: ConnectionBanner;
  readonly #composer: Composer;
  readonly #sidebar: Sidebar;
  readonly #deletedConversations: UndoDelete;
  readonly #speech: Speech;
  readonly #forks: Forks;
  readonly #demonstrations: DemonstrationPlayer;
  /** Link to the admin page, shown to operators only. */
  readonly #adminLink = h(
    'a',
    { class: 'icon-button', href: 'admin', title: 'State and control of the server', hidden: true },
    icon('server'),
    h('span', { class: 'word' }, 'Server'),
  );
  #welcome = h('section', {});
  #conversation: ConversationController | null = null;
  /** The last conversation deleted while it was open, and the one opened in its place. */
  #replacement: { id: string; conversation: ConversationController | null } | null = null;
  #transcript: Transcript | null = null;
  #panel: MetricsPanel | null = null;
  #models: Model[] = [];
  #promptingForApiKey = false;

  constructor(root: HTMLElement) {
    this.#frame = new PageFrame(root);
    this.#banner = new ConnectionBanner({
      retryNow: () => this.#conversation?.client.retryNow(),
      reconnect: () => this.#reconnect(),
      promptForApiKey: (message) => void this.#promptForApiKey(message),
    });
    this.#composer = new Composer({
      setDraft: (text) => {
        this.#demonstrations.onUserInput();
        this.#conversation?.setDraft(text);
      },
      send: () => {
        this.#demonstrations.onUserSend();
        this.#send();
      },
      cancelResponse: () => void this.#conversation?.cancelResponse(),
      editLastMessage: () => {
        const queued = this.#conversation?.queue.at(-1);
        if (queued) this.#conversation?.takeBack(queued.id);
        const edits = root.querySelectorAll<HTMLElement>('.message.user [aria-label^="Edit"]');
        if (!queued) [...edits].at(-1)?.click();
      },
    });
    this.#sidebar = new Sidebar({
      select: () => {
        this.#frame.closeDrawers();
      },
      create: () => {
        this.#startConversation();
        this.#frame.closeDrawers();
      },
      rename: (conversation, title) => {
        this.#renameConversation(conversation, title);
      },
      export: (summary, format) => {
        this.#exportConversation(summary, format);
      },
      import: (file) => void this.#importConversation(file),
      delete: (conversation) => {
        this.#deleteConversation(conversation);
      },
      restore: (conversation) => {
        this.#undoDelete(conversation);
      },
      openMessage: (version, itemId) => {
        if (version !== this.#conversation?.record.id) this.#forks.openVersion(version);
        this.#transcript?.reveal(itemId);
      },
    });
    this.#deletedConversations = new UndoDelete({
      isRowInUse: (id) => this.#sidebar.isRowInUse(id),
      deletedPermanently: () => {
        this.#drawSidebar();
      },
    });
    this.#forks = this.#createForks();
    this.#demonstrations = this.#createDemonstrations();
    this.#speech = new Speech({
      conversation: () => this.#conversation,
      interimTranscript: (text) => {
        this.#composer.text = text;
        this.#conversation?.setDraft(text);
      },
      finalTranscript: () => {
        this.#send();
      },
      recognitionFailed: (reason) => {
        this.#frame.showNotice(reason);
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
    addEventListener('storage', ({ key, newValue }) => {
      this.#onOtherTab(key ?? '', newValue);
    });
    onStorageNotice((text) => {
      this.#frame.showNotice(text);
    });
    this.#route();
    void this.#loadModels();
  }

  // ---------------------------------------------------------------- conversations

  /** Open the conversation named in the URL's fragment, or a new one. */
  #route(): void {
    if (demoToken.takeFromAddress()) this.#drawWelcome();
    const id = location.hash.slice(1);
    if (id && id === this.#conversation?.record.id) return;
    if (!id || !this.#openStored(id)) this.#startConversation();
  }

  /** Open a stored version. Returns false if it is not stored. */
  #openStored(id: string): boolean {
    const stored = loadConversation(id);
    if (stored) this.#openConversation(new ConversationController(stored));
    return stored !== null;
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
    this.#frame.hideNotice();
    this.#conversation = conversation;
    this.#demonstrations.onConversationOpened(conversation);
    const { client } = conversation;
    history.replaceState(null, '', `#${conversation.record.id}`);
    this.#transcript = new Transcript(
      conversation,
      {
        edit: (id, text) => void this.#forks.editMessage(id, text),
        branch: (id) => {
          this.#forks.openBranch(conversation, id);
          this.#frame.showNotice('New branch. It shares the conversation up to this message.');
        },
        regenerate: () => void this.#forks.regenerate(),
        switchVersion: (id, position, direction) => {
          this.#forks.switchVersion(id, position, direction);
        },
        submitToolResult: (call, output) =>
          void this.#ensureConnected().then((connected) => connected?.submitToolResult(call, output)),
      },
      this.#frame.scroller,
    );
    this.#frame.scroller.replaceChildren(this.#welcome, this.#transcript.element);
    this.#drawWelcome();
    const panel = new MetricsPanel(conversation);
    this.#frame.panel = panel.element;
    this.#panel = panel;
    this.#composer.text = conversation.record.draft;
    conversation.onEventRefused = (refused) => {
      this.#showRefusal(refused);
    };
    conversation.onResponseStatusChange = () => {
      this.#onConversationChange(conversation);
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
    if (conversation.isEmpty) this.#frame.scroller.scrollTop = 0;
    else this.#transcript.scrollToEnd();
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

  #renameConversation(conversation: string, title: string): void {
    const current = this.#conversation;
    current?.save();
    renameConversation(conversation, title);
    if (current && conversationOf(current.record) === conversation) current.rename(title);
    this.#drawSidebar();
  }

  #exportConversation({ id, conversation, title }: ConversationSummary, format: ExportFormat): void {
    this.#conversation?.save();
    const stored = loadConversation(id);
    if (!stored) return;
    const model = stored.model ?? this.#models[0]?.id ?? null;
    if (format === 'markdown') {
      download(`${fileNameOf(title)}.md`, 'text/markdown', toMarkdown(stored, model));
    } else {
      download(`${fileNameOf(title)}.json`, 'application/json', toJson(stored, loadVersions(conversation), model));
    }
  }

  async #importConversation(file: File): Promise<void> {
    const imported = await importConversation(file);
    this.#frame.closeDrawers();
    if (typeof imported === 'string') this.#frame.showNotice(imported);
    else this.#openStored(imported.id);
  }

  #deleteConversation(id: string): void {
    const conversation = this.#conversation;
    if (conversation && id === conversationOf(conversation.record)) {
      conversation.dispose();
      this.#conversation = null;
      this.#deletedConversations.delete(id);
      const next = listConversations()[0];
      if (!next || !this.#openStored(next.id)) this.#startConversation();
      this.#replacement = { id, conversation: this.#conversation };
    } else this.#deletedConversations.delete(id);
    this.#drawSidebar();
    this.#sidebar.focus(id);
  }

  #undoDelete(id: string): void {
    const restored = this.#deletedConversations.restore(id);
    this.#drawSidebar();
    this.#sidebar.focus(id);
    const replacement = this.#replacement;
    if (restored && id === replacement?.id && this.#conversation === replacement.conversation) {
      location.hash = restored.id;
    }
  }

  /** Another tab has stored something: draw what it changed, and take over a new name. */
  #onOtherTab(key: string, value: string | null): void {
    if (key === INDEX_STORAGE_KEY && value === null) {
      this.#onForgotten();
      return;
    }
    const conversation = this.#conversation;
    conversation?.onOtherTabStored(key);
    if (conversation && value !== null && key.endsWith(`.${conversation.record.id}`)) {
      const { title, renamed } = JSON.parse(value) as { title: string; renamed?: boolean };
      if (renamed && title !== conversation.record.title) conversation.rename(title);
    }
    if (key !== INDEX_STORAGE_KEY) return;
    const current = conversation && conversationOf(conversation.record);
    const others = listVersions().filter((one) => conversationOf(one) === current);
    if (others.length > 1) this.#transcript?.reloadVersions();
    this.#drawSidebar();
  }

  /** Another tab has forgotten all conversations: forget the open one too. */
  #onForgotten(): void {
    const conversation = this.#conversation;
    conversation?.discard();
    this.#conversation = null;
    if (conversation) deleteVersion(conversation.record.id); // stored between then and now
    this.#startConversation();
    this.#drawSidebar();
  }

  #send(response?: ResponseSettings): void {
    if (this.#conversation?.isClosed) this.#reconnect();
    const conversation = this.#conversation;
    if (!conversation) return;
    this.#frame.hideNotice();
    conversation.send(response);
    this.#composer.text = conversation.record.draft;
    this.#onConversationChange(conversation);
    this.#transcript?.redraw();
    this.#transcript?.scrollToEnd();
  }

  // ---------------------------------------------------------------- drawing

  #build(): void {
    this.#sidebar.menu.append(...this.#createMenu());
    this.#composer.extraButtons.append(...this.#speech.buttons);
    this.#frame.build({
      sidebar: this.#sidebar.element,
      foot: [this.#banner.element, this.#demonstrations.element, this.#composer.element],
      onPanelToggle: () => this.#panel?.redraw(),
      onResize: () => this.#transcript?.onResize(),
    });
  }

  /** Returns the controls of the page below the list of conversations. */
  #createMenu(): HTMLElement[] {
    const changeTheme = (): void => {
      switchTheme();
      this.#panel?.redraw();
    };
    const openSettings = (): void => {
      this.#frame.closeDrawers();
      this.#openSettings();
    };
    return [
      iconButton('settings', 'Settings', openSettings, 'Settings'),
      iconButton('sun', 'Theme: switch between light and dark', changeTheme, 'Theme'),
      this.#adminLink,
      this.#createDeveloperMenu(),
    ];
  }

  #createDeveloperMenu(): HTMLElement {
    const dropConnection = (): void => {
      this.#conversation?.client.reconnect('you dropped the connection');
      this.#frame.closeDrawers();
    };
    const showEvents = (): void => {
      this.#frame.openDrawer('panel');
      this.#panel?.showEvents();
    };
    const items = [
      { label: 'Drop the connection', action: dropConnection },
      { label: 'Show events', action: showEvents },
    ];
    return menuButton('Developer', items, 'code', 'Developer');
  }

  #drawWelcome(): void {
    const welcome = createWelcome((demonstration) => {
      this.#demonstrations.play(demonstration);
    });
    this.#welcome.replaceWith(welcome);
    this.#welcome = welcome;
  }

  #createForks(): Forks {
    const getConversation = (): ConversationController | null => this.#conversation;
    const getTranscript = (): Transcript | null => this.#transcript;
    return new Forks({
      get conversation() {
        return getConversation();
      },
      get transcript() {
        return getTranscript();
      },
      ensureConnected: () => this.#ensureConnected(),
      openConversation: (conversation, disposeAfter) => {
        this.#openConversation(conversation, disposeAfter);
      },
      openStored: (id) => this.#openStored(id),
      startConversation: () => {
        this.#startConversation();
      },
      drawSidebar: () => {
        this.#drawSidebar();
      },
    });
  }

  #createDemonstrations(): DemonstrationPlayer {
    const getConversation = (): ConversationController | null => this.#conversation;
    return new DemonstrationPlayer({
      get conversation() {
        return getConversation();
      },
      setDraft: (text) => {
        this.#composer.text = text;
        this.#conversation?.setDraft(text);
      },
      send: (response) => {
        this.#send(response);
      },
      branch: (itemId) => {
        if (this.#conversation) this.#forks.openBranch(this.#conversation, itemId);
      },
      startConversation: () => {
        this.#startConversation();
      },
      openConversation: (id) => {
        location.hash = id;
      },
      focusComposer: () => {
        this.#composer.field.focus();
      },
    });
  }

  #onConversationChange(conversation: ConversationController): void {
    this.#composer.isResponding = conversation.isResponding;
    const unsentCount = conversation.pendingMessages.length + conversation.queue.length;
    this.#frame.root.classList.toggle('empty', conversation.isEmpty && unsentCount === 0);
    this.#speech.onConversationChange();
  }

  #onConnectionStateChange(state: ConnectionState): void {
    this.#banner.show(state);
    this.#frame.phase = state.phase;
    this.#transcript?.redraw();
    if (state.phase === 'open' && this.#models.length === 0) void this.#loadModels();
  }

  #drawTitle(): void {
    this.#frame.title = this.#conversation?.record.title ?? '';
    this.#conversation?.save();
    this.#drawSidebar();
  }

  #drawSidebar(): void {
    const current = this.#conversation && conversationOf(this.#conversation.record);
    this.#sidebar.draw(current ?? '', this.#deletedConversations.summaries);
  }

  #showRefusal(refused: EventRefusedError): void {
    const ignoredCodes = ['response_cancel_not_active', 'input_text_buffer_commit_empty'];
    if (!ignoredCodes.includes(refused.code ?? '')) this.#frame.showNotice(describeRefusal(refused));
  }

  #handleKey(event: KeyboardEvent): void {
    if (document.querySelector('dialog[open]')) return;
    const typing = event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLInputElement;
    if (event.key === 'Escape' && this.#conversation?.isResponding) {
      event.preventDefault();
      this.#speech.stopSynthesis();
      void this.#conversation.cancelResponse();
    } else if (event.key === 'Escape') this.#frame.closeDrawers();
    else if (event.key === 'k' && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
      event.preventDefault();
      this.#frame.openDrawer('sidebar');
      this.#sidebar.focusSearch();
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
      model: conversation.model,
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
    if (model !== null && conversation.model !== null && model !== conversation.model) {
      this.#startConversation(settings, model);
    }
  }

  async #promptForApiKey(message: string): Promise<void> {
    if (this.#promptingForApiKey) return;
    this.#promptingForApiKey = true;
    apiKey.set('');
    const { key, isForgetting } = await promptForApiKey(message, listConversations().length);
    this.#promptingForApiKey = false;
    if (isForgetting) this.#forgetConversations();
    if (key === null) return;
    apiKey.set(key);
    this.#reconnect();
    void this.#loadModels();
  }

  #forgetConversations(): void {
    this.#conversation?.discard();
    this.#conversation = null;
    forgetConversations();
    this.#startConversation();
    this.#drawSidebar();
  }

  async #loadModels(): Promise<void> {
    this.#models = await fetchModels().catch(() => []);
    this.#adminLink.hidden = this.#models.length === 0 || !(await isOperator());
  }
}

