// Operational events, newest first.

import type { Event } from './schema.ts';
import { byId, h, show } from './dom.ts';
import { clock } from './format.ts';
import { icon } from './icons.ts';

const MAX_EVENTS = 200;

function item(event: Event): HTMLElement {
  const about = [event.dataset, event.queue, event.session].filter((name) => name !== null).join(' · ');
  const at = new Date(event.timestamp * 1000);
  return h(
    'li',
    { 'data-severity': event.severity, 'data-id': event.id },
    icon(event.severity),
    h('time', { datetime: at.toISOString(), title: at.toLocaleString() }, clock(event.timestamp)),
    h('span', { class: 'event-message' }, event.message, about ? h('span', { class: 'muted' }, ` ${about}`) : null),
  );
}

export class EventsView {
  private readonly list = byId('events-list');
  private readonly empty = byId('events-empty');
  private readonly seen = new Set<number>();

  add(events: Event[]): void {
    for (const event of events) {
      if (this.seen.has(event.id)) continue;
      this.seen.add(event.id);
      this.list.insertBefore(item(event), this.below(event.id));
    }
    while (this.list.children.length > MAX_EVENTS) {
      const last = this.list.lastElementChild as HTMLElement;
      this.seen.delete(Number(last.dataset['id']));
      last.remove();
    }
    show(this.empty, this.list.children.length === 0);
  }

  /** Removes all events: a restarted server numbers them from 1. */
  clear(): void {
    this.seen.clear();
    this.list.replaceChildren();
    show(this.empty, true);
  }

  /** Returns the first older item. New events are usually the newest. */
  private below(id: number): Element | null {
    for (const child of this.list.children) if (Number((child as HTMLElement).dataset['id']) < id) return child;
    return null;
  }
}
