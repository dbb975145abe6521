/** Accessibility checks with axe-core. */

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { ChatPage } from './chat_page.js';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface AxeResults {
  violations: { id: string; impact: string; nodes: { target: string[] }[] }[];
}

/** Returns the serious and critical violations on the page, with their elements. */
export async function seriousViolations(chat: ChatPage): Promise<string[]> {
  // The page's content security policy forbids injected script elements, but not evaluation by the test.
  await chat.page.evaluate(AXE);
  const results = await chat.page.evaluate(
    () => (window as unknown as { axe: { run(): Promise<AxeResults> } }).axe.run(),
  );
  return results.violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`);
}
