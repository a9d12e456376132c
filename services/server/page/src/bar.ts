// A bar of the buckets' shares, each as wide as its share and with its pattern.

import type { Seconds } from './api.ts';
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

  /** Seconds or shares: only how they compare counts. */
  set(seconds: Seconds | null): void {
    const whole = seconds ? BUCKETS.reduce((sum, bucket) => sum + (seconds[bucket] ?? 0), 0) : 0;
    const words: string[] = [];
    BUCKETS.forEach((bucket, index) => {
      const share = seconds && whole > 0 ? (seconds[bucket] ?? 0) / whole : 0;
      property(this.parts[index]!, 'flex-grow', share.toFixed(3));
      if (share >= 0.005) words.push(`${ABOUT[bucket].label} ${percent(share)}`);
    });
    const label = words.join(', ') || 'nothing yet';
    attribute(this.root, 'aria-label', label);
    attribute(this.root, 'title', label);
  }
}
