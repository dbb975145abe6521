/** DOM helpers: element creation, icons, clipboard, and redraws per frame. */

type Child = Node | string | null | undefined | false;
type Props = Record<string, string | boolean | ((event: never) => void) | null | undefined>;

/** Create an element. Props named `on…` are event listeners; boolean props set or omit an attribute. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === 'function') {
      element.addEventListener(name.slice(2), value as EventListener);
    } else if (typeof value === 'string') element.setAttribute(name, value);
    else if (value) element.setAttribute(name, '');
  }
  element.append(...children.filter((child) => child instanceof Node || typeof child === 'string'));
  return element;
}

const SVG_NAMESPACE = 'http://www.w3.org/2000/svg';

const ICONS = {
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  edit: 'M4 20h4L19 9l-4-4L4 16z',
  refresh: 'M20 12a8 8 0 1 1-2.5-5.8M20 4v4h-4',
  branch: 'M7 4v16M7 14c0-5 10-3 10-8M17 6V4',
  copy: 'M9 9h10v11H9zM15 9V4H5v11h4',
  check: 'M5 13l4 4L19 7',
  disconnect: 'M4 12h5M15 12h5M9 8l-2-3M15 16l2 3M12 7V4M12 20v-3',
  settings: 'M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4',
  panel: 'M4 5h16v14H4zM14 5v14',
  list: 'M4 6h16M4 12h16M4 18h10',
  mic: 'M12 4a3 3 0 0 1 3 3v4a3 3 0 0 1-6 0V7a3 3 0 0 1 3-3M5 11a7 7 0 0 0 14 0M12 18v3',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  sun: 'M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2',
} as const;

export type IconName = keyof typeof ICONS;

export function icon(name: IconName): SVGElement {
  const svg = document.createElementNS(SVG_NAMESPACE, 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  svg.classList.add('icon');
  const path = document.createElementNS(SVG_NAMESPACE, 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

/** Create an icon button; its label is the accessible name and the tooltip. */
export function iconButton(name: IconName, label: string, onClick: () => void): HTMLButtonElement {
  return h(
    'button',
    { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick: onClick },
    icon(name),
  );
}

const CHECK_MARK_MS = 1200;

/** Show a check mark on the button for a moment. */
export function flashCheckMark(button: HTMLElement): void {
  const before = [...button.childNodes];
  if (button.classList.contains('done')) return;
  button.classList.add('done');
  button.replaceChildren(icon('check'));
  setTimeout(() => {
    button.classList.remove('done');
    button.replaceChildren(...before);
  }, CHECK_MARK_MS);
}

/** Copy a text, also over plain HTTP, where browsers provide no clipboard API. */
export async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h('textarea', { 'aria-hidden': 'true', class: 'unseen' });
    field.value = text;
    document.body.append(field);
    field.select();
    // eslint-disable-next-line @typescript-eslint/no-deprecated
    document.execCommand('copy');
    field.remove();
  }
}

/** Returns a function that schedules `draw` for the next frame, once per frame. */
export function throttleToFrame(draw: () => void): () => void {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    // A hidden page has no frames; it draws when it becomes visible.
    requestAnimationFrame(() => {
      scheduled = false;
      draw();
    });
  };
}
