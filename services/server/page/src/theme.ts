// Light or dark theme: the system's, unless the user selects one.

import { text } from './dom.ts';

const KEY = 'forebay-theme';
type Theme = 'light' | 'dark';

const system = matchMedia('(prefers-color-scheme: dark)');
const listeners: (() => void)[] = [];

function chosen(): Theme | null {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === 'light' || kept === 'dark' ? kept : null;
  } catch {
    return null;
  }
}

function theme(): Theme {
  const set = document.documentElement.dataset['theme'];
  if (set === 'light' || set === 'dark') return set;
  return system.matches ? 'dark' : 'light';
}

/** Registers a callback for theme changes; charts redraw with it. */
export function onTheme(changed: () => void): void {
  listeners.push(changed);
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function startTheme(button: HTMLElement): void {
  const kept = chosen();
  if (kept) document.documentElement.dataset['theme'] = kept;
  const changed = () => {
    text(button, theme() === 'dark' ? 'Light theme' : 'Dark theme');
    listeners.forEach((listener) => listener());
  };
  button.addEventListener('click', () => {
    const next: Theme = theme() === 'dark' ? 'light' : 'dark';
    document.documentElement.dataset['theme'] = next;
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
    changed();
  });
  system.addEventListener('change', changed);
  changed();
}
