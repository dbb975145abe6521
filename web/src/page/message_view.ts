/** One message of the transcript, and what can be done with it. */

import { type FunctionCallItem, type Item, type MessageItem, textOf } from '../client/index.js';
import { copyText, h, icon, iconButton, tick } from './dom.js';
import { Growing } from './markdown.js';
import type { Unanswered } from './response_status.js';
import type { TurnMetrics } from './storage.js';
import { count, ms } from './format.js';
import { sampleResult } from './example_tools.js';

export interface Acts {
  edit(id: string, text: string): void;
  branch(id: string): void;
  regenerate(): void;
  answer(call: FunctionCallItem, output: string): void;
}

/** What a message looks like besides its text. */
export interface Look {
  /** Whether text may still come. */
  open: boolean;
  metrics: TurnMetrics | null;
  /** The last answer of the conversation. */
  last: boolean;
  /** Why there is no more of it; empty: it is whole, or there may be. */
  cut: string;
  /** What a tool has returned. */
  output: string | null;
}

export interface View {
  readonly element: HTMLElement;
  draw(item: Item, look: Look): void;
}

export function viewOf(item: Item, acts: Acts): View {
  return item.type === 'function_call' ? new CallView(acts) : new MessageView(acts);
}

class MessageView implements View {
  readonly element: HTMLElement;
  readonly #acts: Acts;
  readonly #who = h('span', { class: 'who' });
  readonly #cost = h('span', { class: 'cost' });
  readonly #body = h('div', { class: 'body' });
  readonly #cut = h('p', { class: 'ending note' });
  readonly #actions = h('div', { class: 'actions' });
  readonly #growing = new Growing(this.#body);
  #item: MessageItem | null = null;
  #drawn = '';
  #shape = '';
  #editing = false;

