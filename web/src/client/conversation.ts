/**
 * The client's copy of a conversation: items in order, and responses as they are generated.
 *
 * Pure: applies server events and returns what changed.
 */

import type { Item, Part, Response, ServerEvent } from './events.js';

/** One response of the model. */
export interface Turn {
  readonly id: string;
  response: Response;
  /** Ids of its output items, in order. */
  items: string[];
}

export type Change =
  | { kind: 'order' }
  | { kind: 'item'; id: string }
  | { kind: 'turn'; id: string }
  | null;

export interface Saved {
  items: Item[];
  turns: Turn[];
}

export class Conversation {
  #items: Item[] = [];
  #byId = new Map<string, Item>();
  #turns = new Map<string, Turn>();
  /** By item id. */
  #turnOf = new Map<string, Turn>();
  #running: Turn | null = null;

  get items(): readonly Item[] {
    return this.#items;
  }

  get turns(): readonly Turn[] {
    return [...this.#turns.values()];
  }

  /** The response in progress in this conversation. */
  get running(): Turn | null {
    return this.#running;
  }

  /** Whether the last item is a user message or a tool result, and no response is in progress. */
  get awaitsAnswer(): boolean {
    const last = this.#items.at(-1);
    const awaiting = last?.type === 'message' ? last.role === 'user' : last?.type !== 'function_call';
    return last !== undefined && awaiting && this.#running === null;
  }

  find(id: string): Item | undefined {
    return this.#byId.get(id);
  }

  /** Returns the response that generated an item. */
  turnOf(itemId: string): Turn | undefined {
    return this.#turnOf.get(itemId);
  }

  /** Apply a server event. Returns null if nothing changed. */
  apply(event: ServerEvent): Change {
    switch (event.type) {
      case 'session.updated':
        if (event.session.resume?.resumed !== 'snapshot') return null;
        this.clear();
        return { kind: 'order' };
      case 'conversation.item.added':
        return this.#add(event.item, event.previous_item_id);
      case 'conversation.item.done':
        return this.#replace(event.item);
      case 'conversation.item.deleted':
        return this.#delete(event.item_id);
      case 'conversation.item.truncated':
        return this.#truncate(event.item_id, event.content_index, event.text_end);
      case 'response.created':
      case 'response.done':
        return this.#upsertTurn(event.response);
      case 'response.output_item.added':
        return this.#attachItem(event.response_id, event.item.id);
      case 'response.output_text.delta':
        return this.#appendText(event.item_id, event.content_index, event.delta);
      case 'response.output_text.done':
        return this.#setText(event.item_id, event.content_index, event.text);
      case 'response.function_call_arguments.delta':
        return this.#updateArguments(event.item_id, (now) => now + event.delta);
      case 'response.function_call_arguments.done':
        return this.#updateArguments(event.item_id, () => event.arguments);
      default:
        return null;
    }
  }

  /** Remove a response and its items. */
  forget(turn: Turn): void {
    this.#items = this.#items.filter((item) => !turn.items.includes(item.id));
    for (const id of turn.items) {
      this.#byId.delete(id);
      this.#turnOf.delete(id);
    }
    this.#turns.delete(turn.id);
    if (this.#running === turn) this.#running = null;
  }

  clear(): void {
    this.#items = [];
    this.#byId.clear();
    this.#turns.clear();
    this.#turnOf.clear();
    this.#running = null;
  }

  /** Returns a JSON-serializable view of the conversation, not a copy. */
  save(): Saved {
    return { items: this.#items, turns: [...this.#turns.values()] };
  }

  /** Replace the conversation with a copy of `saved`. */
  load(saved: Saved): void {
    this.clear();
    this.#items = structuredClone(saved.items);
    for (const item of this.#items) this.#byId.set(item.id, item);
    for (const turn of structuredClone(saved.turns)) {
      this.#turns.set(turn.id, turn);
      for (const id of turn.items) this.#turnOf.set(id, turn);
      this.#updateRunning(turn);
    }
  }

  #add(item: Item, previous: string | null): Change {
    if (this.#byId.has(item.id)) return this.#replace(item);
    const after = previous === null ? -1 : this.#items.findIndex((one) => one.id === previous);
    const at = previous !== null && after < 0 ? this.#items.length : after + 1;
    const itemCopy = copyItem(item);
    this.#items.splice(at, 0, itemCopy);
    this.#byId.set(itemCopy.id, itemCopy);
    return { kind: 'order' };
  }

  #replace(item: Item): Change {
    const at = this.#items.findIndex((one) => one.id === item.id);
    if (at < 0) return null;
    const itemCopy = copyItem(item);
    this.#items[at] = itemCopy;
    this.#byId.set(itemCopy.id, itemCopy);
    return { kind: 'item', id: item.id };
  }

  #delete(id: string): Change {
    this.#items = this.#items.filter((item) => item.id !== id);
    return this.#byId.delete(id) ? { kind: 'order' } : null;
  }

  #truncate(id: string, index: number, end: number | undefined): Change {
    const part = this.#part(id, index);
    if (part?.text === undefined || end === undefined) return null;
    part.text = Array.from(part.text).slice(0, end).join('');
    return { kind: 'item', id };
  }

  #upsertTurn(response: Response): Change {
    const turn = this.#turns.get(response.id) ?? { id: response.id, response, items: [] };
    turn.response = response;
    this.#turns.set(response.id, turn);
    this.#updateRunning(turn);
    return { kind: 'turn', id: response.id };
  }

  #updateRunning(turn: Turn): void {
    const { status, conversation_id } = turn.response;
    if (conversation_id === null) return; // out-of-band response
    if (status === 'in_progress') this.#running = turn;
    else if (this.#running?.id === turn.id) this.#running = null;
  }

  #attachItem(turnId: string, itemId: string): Change {
    const turn = this.#turns.get(turnId);
    if (turn && !turn.items.includes(itemId)) {
      turn.items.push(itemId);
      this.#turnOf.set(itemId, turn);
    }
    return null;
  }

  #appendText(id: string, index: number, delta: string): Change {
    const part = this.#part(id, index);
    if (!part) return null;
    part.text = (part.text ?? '') + delta;
    return { kind: 'item', id };
  }

  #setText(id: string, index: number, text: string): Change {
    const part = this.#part(id, index);
    if (!part) return null;
    part.text = text;
    return { kind: 'item', id };
  }

  #updateArguments(id: string, change: (now: string) => string): Change {
    const item = this.#byId.get(id);
    if (item?.type !== 'function_call') return null;
    item.arguments = change(item.arguments);
    return { kind: 'item', id };
  }

  #part(id: string, index: number): Part | undefined {
    const item = this.#byId.get(id);
    if (item?.type !== 'message') return undefined;
    while (item.content.length <= index) item.content.push({ type: 'output_text', text: '' });
    return item.content[index];
  }
}

/** Copy an item, so that deltas do not modify the event that carried it. */
function copyItem(item: Item): Item {
  if (item.type !== 'message') return { ...item };
  return { ...item, content: item.content.map((part) => ({ ...part })) };
}

/** Returns the text of a message; '' for other items. */
export function textOf(item: Item): string {
  if (item.type !== 'message') return '';
  return item.content.map((part) => part.text ?? part.transcript ?? '').join('');
}

/** Returns the length of a text in Unicode code points, as the server counts. */
export function codePoints(text: string): number {
  let n = 0;
  for (const _ of text) n += 1;
  return n;
}
