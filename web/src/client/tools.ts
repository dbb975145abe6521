/**
 * Tools: functions of the program that the model can call.
 *
 *     tools: {
 *       get_weather: tool({
 *         description: 'Get the weather of a city.',
 *         parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
 *         handler: ({ city }) => forecast(city),   // `city` is a string
 *       }),
 *     }
 */

import type { Tool } from './events.js';

/** The parts of JSON Schema that are checked before a handler is called, and that its types follow. A schema
 * may have others, which only the server and the model read. */
export interface JsonSchema {
  readonly type?: 'string' | 'number' | 'integer' | 'boolean' | 'null' | 'array' | 'object';
  readonly description?: string;
  readonly enum?: readonly unknown[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly items?: JsonSchema;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
  readonly [keyword: string]: unknown;
}

/** The values that a schema describes. */
export type FromSchema<S> = S extends { readonly enum: readonly (infer E)[] }
  ? E
  : S extends { readonly type: 'string' }
    ? string
    : S extends { readonly type: 'number' | 'integer' }
      ? number
      : S extends { readonly type: 'boolean' }
        ? boolean
        : S extends { readonly type: 'null' }
          ? null
          : S extends { readonly type: 'array'; readonly items: infer I }
            ? FromSchema<I>[]
            : S extends { readonly properties: infer P }
              ? ObjectOf<P, S extends { readonly required: readonly (infer R)[] } ? R : never>
              : unknown;

type ObjectOf<P, R> = { [K in keyof P & R]: FromSchema<P[K]> } & {
  [K in Exclude<keyof P, R>]?: FromSchema<P[K]>;
};

export interface ToolContext {
  /** Aborted when the response is cancelled. */
  signal: AbortSignal;
}

export interface ToolDefinition<S extends JsonSchema> {
  description: string;
  /** Schema of the arguments: an object. */
  parameters: S;
  /** Returns the result, which the model reads: a string as it is, any other value as JSON. Throw ToolError
   * for what the model should read instead. */
  handler: (args: FromSchema<S>, context: ToolContext) => unknown;
}

/** A tool whose calls the client answers. */
export interface HandledTool {
  readonly description: string;
  readonly parameters: JsonSchema;
  readonly handler: (args: never, context: ToolContext) => unknown;
}

/** Define a tool; the types of its arguments follow from the schema. */
export function tool<const S extends JsonSchema & { readonly type: 'object' }>(
  definition: ToolDefinition<S>,
): HandledTool {
  return definition;
}

/** A tool could not do what the model requested. The model reads the message, and can correct the arguments
 * or explain. */
export class ToolError extends Error {
  override readonly name = 'ToolError';
}

/** Returns the declarations of tools, as the wire has them. */
export function declareTools(tools: Readonly<Record<string, HandledTool>>): Tool[] {
  return Object.entries(tools).map(([name, { description, parameters }]) => {
    return { type: 'function', name, description, parameters };
  });
}

/** What a call came to: the text that the model reads, and an error of the handler that the program is told. */
export interface CallOutcome {
  output: string;
  error?: Error;
}

/** Call a handler with arguments as JSON text. Returns when it has, or when `signal` is aborted. */
export async function callTool(
  name: string,
  { parameters, handler }: HandledTool,
  json: string,
  signal: AbortSignal,
): Promise<CallOutcome> {
  const aborted = new Promise<CallOutcome>((resolve) => {
    signal.addEventListener('abort', () => resolve({ output: 'The call was cancelled.' }));
  });
  const call = async (): Promise<CallOutcome> => {
    try {
      const args = parseArguments(name, parameters, json);
      const result = await handler(args as never, { signal });
      return { output: typeof result === 'string' ? result : stringify(result) };
    } catch (error) {
      if (error instanceof ToolError) return { output: error.message };
      const reported = error instanceof Error ? error : new Error(String(error));
      return { output: 'The tool failed.', error: reported };
    }
  };
  return Promise.race([call(), aborted]);
}

function stringify(value: unknown): string {
  return value === undefined ? 'null' : JSON.stringify(value);
}

function parseArguments(name: string, schema: JsonSchema, json: string): unknown {
  let args: unknown;
  try {
    args = JSON.parse(json || '{}');
  } catch {
    throw new ToolError(`The arguments of ${name} are not valid JSON.`);
  }
  const mismatch = findMismatch(args, schema, 'the arguments');
  if (mismatch !== null) throw new ToolError(`The arguments of ${name} are not valid: ${mismatch}.`);
  return args;
}

/** Returns what of `value` does not fit the schema; null if it fits. */
function findMismatch(value: unknown, schema: JsonSchema, path: string): string | null {
  if (schema.enum !== undefined && !schema.enum.includes(value)) {
    return `${path} must be one of ${JSON.stringify(schema.enum)}`;
  }
  if (schema.type !== undefined && !hasType(value, schema.type)) {
    return `${path} must be of type ${schema.type}`;
  }
  if (typeof value === 'number') {
    const { minimum = -Infinity, maximum = Infinity } = schema;
    if (value < minimum) return `${path} must be at least ${minimum}`;
    if (value > maximum) return `${path} must be at most ${maximum}`;
  }
  const { items } = schema;
  if (Array.isArray(value)) return items ? firstMismatch(value.entries(), () => items, path) : null;
  if (typeof value !== 'object' || value === null) return null;
  const missing = schema.required?.find((key) => !Object.hasOwn(value, key));
  if (missing !== undefined) return `${missing} is missing in ${path}`;
  return firstMismatch(Object.entries(value), (key) => schema.properties?.[key], path);
}

function firstMismatch<K extends string | number>(
  entries: Iterable<[K, unknown]>,
  schemaOf: (key: K) => JsonSchema | undefined,
  path: string,
): string | null {
  for (const [key, value] of entries) {
    const schema = schemaOf(key);
    const mismatch = schema && findMismatch(value, schema, `${path}.${key}`);
    if (mismatch) return mismatch;
  }
  return null;
}

function hasType(value: unknown, type: NonNullable<JsonSchema['type']>): boolean {
  switch (type) {
    case 'integer':
      return Number.isInteger(value);
    case 'array':
      return Array.isArray(value);
    case 'null':
      return value === null;
    case 'object':
      return typeof value === 'object' && value !== null && !Array.isArray(value);
    default:
      return typeof value === type;
  }
}
