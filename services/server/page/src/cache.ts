// Cache tiers: fill level, hit ratios and time saved.

import type { CacheTier as Tier } from './schema.ts';
import { attribute, byId, Figure, h, keyed, property, show, text } from './dom.ts';
import { bytes, duration, number, percent } from './format.ts';
import { increase, sampled } from './recent.ts';
import type { Sample } from './recent.ts';

const NAMES: Record<string, string> = { memory: 'Memory', disk: 'Disk' };
const HOLDS: Record<string, string> = { memory: 'decoded rows, ready to gather', disk: 'decoded columns' };

export function ratio(hits: number, misses: number): number | null {
  return hits + misses > 0 ? hits / (hits + misses) : null;
}

class TierView {
  readonly root: HTMLElement;
  private readonly fill = h('span', { class: 'meter-fill' });
  private readonly meter = h('span', { class: 'meter', role: 'img' }, this.fill);
  private readonly full = h('p', { class: 'muted' });
  private readonly recent = new Figure('recent hit ratio', 'Hits per read in the last 10 s');
  private readonly hits = new Figure('hit ratio', 'Hits per read since the start of the server');
  private readonly byBytes = new Figure('byte hit ratio', 'Bytes found in the tier per bytes read, since the start of the server');
  private readonly saved = new Figure('time saved', 'Time to load the values again, had they not been found');
  private readonly evictions = new Figure('evictions', 'Values removed to free space');
  private readonly coalesced = new Figure('coalesced loads', 'Reads that waited for a load that another read had started');
  private readonly errors = new Figure('errors', 'Damaged values, failed reads and failed writes');
  private past: Sample<'hits' | 'misses'>[] = [];

  constructor(tier: string) {
    const figures = [this.recent, this.hits, this.byBytes, this.saved, this.evictions, this.coalesced, this.errors];
    this.root = h(
      'section',
      { class: 'tier', id: `cache-${tier}`, 'data-testid': `cache-${tier}` },
      h('h3', {}, NAMES[tier] ?? tier, h('span', { class: 'muted' }, ` ${HOLDS[tier] ?? ''}`)),
      this.meter,
      this.full,
      h('dl', { class: 'figures' }, ...figures.map((figure) => figure.root)),
    );
  }

  set(tier: Tier, time: number): void {
    const full = tier.capacity_bytes > 0 ? tier.resident_bytes / tier.capacity_bytes : 0;
    property(this.fill, 'width', `${Math.min(100, full * 100).toFixed(1)}%`);
    attribute(this.meter, 'aria-label', `${percent(full)} full`);
    text(this.full, `${bytes(tier.resident_bytes)} of ${bytes(tier.capacity_bytes)} (${percent(full)})`);
    this.past = sampled(this.past, { time, counters: { hits: tier.hits, misses: tier.misses } });
    this.recent.set(percent(ratio(increase(this.past, 'hits') ?? 0, increase(this.past, 'misses') ?? 0)));
    this.hits.set(percent(ratio(tier.hits, tier.misses)));
    this.byBytes.set(percent(ratio(tier.hit_bytes, tier.miss_bytes)));
    this.saved.set(duration(tier.saved_seconds));
    this.evictions.set(number(tier.evictions));
    this.coalesced.set(number(tier.coalesced_loads));
    this.errors.set(number(tier.errors));
    this.errors.root.classList.toggle('bad', tier.errors > 0);
  }
}

export class CacheView {
  private readonly list = byId('cache-tiers');
  private readonly tiers = new Map<string, TierView>();
  private readonly noDisk = byId('cache-no-disk');

  /** `time` is that of the state, in Unix seconds by the clock of the server. */
  update(cache: Tier[], time: number): void {
    keyed(this.list, this.tiers, cache, (tier) => tier.tier, (tier) => new TierView(tier.tier), (view, tier) => view.set(tier, time));
    show(this.noDisk, !cache.some((tier) => tier.tier === 'disk'));
  }
}
