/** Mark of Continuo: an open ring, and the point at which it goes on. */

const SVG_NAMESPACE = 'http://www.w3.org/2000/svg';

/** Returns the mark in the color of the text around it. The file of the icon has the same shape. */
export function createMark(): SVGElement {
  const svg = createElement('svg', { viewBox: '5 5 24 22', class: 'mark', 'aria-hidden': 'true' });
  const ring = createElement('path', { d: 'M21.5 10.1a8.1 8.1 0 1 0 0 11.8', class: 'ring' });
  svg.append(ring, createElement('circle', { cx: '24', cy: '16', r: '2.6', class: 'point' }));
  return svg;
}

function createElement(tag: 'svg' | 'path' | 'circle', attributes: Record<string, string>) {
  const element = document.createElementNS(SVG_NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
