/** React: a component that shows a conversation, and is rendered again when it changes. */

import { useSyncExternalStore } from 'react';
import type { RealtimeClient } from './client.js';
import type { ConnectionState } from './connection.js';
import { copyItem } from './conversation.js';
import type { Item } from './events.js';
import type { Unsubscribe } from './observable.js';

export interface ConversationSnapshot {
  /** The items in order. An item that has changed is another object, so that `memo` works. */
  readonly items: readonly Item[];
  /** Whether a response is in progress. */
  readonly isResponding: boolean;
  readonly connection: ConnectionState;
}

/** Returns the conversation of a client as it is now. */
export function useConversation(client: RealtimeClient): ConversationSnapshot {
  let store = stores.get(client);
  if (store === undefined) {
    store = new ConversationStore(client);
    stores.set(client, store);
  }
  return useSyncExternalStore(store.subscribe, store.getSnapshot, store.getSnapshot);
}

/** One store for each client, as long as the client lives. */
const stores = new WeakMap<RealtimeClient, ConversationStore>();

/** Immutable snapshots of a conversation, each made when it is first read after a change. */
class ConversationStore {
  readonly #client: RealtimeClient;
  readonly #listeners = new Set<() => void>();
  /** Copies of the items, which the client changes in place; by their originals. */
  readonly #copies = new WeakMap<Item, Item>();
  #snapshot: ConversationSnapshot | null = null;

  constructor(client: RealtimeClient) {
    this.#client = client;
    client.onConversationChange((change) => {
      if (change.kind === 'item_updated' || change.kind === 'text_appended') {
        this.#copies.delete(change.item);
      }
      this.#onChange();
    });
    client.state.subscribe(() => this.#onChange());
  }

  readonly subscribe = (listener: () => void): Unsubscribe => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  readonly getSnapshot = (): ConversationSnapshot => {
    this.#snapshot ??= {
      items: this.#client.conversation.items.map((item) => this.#copyOf(item)),
      isResponding: this.#client.conversation.activeTurn !== null,
      connection: this.#client.state.value,
    };
    return this.#snapshot;
  };

  #onChange(): void {
    this.#snapshot = null;
    for (const listener of [...this.#listeners]) listener();
  }

  #copyOf(item: Item): Item {
    const copy = this.#copies.get(item) ?? copyItem(item);
    this.#copies.set(item, copy);
    return copy;
  }
}