  constructor(acts: Acts) {
    this.#acts = acts;
    const margin = h('div', { class: 'margin' }, this.#who, this.#cost);
    this.element = h('article', {}, margin, h('div', { class: 'said' }, this.#body, this.#cut, this.#actions));
  }

  draw(item: Item, look: Look): void {
    if (item.type !== 'message') return;
    this.#item = item;
    this.#frame(item, look);
    if (this.#editing) return;
    const text = textOf(item);
    const drawn = `${String(look.open)}${text.length}${text.slice(-16)}`;
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    if (item.role === 'assistant') {
      this.#growing.draw(text, !look.open);
      this.#body.classList.toggle('waiting', look.open && !text);
    } else this.#body.textContent = text;
  }

  #frame(item: MessageItem, look: Look): void {
    const { metrics } = look;
    const shape = JSON.stringify([item.role, look.cut, look.open, look.last, metrics?.id]);
    if (shape === this.#shape) return;
    this.#shape = shape;
    this.element.className = `message ${item.role}`;
    this.element.classList.toggle('open', look.open);
    const names = { user: 'You', assistant: 'Model', system: 'System' };
    this.#who.textContent = names[item.role];
    this.element.setAttribute('aria-label', names[item.role]);
    this.#cost.textContent = metrics && metrics.ttft !== null ? ms(metrics.ttft) : '';
    this.#cost.title = metrics ? costOf(metrics) : '';
    this.#cut.textContent = look.cut;
    this.#cut.hidden = !look.cut;
    this.element.classList.toggle('cut', look.cut !== '');
    this.#actions.replaceChildren(...this.#buttons(item, look));
    this.#actions.hidden = look.open;
  }

  #buttons(item: MessageItem, look: Look): Node[] {
    const copy = iconButton('copy', 'Copy', () => {
      void copyText(this.#item ? textOf(this.#item) : '').then(() => {
        tick(copy);
      });
    });
    const branch = iconButton('branch', 'Branch from here', () => {
      this.#acts.branch(item.id);
    });
    const edit = iconButton('edit', 'Edit and ask again', () => {
      this.#edit();
    });
    const again = iconButton('again', 'Answer again', () => {
      this.#acts.regenerate();
    });
    if (item.role === 'user') return [edit, branch, copy];
    return look.last ? [again, branch, copy] : [branch, copy];
  }

  #edit(): void {
    const item = this.#item;
    if (!item || this.#editing) return;
    this.#editing = true;
    const field = h('textarea', { 'aria-label': 'Edit message', class: 'edit', rows: '3' });
    field.value = textOf(item);
    const done = (): void => {
      this.#editing = false;
      this.#drawn = '';
      this.#body.textContent = textOf(this.#item ?? item);
      this.#actions.hidden = false;
    };
    const save = (): void => {
      const text = field.value.trim();
      done();
      if (text && text !== textOf(item)) this.#acts.edit(item.id, text);
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
    const saving = h('button', { type: 'button', class: 'primary', onclick: save }, 'Ask again');
    const leaving = h('button', { type: 'button', onclick: done }, 'Keep it');
    const note = h('span', { class: 'note' }, 'What follows it is taken back.');
    this.#body.replaceChildren(field, h('div', { class: 'row' }, saving, leaving, note));
    this.#actions.hidden = true;
    field.focus();
  }
}

class CallView implements View {
  readonly element: HTMLElement;
  readonly #acts: Acts;
  readonly #name = h('code', { class: 'tool-name' });
  readonly #arguments = h('pre', { class: 'arguments', tabindex: '0', 'aria-label': 'Arguments' });
  readonly #result = h('div', { class: 'result' });
  #shape = '';

  constructor(acts: Acts) {
    this.#acts = acts;
    const head = h('div', { class: 'tool-head' }, 'calls ', this.#name);
    const margin = h('div', { class: 'margin' }, h('span', { class: 'who' }, 'Tool'));
    const said = h('div', { class: 'said' }, head, this.#arguments, this.#result);
    this.element = h('article', { class: 'message call', 'aria-label': 'Tool call' }, margin, said);
  }

  draw(item: Item, look: Look): void {
    if (item.type !== 'function_call') return;
    this.#name.textContent = item.name;
    this.#arguments.textContent = pretty(item.arguments);
    const open = item.status === 'in_progress';
    this.element.classList.toggle('open', open);
    const shape = JSON.stringify([open, look.cut, look.output]);
    if (shape === this.#shape) return;
    this.#shape = shape;
    if (open) this.#result.replaceChildren();
    else if (look.cut) this.#result.replaceChildren(h('p', { class: 'ending note' }, look.cut));
    else if (look.output === null) this.#ask(item);
    else {
      const head = h('div', { class: 'tool-head' }, 'which returned');
      this.#result.replaceChildren(head, h('pre', { class: 'output' }, pretty(look.output)));
    }
  }

  #ask(call: FunctionCallItem): void {
    const label = `Result of ${call.name}`;
    const field = h('textarea', { 'aria-label': label, rows: '3', spellcheck: 'false' });
    field.value = sampleResult(call);
    const send = (): void => {
      this.#acts.answer(call, field.value);
    };
    field.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      send();
    });
    const button = h('button', { type: 'button', class: 'primary', onclick: send }, 'Return this');
    const note = h('span', { class: 'note' }, 'You are the tool: change it as you like.');
    this.#result.replaceChildren(field, h('div', { class: 'row' }, button, note));
  }
}

/** A message that the server has not confirmed. */
export function unsentView(text: string): HTMLElement {
  const margin = h('div', { class: 'margin' }, h('span', { class: 'who' }, 'You'));
  const note = h('span', { class: 'note' }, icon('again'), ' being sent');
  const said = h('div', { class: 'said' }, h('div', { class: 'body' }, text), note);
  return h('article', { class: 'message user unsent', 'aria-label': 'You' }, margin, said);
}

/** Why there is no answer, or only a part of one, and the way to another. */
export function unansweredView({ why, way }: Unanswered, ask: () => void): HTMLElement {
  const button = h('button', { type: 'button', onclick: ask }, way);
  return h('div', { class: 'unanswered', role: 'alert' }, h('span', {}, why), button);
}

function costOf(metrics: TurnMetrics): string {
  const { ttft, itl, tokens, prefilled, reused } = metrics;
  const after = itl === null ? '' : `, then ${ms(itl)} a token`;
  const time = ttft === null ? '' : `First token after ${ms(ttft)}${after}. `;
  return (
    `${time}${count(tokens)} tokens; ` +
    `${count(prefilled)} prefilled, ${count(reused)} reused from KV.`
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
