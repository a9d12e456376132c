// Server-sent events: opens the stream, reopens it when it ends, and passes on states and events.

import { get, reason, RequestError } from './api.ts';
import { begin, step } from './link.ts';
import type { Link, News } from './link.ts';
import type { Event, EventList, State } from './schema.ts';

const TICK_MS = 250;
/** Time after which a hidden page closes its stream: browsers limit the connections per server. */
const HIDDEN_MS = 60_000;
const EVENTS_AT_ONCE = 200;

export interface Listener {
  state(state: State): void;
  events(events: Event[]): void;
  /** `why` is the error message of the server, or empty. */
  link(link: Link, why: string): void;
}

export class Live {
  private readonly listener: Listener;
  private link: Link = begin(performance.now());
  private source: EventSource | null = null;
  private lastEvent: number | null = null;
  private why = '';
  private hiddenSince: number | null = null;

  constructor(listener: Listener) {
    this.listener = listener;
  }

  start(): void {
    setInterval(() => this.tick(), TICK_MS);
    document.addEventListener('visibilitychange', () => this.looked());
    this.news('tick');
  }

  /** Reloads the events after a restart of the server. */
  forgetEvents(): void {
    this.lastEvent = null;
    void this.catchUp();
  }

  private tick(): void {
    const now = performance.now();
    if (this.hiddenSince !== null && now - this.hiddenSince > HIDDEN_MS && !this.link.asleep) this.news('sleep');
    this.news('tick');
  }

  private looked(): void {
    this.hiddenSince = document.hidden ? performance.now() : null;
    if (!document.hidden) this.news('wake');
  }

  private news(news: News): void {
    const [link, act] = step(this.link, news, performance.now());
    this.link = link;
    if (act === 'open') this.open();
    if (act === 'close') this.close();
    this.listener.link(this.link, this.why);
  }

  private open(): void {
    const source = new EventSource('/api/v1/live');
    this.source = source;
    source.addEventListener('state', (message) => {
      this.why = '';
      this.news('state');
      this.listener.state(JSON.parse(message.data as string) as State);
    });
    source.addEventListener('event', (message) => this.heard([JSON.parse(message.data as string) as Event]));
    source.addEventListener('error', () => {
      if (this.source !== source) return;
      this.news('failed');
      void this.ask();
    });
    void this.catchUp();
  }

  private close(): void {
    this.source?.close();
    this.source = null;
  }

  /** A failed stream has no error message; another request may return one. */
  private async ask(): Promise<void> {
    try {
      await get('overview');
      this.why = '';
    } catch (error) {
      this.why = error instanceof RequestError ? `Error: ${reason(error)}.` : '';
    }
  }

  /** Loads events from before the stream was opened. */
  private async catchUp(): Promise<void> {
    try {
      // A position of its own: the stream may deliver newer events concurrently.
      for (let last = this.lastEvent; ; ) {
        const after = last === null ? '' : `&after=${last}`;
        const { events } = await get<EventList>(`events?limit=${EVENTS_AT_ONCE}${after}`);
        this.heard(events);
        if (events.length < EVENTS_AT_ONCE) return;
        last = events[events.length - 1]!.id;
      }
    } catch {
      // The stream fails as well and is reopened.
    }
  }

  private heard(events: Event[]): void {
    if (events.length === 0) return;
    const last = events[events.length - 1]!.id;
    this.lastEvent = Math.max(this.lastEvent ?? last, last);
    this.listener.events(events);
  }
}
