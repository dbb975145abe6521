/** Accessibility checks with axe-core. */

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { ChatPage } from './chat_page.js';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface AxeViolation {
  id: string;
  impact: string;
  nodes: { target: string[] }[];
}

interface AxeResults {
  violations: AxeViolation[];
}

interface Axe {
  run(options: { runOnly?: string[]; resultTypes: string[] }): Promise<AxeResults>;
}

/** Returns all violations on the page with their elements, and texts of too little contrast in the other theme. */
export async function violations(chat: ChatPage): Promise<string[]> {
  const { page } = chat;
  const found = describe(await runAxe(chat));
  const [shown, other] = await page.evaluate(
    () => (matchMedia('(prefers-color-scheme: dark)').matches ? ['dark', 'light'] : ['light', 'dark']) as ['dark', 'light'],
  );
  await page.emulateMedia({ colorScheme: other });
  const inOtherTheme = describe(await runAxe(chat, { runOnly: ['color-contrast'] }));
  await page.emulateMedia({ colorScheme: shown });
  return [...found, ...inOtherTheme.map((one) => `${one} (${other})`)];
}

/** Returns the texts whose contrast is below 7 : 1. */
export async function lowContrast(chat: ChatPage): Promise<string[]> {
  return describe(await runAxe(chat, { runOnly: ['color-contrast-enhanced'] }));
}

async function runAxe(chat: ChatPage, options?: { runOnly: string[] }): Promise<AxeResults> {
  // The page's content security policy forbids injected script elements, but not evaluation by the test.
  if (!(await chat.page.evaluate(() => 'axe' in window))) await chat.page.evaluate(AXE);
  return chat.page.evaluate(
    (options) => (window as unknown as { axe: Axe }).axe.run({ ...options, resultTypes: ['violations'] }),
    options,
  );
}

function describe({ violations }: AxeResults): string[] {
  return violations.map(({ id, impact, nodes }) => `${id} (${impact}): ${nodes.map(({ target }) => target.join(' ')).join(', ')}`);
}
