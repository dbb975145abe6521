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
  run(options?: { runOnly: string[] }): Promise<AxeResults>;
}

const HEADINGS = ['heading-order', 'page-has-heading-one', 'empty-heading'];

/** Returns the serious and critical violations on the page, and those of the order of headings, with their
 * elements. */
export async function seriousViolations(chat: ChatPage): Promise<string[]> {
  const { violations } = await runAxe(chat);
  const isSerious = ({ id, impact }: AxeViolation): boolean =>
    impact === 'serious' || impact === 'critical' || HEADINGS.includes(id);
  return describe(violations.filter(isSerious));
}

/** Returns the texts whose contrast is below 7 : 1. */
export async function lowContrast(chat: ChatPage): Promise<string[]> {
  return describe((await runAxe(chat, { runOnly: ['color-contrast-enhanced'] })).violations);
}

async function runAxe(chat: ChatPage, options?: { runOnly: string[] }): Promise<AxeResults> {
  // The page's content security policy forbids injected script elements, but not evaluation by the test.
  await chat.page.evaluate(AXE);
  return chat.page.evaluate(
    (options) => (window as unknown as { axe: Axe }).axe.run(options),
    options,
  );
}

function describe(violations: AxeViolation[]): string[] {
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`);
}
