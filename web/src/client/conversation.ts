/**
 * The client's copy of a conversation: items in order, and responses as they are generated.
 *
 * Pure: applies server events and returns what changed.
 */

import type { ContentPart, Item, MessageItem, RealtimeResponse, ServerEvent } from './events.js';

/** One turn of the model: its response, and the items it generated. Part of `ConversationJson`. */
export interface Turn {
  readonly id: string;
  response: RealtimeResponse;
  /** Ids of its output items, in order. */
  items: string[];
}

/** What changed. `item` is the item as it is now, or was when it was removed. */
export type ConversationChange =
  | { kind: 'item_inserted'; item: Item; index: number }
  /** The item has another content or status. */
  | { kind: 'item_updated'; item: Item }
  | { kind: 'text_appended'; item: MessageItem; delta: string }
  | { kind: 'item_removed'; item: Item; index: number }
  /** The server sends the whole conversation again: the list is empty, and the items follow. */
  | { kind: 'items_replaced' }
  /** A response began or ended. */
  | { kind: 'turn_updated'; turn: Turn };

/** A conversation as applications store it; its field names are part of that format. */
export interface ConversationJson {
  items: Item[];
  turns: Turn[];
}

export class Conversation {
  #items: Item[] = [];
  #itemsById = new Map<string, Item>();
  #turns = new Map<string, Turn>();
  /** By item id. */
  #turnsByItemId = new Map<string, Turn>();
  #activeTurn: Turn | null = null;

  get items(): readonly Item[] {
    return this.#items;
  }

  get turns(): readonly Turn[] {
    return [...this.#turns.values()];
  }

  /** The turn whose response is in progress in this conversation. */
  get activeTurn(): Turn | null {
    return this.#activeTurn;
  }

  /** Whether the last item is a user message or a tool result, and no response is in progress. */
  get needsResponse(): boolean {
    const last = this.#items.at(-1);
    const isInput = last?.type === 'message' ? last.role === 'user' : last?.type !== 'function_call';
    return last !== undefined && isInput && this.#activeTurn === null;
  }

  findItem(id: string): Item | undefined {
    return this.#itemsById.get(id);
  }

  /** Returns the turn that generated an item. */
  turnOf(itemId: string): Turn | undefined {
    return this.#turnsByItemId.get(itemId);
  }

  /** Apply a server event. Returns null if nothing changed. */
  apply(event: ServerEvent): ConversationChange | null {
    switch (event.type) {
      case 'session.updated':
        if (event.session.resume?.resumed !== 'snapshot') return null;
        this.clear();
        return { kind: 'items_replaced' };
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
        return this.#addItemToTurn(event.response_id, event.item.id);
      case 'response.output_text.delta':
        return this.#appendText(event.item_id, event.content_index, event.delta);
      case 'response.output_text.done':
        return this.#setText(event.item_id, event.content_index, event.text);
      case 'response.function_call_arguments.delta':
        return this.#updateArguments(event.item_id, (current) => current + event.delta);
      case 'response.function_call_arguments.done':
        return this.#updateArguments(event.item_id, () => event.arguments);
      default:
        return null;
    }
  }

  /** Remove a turn and its items. Returns what changed. */
  removeTurn(turn: Turn): ConversationChange[] {
    const changes = turn.items.map((id) => this.#delete(id)).filter((change) => change !== null);
    for (const id of turn.items) this.#turnsByItemId.delete(id);
    this.#turns.delete(turn.id);
    if (this.#activeTurn === turn) this.#activeTurn = null;
    return changes;
  }

  clear(): void {
    this.#items = [];
    this.#itemsById.clear();
    this.#turns.clear();
    this.#turnsByItemId.clear();
    this.#activeTurn = null;
  }

  /** Returns a JSON-serializable view of the conversation, not a copy. */
  toJSON(): ConversationJson {
    return { items: this.#items, turns: [...this.#turns.values()] };
  }

  /** Replace the conversation with a copy of `json`. */
  load(json: ConversationJson): void {
    this.clear();
    this.#items = structuredClone(json.items);
    for (const item of this.#items) this.#itemsById.set(item.id, item);
    for (const turn of structuredClone(json.turns)) {
      this.#turns.set(turn.id, turn);
      for (const id of turn.items) this.#turnsByItemId.set(id, turn);
      this.#updateActiveTurn(turn);
    }
  }

  #add(item: Item, previous: string | null): ConversationChange | null {
    if (this.#itemsById.has(item.id)) return this.#replace(item);
    const previousIndex = previous === null ? -1 : this.#items.findIndex((one) => one.id === previous);
    const index = previous !== null && previousIndex < 0 ? this.#items.length : previousIndex + 1;
    const itemCopy = copyItem(item);
    this.#items.splice(index, 0, itemCopy);
    this.#itemsById.set(itemCopy.id, itemCopy);
    return { kind: 'item_inserted', item: itemCopy, index };
  }

  #replace(item: Item): ConversationChange | null {
    const index = this.#items.findIndex((one) => one.id === item.id);
    if (index < 0) return null;
    const itemCopy = copyItem(item);
    this.#items[index] = itemCopy;
    this.#itemsById.set(itemCopy.id, itemCopy);
    return { kind: 'item_updated', item: itemCopy };
  }

  #delete(id: string): ConversationChange | null {
    const index = this.#items.findIndex((one) => one.id === id);
    const [item] = index < 0 ? [] : this.#items.splice(index, 1);
    this.#itemsById.delete(id);
    return item ? { kind: 'item_removed', item, index } : null;
  }

  #truncate(id: string, index: number, end: number | undefined): ConversationChange | null {
    const text = this.#contentPart(id, index)?.text;
    if (text === undefined || end === undefined) return null;
    return this.#setText(id, index, Array.from(text).slice(0, end).join(''));
  }

  #upsertTurn(response: RealtimeResponse): ConversationChange | null {
    const turn = this.#turns.get(response.id) ?? { id: response.id, response, items: [] };
    turn.response = response;
    this.#turns.set(response.id, turn);
    this.#updateActiveTurn(turn);
    return { kind: 'turn_updated', turn };
  }

  #updateActiveTurn(turn: Turn): void {
    const { status, conversation_id } = turn.response;
    if (conversation_id === null) return; // out-of-band response
    if (status === 'in_progress') this.#activeTurn = turn;
    else if (this.#activeTurn?.id === turn.id) this.#activeTurn = null;
  }

  #addItemToTurn(turnId: string, itemId: string): ConversationChange | null {
    const turn = this.#turns.get(turnId);
    if (turn && !turn.items.includes(itemId)) {
      turn.items.push(itemId);
      this.#turnsByItemId.set(itemId, turn);
    }
    return null;
  }

