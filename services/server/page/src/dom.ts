// Elements without innerHTML: data only ever becomes text. What has not changed is not touched.

type Attributes = Record<string, string | number | boolean | null>;
type Child = Node | string | null;

export function h<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) attribute(made, key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const SVG = 'http://www.w3.org/2000/svg';

export function svg(name: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) attribute(made, key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Null and false take the attribute away, true is an empty one. */
export function attribute(on: Element, name: string, value: string | number | boolean | null): void {
  if (value === null || value === false) {
    if (on.hasAttribute(name)) on.removeAttribute(name);
    return;
  }
  const text = value === true ? '' : String(value);
  if (on.getAttribute(name) !== text) on.setAttribute(name, text);
}

export function text(on: Element, words: string): void {
  if (on.textContent !== words) on.textContent = words;
}

export function show(element: HTMLElement, visible: boolean): void {
  if (element.hidden === visible) element.hidden = !visible;
}

/** From script, which the content security policy allows; in HTML it would not. */
export function property(on: HTMLElement, name: string, value: string): void {
  if (on.style.getPropertyValue(name) !== value) on.style.setProperty(name, value);
}

/** Makes the children those of `wanted`, moving only what is in another place. */
export function place(parent: Element, wanted: readonly Element[]): void {
  wanted.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild!.remove();
}

/** One element a key: made once, kept while its key stays, and in the order of the items. */
export function keyed<T, E extends { root: Element }>(
  parent: Element,
  made: Map<string, E>,
  items: readonly T[],
  key: (item: T) => string,
  make: (item: T) => E,
  update: (element: E, item: T) => void,
): void {
  const seen = new Set<string>();
  const wanted = items.map((item) => {
    const name = key(item);
    seen.add(name);
    let element = made.get(name);
    if (!element) made.set(name, (element = make(item)));
    update(element, item);
    return element.root;
  });
  for (const name of made.keys()) if (!seen.has(name)) made.delete(name);
  place(parent, wanted);
}

export function byId<E extends HTMLElement = HTMLElement>(id: string): E {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as E;
}

/** A pair of a list of figures: what, and how much. */
export class Figure {
  readonly root: HTMLElement;
  readonly value: HTMLElement;

  constructor(label: string, title = '') {
    this.value = h('dd');
    this.root = h('div', { class: 'figure', title: title || null }, h('dt', {}, label), this.value);
  }

  set(words: string): void {
    text(this.value, words);
  }
}
