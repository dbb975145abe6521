/** Formulas: their source until the typesetter is loaded, then MathML, which needs no fonts of ours. */

import { textNodes } from '../bounded_text.js';
import { h } from '../dom.js';
import type { typeset } from './math.js';

type Typeset = typeof typeset;

/** Null until the module is loaded; it is only when there is a formula. */
let loaded: Typeset | null = null;

/** Returns an inline formula, or a displayed one, which scrolls in itself where it is too wide. */
export function mathElement(source: string, isDisplayed: boolean): HTMLElement {
  const scrolling = { class: 'math displayed', tabindex: '0', role: 'group', 'aria-label': 'Formula' };
  const element = h('span', isDisplayed ? scrolling : { class: 'math' });
  if (loaded) draw(element, source, isDisplayed, loaded);
  else {
    element.append(h('code', {}, ...textNodes(source)));
    void import('./math.js').then(
      (module) => {
        loaded = module.typeset;
        draw(element, source, isDisplayed, loaded);
      },
      () => undefined, // the source remains
    );
  }
  return element;
}

function draw(element: HTMLElement, source: string, isDisplayed: boolean, typeset: Typeset): void {
  const formula = typeset(source, isDisplayed);
  element.replaceChildren(formula ?? h('code', {}, ...textNodes(source)));
}
