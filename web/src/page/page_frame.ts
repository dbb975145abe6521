/** Frame of the page: the header with the title and the state of the connection, the notice above the composer,
 * and the sidebar and the panel, which are drawers over the conversation on a small screen. Knows nothing of
 * what is in them. */

import type { ConnectionState } from '../client/index.js';
import { h, iconButton } from './dom.js';
import { type Drawer, Drawers } from './drawers.js';
import { createMark } from './mark.js';

const NOTICE_MS = 8000;

const PHASE_LABELS: Record<ConnectionState['phase'], string> = {
  idle: 'Not connected',
  connecting: 'Connecting',
  open: 'Connected',
  waiting: 'Not connected',
  closed: 'Not connected',
};

export interface FrameParts {
  sidebar: HTMLElement;
  /** What is above the composer, from top to bottom; the notice is placed after the first. */
  foot: [first: HTMLElement, ...others: HTMLElement[]];
  /** Called when the panel has been opened or closed. */
  onPanelToggle: () => void;
  /** Called when the height of the scroller has changed. */
  onResize: () => void;
}

export class PageFrame {
  readonly root: HTMLElement;
  /** Scrolls the conversation. */
  readonly scroller = h('div', { class: 'scroller', tabindex: '-1' });
  readonly #title = h('h1', { class: 'title' });
  readonly #connectionStatus = h('span', { class: 'status' });
  readonly #notice = h('div', { class: 'notice', role: 'alert', hidden: true });
  #panel: HTMLElement = h('aside', { class: 'panel' });
  #drawers: Drawers | null = null;
  #noticeTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(root: HTMLElement) {
    this.root = root;
  }

  /** Build the frame around its parts. */
  build({ sidebar, foot: [first, ...others], onPanelToggle, onResize }: FrameParts): void {
    const { root } = this;
    const sidebarButton = iconButton('list', 'Conversations', () => undefined);
    const panelButton = iconButton('panel', 'Live metrics', () => undefined, 'Metrics');
    const brand = h(
      'a',
      { class: 'brand', href: './', 'aria-label': 'Continuo: new conversation' },
      createMark(),
      'Continuo',
    );
    const header = h('header', { class: 'top' }, sidebarButton, brand, this.#title, this.#connectionStatus, panelButton);
    const foot = h('div', { class: 'foot' }, first, this.#notice, ...others);
    const main = h('main', {}, this.scroller, foot);
    new ResizeObserver(() => {
      // The composer leaves the same room for the scrollbar as the answers.
      main.style.setProperty('--scrollbar', `${this.scroller.offsetWidth - this.scroller.clientWidth}px`);
      onResize();
    }).observe(this.scroller);
    root.className = 'app';
    const buttons = { sidebar: sidebarButton, panel: panelButton };
    this.#drawers = new Drawers({ root, content: [this.scroller, foot], buttons, onPanelToggle });
    root.append(header, this.#drawers.scrim, sidebar, main, this.#panel);
  }

  set title(title: string) {
    this.#title.textContent = title || 'New conversation';
    document.title = title ? `${title} · Continuo` : 'Continuo';
  }

  set phase(phase: ConnectionState['phase']) {
    this.#connectionStatus.textContent = PHASE_LABELS[phase];
    this.#connectionStatus.dataset.phase = phase;
  }

  /** Show another panel. */
  set panel(panel: HTMLElement) {
    this.#panel.replaceWith(panel);
    this.#panel = panel;
  }

  /** Show the sidebar or the panel. */
  openDrawer(drawer: Drawer): void {
    this.#drawers?.open(drawer);
  }

  /** Hide the sidebar and the panel where they cover the conversation. */
  closeDrawers(): void {
    this.#drawers?.close();
  }

  /** Show a sentence above the composer for a while. */
  showNotice(text: string): void {
    clearTimeout(this.#noticeTimer);
    this.#notice.textContent = text;
    this.#notice.hidden = false;
    this.#noticeTimer = setTimeout(() => {
      this.hideNotice();
    }, NOTICE_MS);
  }

  hideNotice(): void {
    this.#notice.hidden = true;
  }
}
