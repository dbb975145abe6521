/** Transcript of a conversation: its messages in order, the last one updated as it is generated. */

import type { Item } from '../client/index.js';
import type { ConversationController } from './conversation_controller.js';
import { h, throttleToFrame } from './dom.js';
import { nameOfModel } from './format.js';
import {
  createItemView,
  type ItemView,
  type MessageHandler,
  type MessageState,
  missingResponseView,
} from './message_view.js';
import { incompleteNote } from './response_status.js';
import { ThoughtView } from './thoughts.js';
import { UnsentMessageViews } from './unsent_messages.js';
import { type SwitchDirection, type SwitchVersion, VersionSwitchers } from './version_switcher.js';

/** Distance from the end, in pixels, within which the transcript keeps scrolling with new text. */
const NEAR_END_PX = 80;
/** Messages drawn at first, and added each time the reader scrolls up to the earliest one. */
const MESSAGES_PER_PAGE = 60;

export class Transcript {
  readonly element = h('div', { class: 'transcript', role: 'log', 'aria-label': 'Conversation' });
  readonly #conversation: ConversationController;
  readonly #handler: MessageHandler;
  readonly #scroller: HTMLElement;
  readonly #views = new Map<string, ItemView>();
  readonly #earlierButton = h(
    'button',
    { type: 'button', class: 'earlier', hidden: true, onclick: () => this.#showEarlier() },
    'Earlier messages',
  );
  readonly #unsentViews = new UnsentMessageViews();
  /** By the id of the response. */
  readonly #thoughtViews = new Map<string, ThoughtView>();
  readonly #versionSwitchers: VersionSwitchers;
  readonly #tail = h('div', { class: 'tail' });
  readonly #scheduleDraw = throttleToFrame(() => {
    this.#draw();
  });
  #dirtyItemIds = new Set<string>();
  #allDirty = true;
  #autoScroll = true;
  #shownCount = MESSAGES_PER_PAGE;

  constructor(
    conversation: ConversationController,
    actions: MessageHandler & { switchVersion: SwitchVersion },
    scroller: HTMLElement,
  ) {
    this.#conversation = conversation;
    this.#handler = actions;
    this.#versionSwitchers = new VersionSwitchers(conversation, actions.switchVersion);
    this.#scroller = scroller;
    this.element.append(this.#earlierButton, this.#tail);
    new IntersectionObserver(
      ([earlierEntry]) => {
        if (earlierEntry?.isIntersecting && !this.#autoScroll) this.#showEarlier();
      },
      { root: scroller, rootMargin: '400px' },
    ).observe(this.#earlierButton);
    conversation.client.onConversationChange((change) => {
      const isOneItem = change.kind === 'item_updated' || change.kind === 'text_appended';
      if (isOneItem) this.#dirtyItemIds.add(change.item.id);
      else this.#allDirty = true;
      this.#scheduleDraw();
    });
    // Long messages are drawn in parts, and formulas when their module is loaded.
    new ResizeObserver(() => {
      this.#followEnd();
    }).observe(this.element);
    scroller.addEventListener('scroll', () => {
      const { scrollTop, scrollHeight, clientHeight } = scroller;
      this.#autoScroll = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    });
  }

  /** Schedule a full redraw. */
  redraw(): void {
    this.#allDirty = true;
    this.#scheduleDraw();
  }

  /** Scroll to the end, and stay there as text arrives. */
  scrollToEnd(): void {
    this.element.querySelector('.found')?.classList.remove('found');
    this.#autoScroll = true;
    this.#scheduleDraw();
  }

  /** Stay at the end, if the transcript is there, when its visible height has changed. */
  onResize(): void {
    this.#scheduleDraw();
  }

  /** Scroll to a message. With `focus`, focus that button of its version switcher. */
  reveal(itemId: string, focus?: SwitchDirection): void {
    const { items } = this.#conversation.client.conversation;
    this.#shownCount = Math.max(this.#shownCount, items.length - items.findIndex(({ id }) => id === itemId));
    this.element.querySelector('.found')?.classList.remove('found');
    this.#autoScroll = false;
    this.#drawAll();
    const element = this.#views.get(itemId)?.element ?? this.#tail;
    element.scrollIntoView({ block: 'center' });
    if (focus === undefined) {
      element.classList.add('found');
      return;
    }
    const buttons = [...element.querySelectorAll<HTMLButtonElement>('.versions button:enabled')];
    (buttons.find(({ dataset }) => dataset.direction === focus) ?? buttons[0])?.focus();
  }

  /** Load the other versions again. */
  reloadVersions(): void {
    this.#versionSwitchers.reload();
    this.redraw();
  }

  /** Draw earlier messages without moving those in view. */
  #showEarlier(): void {
    if (this.#earlierButton.hidden) return;
    this.#shownCount += MESSAGES_PER_PAGE;
    const { scrollHeight, scrollTop } = this.#scroller;
    this.#drawAll();
    this.#scroller.scrollTop = scrollTop + this.#scroller.scrollHeight - scrollHeight;
  }

  #draw(): void {
    if (this.#allDirty) this.#drawAll();
    else for (const id of this.#dirtyItemIds) this.#drawOne(id);
    this.#allDirty = false;
    this.#dirtyItemIds = new Set();
    this.#followEnd();
  }

  /** Scroll to the end if the reader is there, but not to the end of the welcome screen. */
  #followEnd(): void {
    if (this.#autoScroll && !this.#conversation.isEmpty) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #drawAll(): void {
    const { items } = this.#conversation.client.conversation;
    const messages = items.filter(
      (item) => item.type !== 'function_call_output' && !this.#conversation.isDiscarded(item.id),
    );
    const shown = messages.slice(-this.#shownCount);
    this.#earlierButton.hidden = shown.length === messages.length;
    const shownIds = new Set(shown.map((item) => item.id));
    for (const [id, view] of this.#views) {
      if (shownIds.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
    const outputs = new Map(
      items
        .filter((item) => item.type === 'function_call_output')
        .map((item) => [item.call_id, item.output]),
    );
    let before: Node = this.#tail;
    for (const item of shown.toReversed()) {
      const view = this.#views.get(item.id) ?? createItemView(item, this.#handler);
      this.#views.set(item.id, view);
      view.element.dataset.id = item.id;
      view.draw(item, this.#stateOf(item, outputs, item === shown.at(-1)));
      if (view.element.nextSibling !== before) this.element.insertBefore(view.element, before);
      before = view.element;
    }
    const switchers = this.#versionSwitchers.draw(items.map((item) => item.id));
    for (const [position, item] of items.entries()) {
      const element = this.#views.get(item.id)?.element;
      if (element) replaceSwitcher(element, switchers.get(position));
    }
    replaceChildren(this.#tail, [...this.#tailNodes(), switchers.get(items.length)]);
  }

  #drawOne(id: string): void {
    const { items } = this.#conversation.client.conversation;
    const item = this.#conversation.client.conversation.findItem(id);
    const view = this.#views.get(id);
    if (item && view) view.draw(item, this.#stateOf(item, new Map(), item === items.at(-1)));
  }

  #stateOf(item: Item, outputs: Map<string, string>, isLast: boolean): MessageState {
    const { conversation } = this.#conversation.client;
    const activeTurn = conversation.activeTurn;
    const { shown } = this.#conversation;
    const shownChars = shown?.itemId === item.id ? shown.chars : null;
    const isWritten = !activeTurn?.items.includes(item.id) || item.status === 'completed';
    const isGenerating = !isWritten || shownChars !== null;
    const turn = isGenerating ? undefined : conversation.turnOf(item.id);
    const isResponse = turn && item.type === 'message' && item.role === 'assistant';
    const metrics = isResponse ? this.#conversation.metricsOf(turn.id) : undefined;
    const note = !isGenerating && item.status === 'incomplete' ? incompleteNote(turn) : '';
    const output = item.type === 'function_call' ? (outputs.get(item.call_id) ?? null) : null;
    return {
      isGenerating,
      shownChars,
      metrics: metrics ?? null,
      isLast: isLast && !isGenerating,
      incompleteNote: note,
      output,
      thought: this.#thoughtBefore(item),
      model: nameOfModel(this.#conversation.model),
    };
  }

  /** Returns what the model thought before an item, if the item is the first of its response. */
  #thoughtBefore(item: Item): HTMLElement | null {
    const turn = this.#conversation.client.conversation.turnOf(item.id);
    return turn?.items[0] === item.id ? this.#drawThought(turn.id) : null;
  }

  #drawThought(responseId: string): HTMLElement | null {
    const thought = this.#conversation.thoughtOf(responseId);
    if (thought === null) return null;
    const hasEnded = this.#conversation.client.conversation.activeTurn?.id !== responseId;
    const view = this.#thoughtViews.get(responseId) ?? new ThoughtView();
    this.#thoughtViews.set(responseId, view);
    view.draw(thought, hasEnded);
    return view.element;
  }

  /** Returns what is drawn below the last message: unacknowledged messages, a pending response, or why
   * the response is missing. */
  #tailNodes(): Node[] {
    const { pendingMessages: pending, queue, client } = this.#conversation;
    const isConnected = client.state.value.phase === 'open';
    const takeBack = (id: string): void => this.#conversation.takeBack(id);
    const nodes: Node[] = this.#unsentViews.draw({ pending, queue, isConnected, takeBack });
    const { activeTurn } = this.#conversation.client.conversation;
    if (activeTurn?.items.length === 0) {
      const thought = this.#drawThought(activeTurn.id);
      if (thought !== null) nodes.push(thought);
      nodes.push(h('p', { class: 'pending', 'aria-label': 'Generating a response' }));
    }
    if (this.#conversation.isInterrupted) {
      const text = 'The model is restarting. The response will continue from here.';
      nodes.push(h('p', { class: 'interrupted note', role: 'status' }, text));
    }
    const missing = this.#conversation.missingResponse;
    if (missing) nodes.push(missingResponseView(missing, () => this.#conversation.retryResponse()));
    return nodes;
  }
}

/** Replace the version switcher of a message. */
function replaceSwitcher(message: HTMLElement, switcher: HTMLElement | undefined): void {
  const drawn = message.querySelector(':scope > .versions');
  if (drawn === (switcher ?? null)) return;
  drawn?.remove();
  if (switcher) message.append(switcher);
}

/** Replace the children of an element, unless they are the same, which keeps the focus. */
function replaceChildren(element: HTMLElement, nodes: (Node | undefined)[]): void {
  const children = nodes.filter((node) => node !== undefined);
  const isSame =
    children.length === element.childNodes.length &&
    children.every((child, i) => child === element.childNodes[i]);
  if (!isSame) element.replaceChildren(...children);
}
