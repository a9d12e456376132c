// DOM helpers without innerHTML: data is only inserted as text, and unchanged nodes are not modified.

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

/** Sets an attribute: null and false remove it, true sets it to empty. */
export function attribute(on: Element, name: string, value: string | number | boolean | null): void {
  if (value === null || value === false) {
    if (on.hasAttribute(name)) on.removeAttribute(name);
    return;
  }
  const text = value === true ? '' : String(value);
  if (on.getAttribute(name) !== text) on.setAttribute(name, text);
}

export function text(on: Element, value: string): void {
  if (on.textContent !== value) on.textContent = value;
}

export function show(element: HTMLElement, visible: boolean): void {
  if (element.hidden === visible) element.hidden = !visible;
}

/** Sets a style property; the content security policy forbids style attributes in HTML. */
export function property(on: HTMLElement, name: string, value: string): void {
  if (on.style.getPropertyValue(name) !== value) on.style.setProperty(name, value);
}

/** Replaces the children by `wanted`, moving only those in another place. */
export function place(parent: Element, wanted: readonly Element[]): void {
  wanted.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild!.remove();
}

/** Keeps one element per key, in the order of the items. */
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

/** A label and a value in a description list. */
export class Figure {
  readonly root: HTMLElement;
  readonly value: HTMLElement;

  constructor(label: string, title = '') {
    this.value = h('dd');
    this.root = h('div', { class: 'figure', title: title || null }, h('dt', {}, label), this.value);
  }

  set(value: string): void {
    text(this.value, value);
  }
}
