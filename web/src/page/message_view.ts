/** Views of the transcript's items: messages with their actions, and tool calls. */

import { type FunctionCallItem, type Item, type MessageItem, textOf } from '../client/index.js';
import { BoundedText } from './bounded_text.js';
import { copyText, flashCheckMark, h, iconButton } from './dom.js';
import { sampleResult } from './example_tools.js';
import { formatMs } from './format.js';
import { StreamingMarkdown } from './markdown/streaming_markdown.js';
import type { MissingResponse } from './response_status.js';
import type { TurnMetrics } from './storage.js';
import { countTokens, describeTimes, describeTokens } from './turn_figures.js';

export interface MessageHandler {
  edit(id: string, text: string): void;
  branch(id: string): void;
  regenerate(): void;
  submitToolResult(call: FunctionCallItem, output: string): void;
}

/** State of a message that its view draws besides the text. */
export interface MessageState {
  /** Whether the message is still being generated, or shown. */
  isGenerating: boolean;
  /** Number of UTF-16 units that are shown; null: all. */
  shownChars: number | null;
  metrics: TurnMetrics | null;
  /** Whether this is the last item of the conversation. */
  isLast: boolean;
  /** Why the message is incomplete; empty if it is complete or still being generated. */
  incompleteNote: string;
  /** Result of a tool call; null if there is none yet. */
  output: string | null;
  /** What the model thought before this message or call; null: nothing, or it is shown elsewhere. */
  thought: HTMLElement | null;
  /** Name of the model. */
  model: string;
}

export interface ItemView {
  readonly element: HTMLElement;
  draw(item: Item, state: MessageState): void;
}

export function createItemView(item: Item, handler: MessageHandler): ItemView {
  return item.type === 'function_call' ? new ToolCallView(handler) : new MessageView(handler);
}

class MessageView implements ItemView {
  readonly element: HTMLElement;
  readonly #handler: MessageHandler;
  readonly #role = h('h2', { class: 'role' });
  readonly #usage = h('span', { class: 'usage' });
  readonly #content = h('div', { class: 'content' });
  readonly #body = h('div', { class: 'body' });
  readonly #incompleteNote = h('p', { class: 'ending note' });
  readonly #buttonRow = h('div', { class: 'actions' });
  readonly #markdown = new StreamingMarkdown(this.#body);
  readonly #text = new BoundedText(this.#body);
  #item: MessageItem | null = null;
  /** Keys of what is drawn; only a change is drawn again. */
  #drawnText = '';
  #drawnMetadata = '';
  #isEditing = false;