  #appendText(id: string, index: number, delta: string): ConversationChange | null {
    const part = this.#contentPart(id, index);
    const item = this.#itemsById.get(id);
    if (!part || item?.type !== 'message') return null;
    part.text = (part.text ?? '') + delta;
    return { kind: 'text_appended', item, delta };
  }

  #setText(id: string, index: number, text: string): ConversationChange | null {
    const part = this.#contentPart(id, index);
    const item = this.#itemsById.get(id);
    if (!part || !item || part.text === text) return null;
    part.text = text;
    return { kind: 'item_updated', item };
  }

  #updateArguments(id: string, update: (current: string) => string): ConversationChange | null {
    const item = this.#itemsById.get(id);
    if (item?.type !== 'function_call') return null;
    item.arguments = update(item.arguments);
    return { kind: 'item_updated', item };
  }

  #contentPart(id: string, index: number): ContentPart | undefined {
    const item = this.#itemsById.get(id);
    if (item?.type !== 'message') return undefined;
    while (item.content.length <= index) item.content.push({ type: 'output_text', text: '' });
    return item.content[index];
  }
}

/** Copy an item, so that deltas do not modify the event that carried it. */
export function copyItem(item: Item): Item {
  if (item.type !== 'message') return { ...item };
  return { ...item, content: item.content.map((part) => ({ ...part })) };
}

/** Returns the text of a message; '' for other items. */
export function textOf(item: Item): string {
  if (item.type !== 'message') return '';
  return item.content.map((part) => part.text ?? part.transcript ?? '').join('');
}

/** Returns the length of a text in Unicode code points, as the server counts. */
export function countCodePoints(text: string): number {
  let n = 0;
  for (const _ of text) n += 1;
  return n;
}
