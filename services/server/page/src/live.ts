// Server-sent events: opens the stream, opens it again when it ends, and says what came.

import { get, reason, Refused } from './api.ts';
import type { Event, Events, State } from './api.ts';
import { begin, step } from './link.ts';
import type { Link, News } from './link.ts';

const TICK_MS = 250;
/** A page that nobody sees lets go of its connection: browsers have few to one server. */
const HIDDEN_MS = 60_000;
const EVENTS_AT_ONCE = 200;

export interface Listener {
  state(state: State): void;
  events(events: Event[]): void;
  /** `why` is in the server's words where it has some. */
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

  /** The server is another one: its events begin again. */
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

  /** A failed stream has no words; another request may get some. */
  private async ask(): Promise<void> {
    try {
      await get('overview');
      this.why = '';
    } catch (error) {
      this.why = error instanceof Refused ? `The server says: ${reason(error)}.` : '';
    }
  }

  /** The events before the stream, and those of the time without one. */
  private async catchUp(): Promise<void> {
    try {
      // Its own place: what comes by the stream meanwhile is newer.
      for (let last = this.lastEvent; ; ) {
        const after = last === null ? '' : `&after=${last}`;
        const { events } = await get<Events>(`events?limit=${EVENTS_AT_ONCE}${after}`);
        this.heard(events);
        if (events.length < EVENTS_AT_ONCE) return;
        last = events[events.length - 1]!.id;
      }
    } catch {
      // The stream tells, and is opened again.
    }
  }

  private heard(events: Event[]): void {
    if (events.length === 0) return;
    const last = events[events.length - 1]!.id;
    this.lastEvent = Math.max(this.lastEvent ?? last, last);
    this.listener.events(events);
  }
}
