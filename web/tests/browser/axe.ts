/** What axe-core finds wrong with a page. */

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { Visit } from './chat_page.js';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface Found {
  violations: { id: string; impact: string; nodes: { target: string[] }[] }[];
}

/** Violations that are serious, with where they are. */
export async function serious(visit: Visit): Promise<string[]> {
  // The page's own policy forbids what is not its own; a test may come from outside.
  await visit.page.evaluate(AXE);
  const found = await visit.page.evaluate(
    () => (window as unknown as { axe: { run(): Promise<Found> } }).axe.run(),
  );
  return found.violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`);
}
