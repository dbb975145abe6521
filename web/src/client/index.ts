export { followBrowser } from './browser.js';
export { type Backoff, defaultBackoff, delay } from './backoff.js';
export { type Closing, closing } from './closing.js';
export { type Codec, json } from './codec.js';
export { Conversation, codePoints, type Saved, textOf, type Turn } from './conversation.js';
export { Draft } from './draft.js';
export * from './events.js';
export type { Observable, Unsubscribe } from './observable.js';
export { Ended, type Receipt, Refused } from './outbox.js';
export {
  type Begun,
  type ConnectionState,
  type Options,
  type Position,
  RealtimeClient,
  settingsOf,
} from './client.js';
