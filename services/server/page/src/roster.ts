// All running sessions: the first ones are part of each state, the others are loaded page by page.

import { get } from './api.ts';
import type { Session, SessionList } from './schema.ts';

const PAGE = 500;
const REST_MS = 5000;
/** Largest number of sessions to load. */
const MAX_SESSIONS = 20_000;

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

  update(sessions: SessionList): void {
    this.total = sessions.total;
    this.first = sessions.sessions;
    if (this.total <= this.first.length) this.rest = [];
    else if (!this.asking && performance.now() - this.asked >= REST_MS) void this.load();
  }

  /** All sessions, oldest first, without duplicates. */
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
      while (after && loaded.length < MAX_SESSIONS) {
        const { sessions } = await get<SessionList>(`sessions?limit=${PAGE}&after=${encodeURIComponent(after)}`);
        loaded.push(...sessions);
        after = sessions[sessions.length - 1]?.id;
      }
      this.rest = loaded;
      this.changed();
    } catch {
      // The header shows that the server is unreachable; the previous sessions remain.
    } finally {
      this.asking = false;
    }
  }
}
