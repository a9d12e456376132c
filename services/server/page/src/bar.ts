// A stacked bar with one segment per bucket.

import { ABOUT, BUCKETS } from './buckets.ts';
import { attribute, h, property } from './dom.ts';
import { percent } from './format.ts';

export class Bar {
  readonly root = h('div', { class: 'bar', role: 'img' });
  private readonly parts = BUCKETS.map((bucket) => {
    const part = h('span', { class: 'bar-part' });
    part.style.backgroundImage = `var(--tile-${bucket})`;
    this.root.append(part);
    return part;
  });

  /** Sets the widths; values may be seconds or fractions. */
  set(seconds: Readonly<Record<string, number>> | null): void {
    const whole = seconds ? BUCKETS.reduce((sum, bucket) => sum + (seconds[bucket] ?? 0), 0) : 0;
    const parts: string[] = [];
    BUCKETS.forEach((bucket, index) => {
      const share = seconds && whole > 0 ? (seconds[bucket] ?? 0) / whole : 0;
      property(this.parts[index]!, 'flex-grow', share.toFixed(3));
      if (share >= 0.005) parts.push(`${ABOUT[bucket].label} ${percent(share)}`);
    });
    const label = parts.join(', ') || 'no data yet';
    attribute(this.root, 'aria-label', label);
    attribute(this.root, 'title', label);
  }
}
