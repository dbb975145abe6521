/**
 * Events of the wire in both directions: OpenAI's Realtime events for text, and Continuo's extensions.
 *
 * Only the fields that a client needs are typed; servers may send more.
 */

// ------------------------------------------------------------------ items

export type Role = 'system' | 'user' | 'assistant';
export type ItemStatus = 'in_progress' | 'completed' | 'incomplete';

export interface ContentPart {
  type: 'input_text' | 'output_text' | 'input_audio' | 'text';
  text?: string;
  transcript?: string;
}

export interface MessageItem {
  id: string;
  type: 'message';
  role: Role;
  status?: ItemStatus;
  content: ContentPart[];
}

export interface FunctionCallItem {
  id: string;
  type: 'function_call';
  status?: ItemStatus;
  call_id: string;
  name: string;
  /** JSON text as the model generated it. */
  arguments: string;
}

export interface FunctionCallOutputItem {
  id: string;
  type: 'function_call_output';
  status?: ItemStatus;
  call_id: string;
  output: string;
}

export type Item = MessageItem | FunctionCallItem | FunctionCallOutputItem;

/** An item to create; the client generates its id if it has none. */
type WithOptionalId<T> = T extends Item ? Omit<T, 'id'> & { id?: string } : never;
export type NewItem = WithOptionalId<Item>;

// ------------------------------------------------------------------ session and response

export interface Tool {
  type: 'function';
  name: string;
  description?: string;
  /** A JSON schema. */
  parameters: Record<string, unknown>;
}

export type ToolChoice = 'auto' | 'none' | 'required' | { type: 'function'; name: string };

/** Sampling parameters. `null` resets one to the server's default. */
export interface SamplingParams {
  temperature?: number | null;
  top_p?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  seed?: number | null;
  stop?: string | string[] | null;
  repetition_penalty?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  /** Responses with a lower number are served first. */
  priority?: number | null;
  /** Milliseconds within which the first token is wanted. */
  deadline_ms?: number | null;
}

export type ReasoningEffort = 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | 'max';

/** How much the model reasons before it answers. */
export interface Reasoning {
  effort?: ReasoningEffort | null;
  /** Maximum number of tokens of the reasoning. */
  max_tokens?: number | null;
}

export interface SessionSettings extends SamplingParams {
  instructions?: string | null;
  tools?: Tool[] | null;
  tool_choice?: ToolChoice | null;
  max_output_tokens?: number | 'inf' | null;
  truncation?: 'auto' | 'disabled' | { type: 'retention_ratio'; retention_ratio: number };
  reasoning?: Reasoning | null;
  /** Optional events to receive. */
  include?: ('response.interrupted' | 'response.reasoning_text' | 'session.continuity')[] | null;
}

export type KVResidency = 'hot' | 'host' | 'recomputed' | 'none' | 'unknown';

/** What a client needs to resume a session, and how it was resumed. */
export interface ResumeInfo {
  session_id: string;
  epoch?: string;
  /** How long a session without a connection can be resumed, in seconds. */
  window_s?: number;
  /** When the connection and its session end: Unix time in seconds. */
  expires_at?: number;
  /** Resume token; each resume issues a new one. */
  token?: string;
  resumed?: 'exact' | 'snapshot' | null;
  kv?: KVResidency;
}

export interface Session extends SessionSettings {
  id: string;
  model: string;
  resume?: ResumeInfo;
}

export interface Usage {
  total_tokens: number;
  input_tokens: number;
  output_tokens: number;
  /** Input tokens that were not computed since the last response; those computed after this one was requested. */
  input_token_details: { cached_tokens: number; prefilled_after_commit: number };
  output_token_details?: { text_tokens: number; reasoning_tokens?: number };
  /** Seconds in the queue, from there to the first token, and of computation on the device. */
  timing?: { queued_s: number; prefill_s: number; model_s: number };
  /** Where the KV of the conversation so far was found. */
  residency?: KVResidency;
}

export type ResponseStatus = 'in_progress' | 'completed' | 'cancelled' | 'incomplete' | 'failed';

export interface RealtimeResponse {
  id: string;
  status: ResponseStatus;
  status_details: {
    type: string;
    reason?: string;
    error?: { type: string; code: string; message: string };
  } | null;
  output: Item[];
  conversation_id: string | null;
  usage: Usage | null;
  metadata: Record<string, string> | null;
}

