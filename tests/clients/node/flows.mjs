// Flows of openai-node: node flows.mjs KEY main=URL ...
//
// Runs the flows of the named servers and prints their results as one JSON object. The result of a
// flow is the stack of its error, or null if it succeeded, and its transcript.

import { failing } from './failing.mjs';
import { parallel } from './parallel.mjs';
import { realtime } from './realtime.mjs';
import { responses } from './responses.mjs';
import { Client } from './connections.mjs';

const [key, ...servers] = process.argv.slice(2);
const all = { main: { ...realtime, ...responses }, two_calls: parallel, ...failing };
const results = {};
for (const [server, url] of servers.map((argument) => argument.split('='))) {
  for (const [name, run] of Object.entries(all[server])) {
    const client = new Client(url, key);
    let problem = null;
    try {
      await run(client);
    } catch (error) {
      problem = error.stack;
    }
    results[name] = { problem, transcript: client.transcript };
  }
}
process.stdout.write(JSON.stringify(results), () => process.exit(0));
