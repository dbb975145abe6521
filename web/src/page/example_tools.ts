/** Example tool, and sample results of tool calls. */

import type { FunctionCallItem, Tool } from '../client/index.js';

export const EXAMPLE_TOOLS: Tool[] = [
  {
    type: 'function',
    name: 'get_weather',
    description: 'Get the current weather in a city',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string' } },
      required: ['city'],
    },
  },
];

export function sampleResult(call: FunctionCallItem): string {
  return call.name.includes('weather') ? '{"temperature": 18, "conditions": "sunny"}' : '{"result": ""}';
}
