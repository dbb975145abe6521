/** Views of the transcript's items: messages with their actions, and tool calls. */

import { type FunctionCallItem, type Item, type MessageItem, textOf } from '../client/index.js';
import { copyText, flashDone, h, icon, iconButton } from './dom.js';
import { sampleResult } from './example_tools.js';
import { formatCount, formatMs } from './format.js';
import { StreamingMarkdown } from './markdown.js';
import type { MissingResponse } from './response_status.js';
import type { TurnMetrics } from './storage.js';

export interface MessageActions {
  edit(id: string, text: string): void;
  branch(id: string): void;
  regenerate(): void;
  submitToolResult(call: FunctionCallItem, output: string): void;
}

/** State of a message that its view draws besides the text. */
export interface MessageState {
  /** Whether the message is still being generated. */
  open: boolean;
  metrics: TurnMetrics | null;
  /** Whether this is the last item of the conversation. */
  last: boolean;
  /** Why the message is incomplete; empty if it is complete or still being generated. */
  endNote: string;
  /** Result of a tool call; null if there is none yet. */
  output: string | null;
}

export interface ItemView {
  readonly element: HTMLElement;
  draw(item: Item, state: MessageState): void;
}

export function createView(item: Item, actions: MessageActions): ItemView {
  return item.type === 'function_call' ? new ToolCallView(actions) : new MessageView(actions);
}

class MessageView implements ItemView {
  readonly element: HTMLElement;
  readonly #actions: MessageActions;
  readonly #role = h('span', { class: 'role' });
  readonly #usage = h('span', { class: 'usage' });
  readonly #body = h('div', { class: 'body' });
  readonly #endNote = h('p', { class: 'ending note' });
  readonly #buttonRow = h('div', { class: 'actions' });
  readonly #markdown = new StreamingMarkdown(this.#body);
  #item: MessageItem | null = null;
  #drawnText = '';
  #drawnFrame = '';
  #editing = false;

  constructor(actions: MessageActions) {
    this.#actions = actions;
    const margin = h('div', { class: 'margin' }, this.#role, this.#usage);
    const content = h('div', { class: 'content' }, this.#body, this.#endNote, this.#buttonRow);
    this.element = h('article', {}, margin, content);
  }

  draw(item: Item, state: MessageState): void {
    if (item.type !== 'message') return;
    this.#item = item;
    this.#drawFrame(item, state);
    if (this.#editing) return;
    const text = textOf(item);
    const drawn = `${String(state.open)}${text.length}${text.slice(-16)}`;
    if (drawn === this.#drawnText) return;
    this.#drawnText = drawn;
    if (item.role === 'assistant') {
      this.#markdown.draw(text, !state.open);
      this.#body.classList.toggle('waiting', state.open && !text);
    } else this.#body.textContent = text;
  }

  #drawFrame(item: MessageItem, state: MessageState): void {
    const { metrics } = state;
    const frame = JSON.stringify([item.role, state.endNote, state.open, state.last, metrics?.id]);
    if (frame === this.#drawnFrame) return;
    this.#drawnFrame = frame;
    this.element.className = `message ${item.role}`;
    this.element.classList.toggle('open', state.open);
    const names = { user: 'You', assistant: 'Model', system: 'System' };
    this.#role.textContent = names[item.role];
    this.element.setAttribute('aria-label', names[item.role]);
    this.#usage.textContent = metrics && metrics.ttft !== null ? formatMs(metrics.ttft) : '';
    this.#usage.title = metrics ? usageTitle(metrics) : '';
    this.#endNote.textContent = state.endNote;
    this.#endNote.hidden = !state.endNote;
    this.element.classList.toggle('cut', state.endNote !== '');
    this.#buttonRow.replaceChildren(...this.#buttons(item, state));
    this.#buttonRow.hidden = state.open;
  }

  #buttons(item: MessageItem, state: MessageState): Node[] {
    const copy = iconButton('copy', 'Copy', () => {
      void copyText(this.#item ? textOf(this.#item) : '').then(() => {
        flashDone(copy);
      });
    });
    const branch = iconButton('branch', 'Branch from here', () => {
      this.#actions.branch(item.id);
    });
    const edit = iconButton('edit', 'Edit and resend', () => {
      this.#edit();
    });
    const regenerate = iconButton('again', 'Regenerate', () => {
      this.#actions.regenerate();
    });
    if (item.role === 'user') return [edit, branch, copy];
    return state.last ? [regenerate, branch, copy] : [branch, copy];
  }

  #edit(): void {
    const item = this.#item;
    if (!item || this.#editing) return;
    this.#editing = true;
    const field = h('textarea', { 'aria-label': 'Edit message', class: 'edit', rows: '3' });
    field.value = textOf(item);
    const done = (): void => {
      this.#editing = false;
      this.#drawnText = '';
      this.#body.textContent = textOf(this.#item ?? item);
      this.#buttonRow.hidden = false;
    };
    const save = (): void => {
      const text = field.value.trim();
      done();
      if (text && text !== textOf(item)) this.#actions.edit(item.id, text);
    };
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        done();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    });
    const saveButton = h('button', { type: 'button', class: 'primary', onclick: save }, 'Send');
    const cancelButton = h('button', { type: 'button', onclick: done }, 'Cancel');
    const note = h('span', { class: 'note' }, 'Later messages will be deleted.');
    this.#body.replaceChildren(field, h('div', { class: 'row' }, saveButton, cancelButton, note));
    this.#buttonRow.hidden = true;
    field.focus();
  }
}

