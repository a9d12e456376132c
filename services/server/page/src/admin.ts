// Who may turn a queue: everybody who may read, or whoever types an administrator's token in.

import { byId, h, show, text } from './dom.ts';

const KEY = 'forebay-admin-token';

export class Admin {
  private readonly form = byId<HTMLFormElement>('admin-form');
  private readonly input = byId<HTMLInputElement>('admin-token');
  private readonly notes: HTMLElement[] = [];
  private readonly listeners: (() => void)[] = [];
  private open = false;
  private wanted = false;

  constructor() {
    try {
      this.input.value = sessionStorage.getItem(KEY) ?? '';
    } catch {
      // Then it is typed in once a page.
    }
    // Nothing is submitted: the token goes into the header of requests.
    this.form.addEventListener('submit', (event) => event.preventDefault());
    this.input.addEventListener('input', () => {
      try {
        sessionStorage.setItem(KEY, this.token);
      } catch {
        // As above.
      }
      this.changed();
    });
  }

  get token(): string {
    return this.open ? '' : this.input.value.trim();
  }

  get allowed(): boolean {
    return this.open || this.token !== '';
  }

  /** Whether the server lets this reader change things as it is. */
  set(admin: boolean): void {
    if (this.open === admin) return;
    this.open = admin;
    this.changed();
  }

  /** Only where there is something to change. */
  show(wanted: boolean): void {
    this.wanted = wanted;
    show(this.form, wanted && !this.open);
  }

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Why a button can't be pressed, beside it. */
  note(): HTMLElement {
    const note = h('p', { class: 'muted admin-note' });
    this.notes.push(note);
    this.explain(note);
    return note;
  }

  private explain(note: HTMLElement): void {
    text(note, 'Apply needs an administrator’s token: type it in above. Looking needs none.');
    show(note, !this.allowed);
  }

  private changed(): void {
    this.show(this.wanted);
    this.notes.forEach((note) => this.explain(note));
    this.listeners.forEach((listener) => listener());
  }
}
