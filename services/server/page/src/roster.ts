// All sessions that run: the first ones come with each state, the others by pages.

import { get } from './api.ts';
import type { Session, Sessions } from './api.ts';

const PAGE = 500;
const REST_MS = 5000;
/** A limit on how many a page holds, and so on how long it asks. */
const MOST = 20_000;

export class Roster {
  private first: Session[] = [];
  private rest: Session[] = [];
  private asked = -Infinity;
  private asking = false;
  private readonly changed: () => void;
  total = 0;

  constructor(changed: () => void) {
    this.changed = changed;
  }

  update(sessions: Sessions): void {
    this.total = sessions.total;
    this.first = sessions.sessions;
    if (this.total <= this.first.length) this.rest = [];
    else if (!this.asking && performance.now() - this.asked >= REST_MS) void this.load();
  }

  /** Oldest first, each once. */
  get all(): Session[] {
    const ids = new Set(this.first.map((session) => session.id));
    return [...this.first, ...this.rest.filter((session) => !ids.has(session.id))];
  }

  private async load(): Promise<void> {
    this.asking = true;
    this.asked = performance.now();
    const loaded: Session[] = [];
    try {
      let after = this.first[this.first.length - 1]?.id;
      while (after && loaded.length < MOST) {
        const { sessions } = await get<Sessions>(`sessions?limit=${PAGE}&after=${encodeURIComponent(after)}`);
        loaded.push(...sessions);
        after = sessions[sessions.length - 1]?.id;
      }
      this.rest = loaded;
      this.changed();
    } catch {
      // The page says when the server is gone; those of before stay.
    } finally {
      this.asking = false;
    }
  }
}
