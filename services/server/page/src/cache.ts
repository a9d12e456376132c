// The cache's tiers: how full, what they spared, and how well they did lately.

import type { Tier } from './api.ts';
import { attribute, byId, Figure, h, keyed, property, show, text } from './dom.ts';
import { bytes, duration, number, percent } from './format.ts';

/** How many states, one a second, "lately" is. */
const LATELY = 10;

const NAMES: Record<string, string> = { memory: 'Memory', disk: 'Disk' };
const HOLDS: Record<string, string> = { memory: 'frames, ready to gather', disk: 'decoded columns' };

export function ratio(hits: number, misses: number): number | null {
  return hits + misses > 0 ? hits / (hits + misses) : null;
}

class TierView {
  readonly root: HTMLElement;
  private readonly fill = h('span', { class: 'meter-fill' });
  private readonly meter = h('span', { class: 'meter', role: 'img' }, this.fill);
  private readonly full = h('p', { class: 'muted' });
  private readonly lately = new Figure('hits lately', 'Of what was asked for in the last 10 s');
  private readonly hits = new Figure('hits', 'Of what was asked for since the start');
  private readonly byBytes = new Figure('by bytes');
  private readonly saved = new Figure('time saved', 'Work that need not be done again because of hits');
  private readonly evictions = new Figure('evictions');
  private readonly joins = new Figure('shared loads', 'Asked for while it was being made for somebody else');
  private readonly errors = new Figure('errors');
  private readonly past: Tier[] = [];

  constructor(tier: string) {
    const figures = [this.lately, this.hits, this.byBytes, this.saved, this.evictions, this.joins, this.errors];
    this.root = h(
      'section',
      { class: 'tier', id: `cache-${tier}`, 'data-testid': `cache-${tier}` },
      h('h3', {}, NAMES[tier] ?? tier, h('span', { class: 'muted' }, ` ${HOLDS[tier] ?? ''}`)),
      this.meter,
      this.full,
      h('dl', { class: 'figures' }, ...figures.map((figure) => figure.root)),
    );
  }

  set(tier: Tier): void {
    const full = tier.capacity_bytes > 0 ? tier.resident_bytes / tier.capacity_bytes : 0;
    property(this.fill, 'width', `${Math.min(100, full * 100).toFixed(1)}%`);
    attribute(this.meter, 'aria-label', `${percent(full)} full`);
    text(this.full, `${bytes(tier.resident_bytes)} of ${bytes(tier.capacity_bytes)} (${percent(full)})`);
    this.past.push(tier);
    if (this.past.length > LATELY) this.past.shift();
    const before = this.past[0]!;
    this.lately.set(percent(ratio(tier.hits - before.hits, tier.misses - before.misses)));
    this.hits.set(percent(ratio(tier.hits, tier.misses)));
    this.byBytes.set(percent(ratio(tier.hit_bytes, tier.miss_bytes)));
    this.saved.set(duration(tier.saved_seconds));
    this.evictions.set(number(tier.evictions));
    this.joins.set(number(tier.joins));
    this.errors.set(number(tier.errors));
    this.errors.root.classList.toggle('bad', (tier.errors ?? 0) > 0);
  }
}

export class CacheView {
  private readonly list = byId('cache-tiers');
  private readonly tiers = new Map<string, TierView>();
  private readonly noDisk = byId('cache-no-disk');

  update(cache: Tier[]): void {
    keyed(this.list, this.tiers, cache, (tier) => tier.tier, (tier) => new TierView(tier.tier), (view, tier) => view.set(tier));
    show(this.noDisk, !cache.some((tier) => tier.tier === 'disk'));
  }
}