class ToolCallView implements ItemView {
  readonly element: HTMLElement;
  readonly #actions: MessageActions;
  readonly #name = h('code', { class: 'tool-name' });
  readonly #arguments = h('pre', { class: 'arguments', tabindex: '0', 'aria-label': 'Arguments' });
  readonly #result = h('div', { class: 'result' });
  #drawnFrame = '';

  constructor(actions: MessageActions) {
    this.#actions = actions;
    const head = h('div', { class: 'tool-head' }, 'called ', this.#name);
    const margin = h('div', { class: 'margin' }, h('span', { class: 'role' }, 'Tool'));
    const content = h('div', { class: 'content' }, head, this.#arguments, this.#result);
    this.element = h('article', { class: 'message call', 'aria-label': 'Tool call' }, margin, content);
  }

  draw(item: Item, state: MessageState): void {
    if (item.type !== 'function_call') return;
    this.#name.textContent = item.name;
    this.#arguments.textContent = prettyJson(item.arguments);
    const open = item.status === 'in_progress';
    this.element.classList.toggle('open', open);
    const frame = JSON.stringify([open, state.endNote, state.output]);
    if (frame === this.#drawnFrame) return;
    this.#drawnFrame = frame;
    if (open) this.#result.replaceChildren();
    else if (state.endNote) this.#result.replaceChildren(h('p', { class: 'ending note' }, state.endNote));
    else if (state.output === null) this.#drawResultForm(item);
    else {
      const head = h('div', { class: 'tool-head' }, 'result');
      this.#result.replaceChildren(head, h('pre', { class: 'output' }, prettyJson(state.output)));
    }
  }

  #drawResultForm(call: FunctionCallItem): void {
    const label = `Result of ${call.name}`;
    const field = h('textarea', { 'aria-label': label, rows: '3', spellcheck: 'false' });
    field.value = sampleResult(call);
    const send = (): void => {
      this.#actions.submitToolResult(call, field.value);
    };
    field.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      send();
    });
    const button = h('button', { type: 'button', class: 'primary', onclick: send }, 'Submit result');
    const note = h('span', { class: 'note' }, 'You act as the tool: edit this result as you like.');
    this.#result.replaceChildren(field, h('div', { class: 'row' }, button, note));
  }
}

/** View of a message that the server has not acknowledged. */
export function unsentView(text: string): HTMLElement {
  const margin = h('div', { class: 'margin' }, h('span', { class: 'role' }, 'You'));
  const note = h('span', { class: 'note' }, icon('again'), ' sending');
  const content = h('div', { class: 'content' }, h('div', { class: 'body' }, text), note);
  return h('article', { class: 'message user unsent', 'aria-label': 'You' }, margin, content);
}

/** Why a response is missing or incomplete, and a button that requests it. */
export function missingResponseView(missing: MissingResponse, retry: () => void): HTMLElement {
  const button = h('button', { type: 'button', onclick: retry }, missing.action);
  return h('div', { class: 'missing-response', role: 'alert' }, h('span', {}, missing.reason), button);
}

function usageTitle(metrics: TurnMetrics): string {
  const { ttft, itl, tokens, prefilled, reused } = metrics;
  const after = itl === null ? '' : `, then ${formatMs(itl)} per token`;
  const time = ttft === null ? '' : `First token after ${formatMs(ttft)}${after}. `;
  return (
    `${time}${formatCount(tokens)} tokens; ` +
    `${formatCount(prefilled)} prefilled, ${formatCount(reused)} reused from the KV cache.`
  );
}

function prettyJson(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
