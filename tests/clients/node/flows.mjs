// Conversations of openai-node: node flows.mjs KEY main=URL ...
//
// Prints a JSON object: of each flow of the servers that are named what went wrong, or null, and its
// transcript.

import { failing } from './failing.mjs';
import { parallel } from './parallel.mjs';
import { realtime } from './realtime.mjs';
import { responses } from './responses.mjs';
import { Client } from './talk.mjs';

const [key, ...servers] = process.argv.slice(2);
const all = { main: { ...realtime, ...responses }, two_calls: parallel, ...failing };
const told = {};
for (const [server, url] of servers.map((named) => named.split('='))) {
  for (const [name, run] of Object.entries(all[server])) {
    const client = new Client(url, key);
    let problem = null;
    try {
      await run(client);
    } catch (error) {
      problem = error.stack;
    }
    told[name] = { problem, transcript: client.transcript };
  }
}
process.stdout.write(JSON.stringify(told), () => process.exit(0));
