/** A browser, and the page as who uses it sees it. */

import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Locator,
  type Page,
} from 'playwright-core';
import { Wire } from './websocket_log.js';

export function launch(args: string[] = []): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env.CONTINUO_CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', ...args],
  });
}

export class Visit {
  readonly page: Page;
  readonly context: BrowserContext;
  /** What the browser complained about; expected to stay empty but for lost connections. */
  readonly complaints: string[] = [];
  readonly requested = new Set<string>();
  readonly wire: Wire;

  private constructor(context: BrowserContext, page: Page) {
    this.context = context;
    this.page = page;
    this.wire = new Wire(page);
    page.setDefaultTimeout(30_000);
    page.on('pageerror', (error) => this.complaints.push(error.message));
    page.on('console', (message) => {
      const lost = /WebSocket|ERR_|Failed to load resource/.test(message.text());
      if (message.type() === 'error' && !lost) this.complaints.push(message.text());
    });
    page.on('request', (request) => this.requested.add(new URL(request.url()).host));
  }

  static async begin(
    browser: Browser,
    url: string,
    options: BrowserContextOptions = {},
  ): Promise<Visit> {
    const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, ...options });
    return Visit.tab(context, url);
  }

  static async tab(context: BrowserContext, url: string): Promise<Visit> {
    const visit = new Visit(context, await context.newPage());
    await visit.page.goto(url);
    return visit;
  }

  get field(): Locator {
    return this.page.getByLabel('Message', { exact: true });
  }

  get answers(): Locator {
    return this.page.locator('.message.assistant .body');
  }

  get questions(): Locator {
    return this.page.locator('.message.user .body');
  }

  get banner(): Locator {
    return this.page.locator('.foot .banner');
  }

  /** Types as people do, and sends. */
  async send(text: string): Promise<void> {
    await this.field.click();
    await this.page.keyboard.type(text, { delay: 5 });
    await this.page.keyboard.press('Enter');
  }

  /** Sends, and returns the answer when it is finished. */
  async say(text: string): Promise<string> {
    const last = this.page.locator('.message.assistant').last();
    const before = (await last.count()) > 0 ? await last.getAttribute('data-id') : null;
    await this.send(text);
    await this.page.waitForFunction((before) => {
      const answers = [...document.querySelectorAll<HTMLElement>('.message.assistant')];
      return (answers.at(-1)?.dataset.id ?? null) !== before;
    }, before);
    return this.finished();
  }

  /** The last answer, when nothing is being answered or sent any more. */
  async finished(): Promise<string> {
    await this.page.waitForFunction(() => {
      const under = '.message.open, .pending, .unsent, .send.stops';
      const last = document.querySelector('.transcript > .message:nth-last-child(2)');
      return !document.querySelector(under) && last?.classList.contains('assistant');
    });
    return (await this.answers.last().innerText()).trim();
  }

  /** How long answers may be from now on. */
  async limit(tokens: number): Promise<void> {
    await this.page.getByLabel('Settings', { exact: true }).click();
    await this.page.getByLabel('Longest answer').fill(String(tokens));
    await this.page.getByRole('button', { name: 'Save' }).click();
    await this.page.locator('dialog').waitFor({ state: 'detached' });
  }

  /** Presses the stop button the moment the answer is so long: it is soon over. */
  async stop(characters: number): Promise<void> {
    await this.page.waitForFunction(
      (characters) => {
        const body = document.querySelector('.message.open .body');
        if ((body?.textContent.length ?? 0) < characters) return false;
        const button = document.querySelector<HTMLElement>('[aria-label="Stop (Escape)"]');
        button?.click();
        return button !== null;
      },
      characters,
      { polling: 10 },
    );
  }

  /** Resolves when the answer under way is so long. */
  async under(characters: number): Promise<void> {
    await this.page.waitForFunction(
      (characters) => {
        const body = document.querySelector('.message.open .body');
        return (body?.textContent.length ?? 0) >= characters;
      },
      characters,
      { polling: 10 },
    );
  }

  /** What was said, in order, as the page has kept it: without what drawing does to it. */
  async said(): Promise<string[]> {
    return this.page.evaluate(() => {
      dispatchEvent(new Event('pagehide')); // the page keeps what it has when it is left
      const kept = localStorage.getItem(`continuo.talk.${location.hash.slice(1)}`) ?? '';
      const { saved } = JSON.parse(kept) as { saved: { items: { content: { text: string }[] }[] } };
      return saved.items.map(({ content }) => content.map(({ text }) => text).join(''));
    });
  }

  async connected(): Promise<void> {
    await this.page.locator('.status[data-phase="open"]').waitFor();
  }

  async close(): Promise<void> {
    await this.context.close();
  }
}
