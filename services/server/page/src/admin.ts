// Permission to change queue settings: open to all readers, or with an administrator's token.

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
      // Without storage, the token is entered once per page load.
    }
    // The form is not submitted: the token is sent in a request header.
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

  /** Sets whether the server allows changes without another token. */
  set(admin: boolean): void {
    if (this.open === admin) return;
    this.open = admin;
    this.changed();
  }

  /** Shows the token field if there are queues and a token is required. */
  show(wanted: boolean): void {
    this.wanted = wanted;
    show(this.form, wanted && !this.open);
  }

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Returns a note that explains why a button is disabled. */
  note(): HTMLElement {
    const note = h('p', { class: 'muted admin-note' });
    this.notes.push(note);
    this.explain(note);
    return note;
  }

  private explain(note: HTMLElement): void {
    text(note, 'Applying changes requires an administrator token: enter it above.');
    show(note, !this.allowed);
  }

  private changed(): void {
    this.show(this.wanted);
    this.notes.forEach((note) => this.explain(note));
    this.listeners.forEach((listener) => listener());
  }
}
