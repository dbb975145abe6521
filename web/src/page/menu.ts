/** A button that opens a menu of actions, operated with the pointer or the keyboard. */

import { h, iconButton, type IconName } from './dom.js';

export interface MenuItem {
  label: string;
  action: () => void;
  /** Whether the action destroys something. */
  isDestructive?: boolean;
}

/** Create a button named `label`, with a `word` beside its icon if it is given, that opens a menu with `items`. */
export function menuButton(
  label: string,
  items: MenuItem[],
  icon: IconName = 'more',
  word?: string,
): HTMLButtonElement {
  const open = (): void => {
    openMenu(button, label, items);
  };
  const button = iconButton(icon, label, open, word);
  button.setAttribute('aria-haspopup', 'menu');
  return button;
}

function openMenu(button: HTMLElement, label: string, items: MenuItem[]): void {
  const menu = h('div', { class: 'popup-menu', role: 'menu', popover: 'auto', 'aria-label': label });
  const buttons = items.map(({ label, action, isDestructive }) =>
    h(
      'button',
      {
        type: 'button',
        role: 'menuitem',
        tabindex: '-1',
        class: isDestructive ? 'destructive' : '',
        onclick: () => {
          button.focus();
          menu.hidePopover();
          action();
        },
      },
      label,
    ),
  );
  menu.append(...buttons);
  menu.addEventListener('keydown', (event) => {
    const at = buttons.findIndex((one) => one === document.activeElement);
    const targets: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 };
    const target = targets[event.key];
    if (event.key === 'Tab' || event.key === 'Escape') menu.hidePopover();
    if (event.key === 'Escape') event.stopPropagation(); // the drawer around the button stays open
    if (target === undefined) return;
    event.preventDefault();
    buttons.at(target % buttons.length)?.focus();
  });
  menu.addEventListener('toggle', (event) => {
    if (event.newState !== 'closed') return;
    const hadFocus = menu.contains(document.activeElement);
    menu.remove();
    button.setAttribute('aria-expanded', 'false');
    if (hadFocus) button.focus();
  });
  (button.closest('nav, main, header') ?? document.body).append(menu); // in a landmark, as all content
  menu.showPopover();
  button.setAttribute('aria-expanded', 'true');
  place(menu, button.getBoundingClientRect());
  buttons[0]?.focus();
}

/** Place the menu below the button, or above it where there is no room below. */
function place(menu: HTMLElement, anchor: DOMRect): void {
  const { width, height } = menu.getBoundingClientRect();
  const fitsBelow = anchor.bottom + height + 8 <= innerHeight;
  menu.style.top = `${fitsBelow ? anchor.bottom + 4 : Math.max(8, anchor.top - height - 4)}px`;
  menu.style.left = `${Math.max(8, Math.min(anchor.right - width, innerWidth - width - 8))}px`;
}
