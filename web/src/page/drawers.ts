/** The sidebar and the panel, which are drawers over the conversation on a small screen. */

import { h } from './dom.js';

const IS_SMALL = matchMedia('(max-width: 899px)');

/** Class of the page's root while a drawer is open, and the button that opens it. */
export type DrawerButtons = Record<'with-sidebar' | 'with-panel', HTMLElement>;

/**
 * Keep the buttons' state up to date, and on a small screen cover `content` while a drawer is open: it
 * cannot be focused then, and a click on the scrim, which is returned, calls `close`.
 */
export function createScrim(
  root: HTMLElement,
  content: HTMLElement,
  buttons: DrawerButtons,
  close: () => void,
): HTMLElement {
  const scrim = h('div', { class: 'scrim', onclick: close });
  const update = (): void => {
    for (const [name, button] of Object.entries(buttons)) {
      button.setAttribute('aria-expanded', String(root.classList.contains(name)));
    }
    const isCovered = IS_SMALL.matches && root.matches('.with-sidebar, .with-panel');
    scrim.hidden = !isCovered;
    content.inert = isCovered;
  };
  new MutationObserver(update).observe(root, { attributeFilter: ['class'] });
  IS_SMALL.addEventListener('change', update);
  update();
  return scrim;
}
