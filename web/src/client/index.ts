export { backoffDelay, type BackoffOptions, defaultBackoff } from './backoff.js';
export { reconnectOnBrowserEvents } from './browser_lifecycle.js';
export {
  type ForkOptions,
  type ForkSettings,
  RealtimeClient,
  type RealtimeClientOptions,
  type ResumePoint,
} from './client.js';
export { type CloseInfo, describeCloseCode, OFFLINE_REASON } from './close_codes.js';
export type { ConnectionOptions, ConnectionState, ResumeOutcome } from './connection.js';
export {
  Conversation,
  type ConversationChange,
  type ConversationJson,
  countCodePoints,
  textOf,
  type Turn,
} from './conversation.js';
export { Draft } from './draft.js';
export * from './events.js';
export type { Observable, Unsubscribe } from './observable.js';
export { ConnectionClosedError, EventRefusedError, type Receipt } from './outbox.js';
export { ResponseFailedError, ResponseStream } from './response_stream.js';
export { settingsOf } from './rehydrate.js';
export { type FromSchema, type HandledTool, type JsonSchema, tool, type ToolContext, ToolError } from './tools.js';