export interface ResponseSettings extends SamplingParams {
  conversation?: 'auto' | 'none';
  input?: (NewItem | { type: 'item_reference'; id: string })[] | null;
  instructions?: string | null;
  tools?: Tool[] | null;
  tool_choice?: ToolChoice | null;
  max_output_tokens?: number | 'inf' | null;
  reasoning?: Reasoning | null;
  metadata?: Record<string, string> | null;
}

export interface ErrorBody {
  type: string;
  code: string | null;
  message: string;
  param: string | null;
  /** Id of the client event that caused the error. */
  event_id: string | null;
}

// ------------------------------------------------------------------ the events

interface ClientEvents {
  'session.update': { session: SessionSettings };
  'session.close': object;
  'conversation.item.create': { item: NewItem; previous_item_id?: string };
  'conversation.item.retrieve': { item_id: string };
  'conversation.item.truncate': {
    item_id: string;
    content_index: number;
    /** Number of code points to keep. */
    text_end: number;
  };
  'conversation.item.delete': { item_id: string };
  'response.create': { response?: ResponseSettings };
  'response.cancel': { response_id?: string };
  'input_text_buffer.append': { text: string };
  'input_text_buffer.replace': { text: string };
  'input_text_buffer.clear': object;
  'input_text_buffer.commit': object;
}

/** Effect of an edit on the session's KV. */
export interface Rewind {
  kept_tokens: number;
  prefill_tokens: number;
}

interface OutputItemRef {
  response_id: string;
  item_id: string;
  output_index: number;
}

interface ServerEvents {
  'session.created': { session: Session };
  'session.updated': { session: Session; rewind?: Rewind };
  'session.closed': { reason: string };
  /** The store has lost its data: the session was written again, or could not be. */
  'session.continuity': { status: 'restored' | 'lost' };
  'conversation.item.added': { item: Item; previous_item_id: string | null; rewind?: Rewind };
  'conversation.item.done': { item: Item; previous_item_id: string | null };
  'conversation.item.retrieved': { item: Item };
  'conversation.item.deleted': { item_id: string; rewind?: Rewind };
  'conversation.item.truncated': {
    item_id: string;
    content_index: number;
    text_end?: number;
    rewind?: Rewind;
  };
  'response.created': { response: RealtimeResponse };
  'response.done': { response: RealtimeResponse };
  /** The engine was lost. `upto` characters of the item were sent; the next delta follows them. */
  'response.interrupted': { response_id: string; item_id: string; upto: number };
  'response.output_item.added': { response_id: string; output_index: number; item: Item };
  'response.output_item.done': { response_id: string; output_index: number; item: Item };
  'response.content_part.added': OutputItemRef & { content_index: number; part: ContentPart };
  'response.content_part.done': OutputItemRef & { content_index: number; part: ContentPart };
  'response.output_text.delta': OutputItemRef & { content_index: number; delta: string };
  'response.output_text.done': OutputItemRef & { content_index: number; text: string };
  /** Reasoning, which is no item of the conversation. Sent to sessions that include it. */
  'response.reasoning_text.delta': { response_id: string; item_id: string; delta: string };
  'response.reasoning_text.done': { response_id: string; item_id: string; text: string };
  'response.function_call_arguments.delta': OutputItemRef & { call_id: string; delta: string };
  'response.function_call_arguments.done': OutputItemRef & {
    call_id: string;
    name: string;
    arguments: string;
  };
  'rate_limits.updated': { rate_limits: unknown[] };
  'input_text_buffer.appended': { length: number };
  'input_text_buffer.cleared': object;
  'input_text_buffer.committed': { item_id: string; previous_item_id: string | null };
  error: { error: ErrorBody };
}

export type ClientEvent = {
  [T in keyof ClientEvents]: { type: T; event_id?: string } & ClientEvents[T];
}[keyof ClientEvents];

export type ServerEvent = {
  [T in keyof ServerEvents]: { type: T; event_id: string } & ServerEvents[T];
}[keyof ServerEvents];

export type ServerEventType = ServerEvent['type'];
export type ServerEventOf<T extends ServerEventType> = Extract<ServerEvent, { type: T }>;