  constructor(handler: MessageHandler) {
    this.#handler = handler;
    const byline = h('div', { class: 'byline' }, this.#role, this.#usage);
    this.#content.append(this.#body, this.#incompleteNote);
    this.element = h('article', {}, byline, this.#content);
  }

  draw(item: Item, state: MessageState): void {
    if (item.type !== 'message') return;
    this.#item = item;
    showThought(this.#content, state.thought);
    this.#drawMetadata(item, state);
    if (this.#isEditing) return;
    const text = textOf(item).slice(0, state.shownChars ?? undefined);
    const key = `${String(state.isGenerating)}${text.length}${text.slice(-16)}`;
    if (key === this.#drawnText) return;
    this.#drawnText = key;
    if (item.role === 'assistant') {
      this.#markdown.draw(text, !state.isGenerating);
      this.#body.classList.toggle('waiting', state.isGenerating && !text);
    } else this.#text.show(text);
  }

  #drawMetadata(item: MessageItem, state: MessageState): void {
    const { metrics } = state;
    const { incompleteNote, isGenerating, isLast, model } = state;
    const key = JSON.stringify([item.role, incompleteNote, isGenerating, isLast, metrics?.id, model]);
    if (key === this.#drawnMetadata) return;
    this.#drawnMetadata = key;
    this.element.classList.add('message', item.role); // beside those of others, such as of a search
    this.element.classList.toggle('open', isGenerating);
    const name = { user: 'You', assistant: model, system: 'System' }[item.role];
    this.#role.textContent = name;
    this.element.setAttribute('aria-label', name);
    this.#usage.textContent = metrics && metrics.ttft !== null ? formatMs(metrics.ttft) : '';
    this.#usage.title = metrics ? usageTitle(metrics) : '';
    this.#incompleteNote.textContent = incompleteNote;
    this.#incompleteNote.hidden = !incompleteNote;
    this.element.classList.toggle('cut', incompleteNote !== '');
    this.#buttonRow.replaceChildren(...this.#buttons(item, state));
    // Below a response, and beside a user message.
    if (item.role === 'assistant') this.#content.after(this.#buttonRow);
    else this.#content.append(this.#buttonRow);
    this.#buttonRow.hidden = isGenerating;
  }

  #buttons(item: MessageItem, state: MessageState): Node[] {
    const copy = iconButton('copy', 'Copy', () => void this.#copy(copy), 'Copy');
    const branch = iconButton('branch', 'Branch from here', () => this.#handler.branch(item.id), 'Branch');
    const edit = iconButton('edit', 'Edit and resend', () => this.#edit(), 'Edit');
    const regenerate = iconButton('refresh', 'Regenerate', () => this.#handler.regenerate(), 'Regenerate');
    if (item.role === 'user') return [edit, branch, copy];
    return state.isLast ? [copy, regenerate, branch] : [copy, branch];
  }

  async #copy(button: HTMLElement): Promise<void> {
    await copyText(this.#item ? textOf(this.#item) : '');
    flashCheckMark(button);
  }

  #edit(): void {
    const item = this.#item;
    if (!item || this.#isEditing) return;
    this.#isEditing = true;
    const field = h('textarea', { 'aria-label': 'Edit message', class: 'edit', rows: '3' });
    field.value = textOf(item);
    const stopEditing = (): void => {
      this.#isEditing = false;
      this.#drawnText = '';
      this.#text.clear();
      this.#text.show(textOf(this.#item ?? item));
      this.#buttonRow.hidden = false;
    };
    const saveEdit = (): void => {
      const text = field.value.trim();
      stopEditing();
      if (text && text !== textOf(item)) this.#handler.edit(item.id, text);
    };
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        stopEditing();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        saveEdit();
      }
    });
    const saveButton = h('button', { type: 'button', class: 'primary', onclick: saveEdit }, 'Send');
    const cancelButton = h('button', { type: 'button', onclick: stopEditing }, 'Cancel');
    const note = h('span', { class: 'note' }, 'The earlier version is kept.');
    this.#body.replaceChildren(field, h('div', { class: 'row' }, saveButton, cancelButton, note));
    this.#buttonRow.hidden = true;
    field.focus();
  }
}

class ToolCallView implements ItemView {
  readonly element: HTMLElement;
  readonly #handler: MessageHandler;
  readonly #name = h('code', { class: 'tool-name' });
  readonly #arguments = h('pre', { class: 'arguments', tabindex: '0', 'aria-label': 'Arguments' });
  readonly #argumentText = new BoundedText(this.#arguments);
  readonly #result = h('div', { class: 'result' });
  readonly #content = h('div', { class: 'content' });
  #drawnState = '';

  constructor(handler: MessageHandler) {
    this.#handler = handler;
    const head = h('div', { class: 'tool-head' }, 'Called ', this.#name);
    const byline = h('div', { class: 'byline' }, h('h2', { class: 'role' }, 'Tool'));
    this.#content.append(head, this.#arguments, this.#result);
    this.element = h('article', { class: 'message call', 'aria-label': 'Tool call' }, byline, this.#content);
  }

  draw(item: Item, state: MessageState): void {
    if (item.type !== 'function_call') return;
    showThought(this.#content, state.thought);
    this.#name.textContent = item.name;
    this.#argumentText.show(prettyJson(item.arguments));
    const isGenerating = item.status === 'in_progress';
    this.element.classList.toggle('open', isGenerating);
    const key = JSON.stringify([isGenerating, state.incompleteNote, state.output]);
    if (key === this.#drawnState) return;
    this.#drawnState = key;
    if (isGenerating) this.#result.replaceChildren();
    else if (state.incompleteNote) {
      this.#result.replaceChildren(h('p', { class: 'ending note' }, state.incompleteNote));
    } else if (state.output === null) this.#drawResultForm(item);
    else {
      const head = h('div', { class: 'tool-head' }, 'Result');
      const output = h('pre', { class: 'output' });
      new BoundedText(output).show(prettyJson(state.output));
      this.#result.replaceChildren(head, output);
    }
  }

  #drawResultForm(call: FunctionCallItem): void {
    const label = `Result of ${call.name}`;
    const field = h('textarea', { 'aria-label': label, rows: '3', spellcheck: 'false' });
    field.value = sampleResult(call);
    const send = (): void => {
      this.#handler.submitToolResult(call, field.value);
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

/** Put a thought above what follows it; moved, not drawn again, so that it stays open. */
function showThought(content: HTMLElement, thought: HTMLElement | null): void {
  if (thought !== null && content.firstChild !== thought) content.prepend(thought);
}

/** Why a response is missing or incomplete, and a button that requests it. */
export function missingResponseView(missing: MissingResponse, retry: () => void): HTMLElement {
  const button = h('button', { type: 'button', onclick: retry }, missing.action);
  return h('div', { class: 'missing-response', role: 'alert' }, h('span', {}, missing.reason), button);
}

function usageTitle(metrics: TurnMetrics): string {
  const times = metrics.ttft === null ? '' : `; ${describeTimes(metrics)}`;
  return `${countTokens(metrics.tokens)}${times}. Read: ${describeTokens(metrics)}.`;
}

function prettyJson(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
