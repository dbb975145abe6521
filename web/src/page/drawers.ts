/** The sidebar and the panel: columns beside the conversation where they fit, else drawers over it, one at a
 * time. */

import { h } from './dom.js';

export type Drawer = 'sidebar' | 'panel';

/** Whether each fits beside the conversation; the style sheet has the same widths. */
const FITS: Record<Drawer, MediaQueryList> = {
  sidebar: matchMedia('(min-width: 900px)'),
  panel: matchMedia('(min-width: 1180px)'),
};
const DRAWERS: Drawer[] = ['sidebar', 'panel'];
const PANEL_STORAGE_KEY = 'continuo.panel';

/** Parts of the page around the drawers. */
export interface DrawersHost {
  /** Has the class `with-sidebar` or `with-panel` while that is shown. */
  root: HTMLElement;
  /** What an open drawer covers; it cannot be focused then. Not the landmark around it, which remains. */
  content: HTMLElement[];
  buttons: Record<Drawer, HTMLElement>;
  /** Called when the panel has been shown or hidden. */
  onPanelToggle: () => void;
}

export class Drawers {
  /** Covers the content while a drawer is open; a click on it closes the drawer. */
  readonly scrim = h('div', { class: 'scrim', onclick: () => this.close() });
  readonly #host: DrawersHost;
  /** Whether the user wants each as a column; a drawer is closed until it is opened. */
  readonly #wanted: Record<Drawer, boolean> = {
    sidebar: true,
    panel: localStorage.getItem(PANEL_STORAGE_KEY) === 'shown',
  };

  constructor(host: DrawersHost) {
    this.#host = host;
    for (const drawer of DRAWERS) {
      host.buttons[drawer].addEventListener('click', () => {
        this.#toggle(drawer);
      });
      FITS[drawer].addEventListener('change', () => {
        this.#show(drawer, FITS[drawer].matches && this.#wanted[drawer]);
        this.#update();
      });
      host.root.classList.toggle(`with-${drawer}`, FITS[drawer].matches && this.#wanted[drawer]);
    }
    this.#update();
  }

  open(drawer: Drawer): void {
    if (!this.#isShown(drawer)) this.#toggle(drawer);
  }

  /** Close what covers the conversation. */
  close(): void {
    for (const drawer of DRAWERS) if (!FITS[drawer].matches) this.#show(drawer, false);
  }

  /** Show or hide one, as the user wants it. */
  #toggle(drawer: Drawer): void {
    const shown = !this.#isShown(drawer);
    if (FITS[drawer].matches) {
      this.#wanted[drawer] = shown;
      if (drawer === 'panel') localStorage.setItem(PANEL_STORAGE_KEY, shown ? 'shown' : 'hidden');
    } else this.close();
    this.#show(drawer, shown);
  }

  #isShown(drawer: Drawer): boolean {
    return this.#host.root.classList.contains(`with-${drawer}`);
  }

  #show(drawer: Drawer, shown: boolean): void {
    if (shown === this.#isShown(drawer)) return;
    this.#host.root.classList.toggle(`with-${drawer}`, shown);
    this.#update();
    if (drawer === 'panel') this.#host.onPanelToggle();
  }

  #update(): void {
    const { buttons, content } = this.#host;
    for (const drawer of DRAWERS) buttons[drawer].setAttribute('aria-expanded', String(this.#isShown(drawer)));
    const isCovered = DRAWERS.some((drawer) => this.#isShown(drawer) && !FITS[drawer].matches);
    this.scrim.hidden = !isCovered;
    for (const element of content) element.inert = isCovered;
  }
}
