// The first thing to see: who waits for what, and what would help.

import type { Overview, Verdict } from './api.ts';
import { Bar } from './bar.ts';
import { labelOf } from './buckets.ts';
import { attribute, byId, Figure, h, show, text } from './dom.ts';
import { duration, money, percent, plural, times } from './format.ts';

const LEVELS: Record<string, string> = {
  none: 'Fed',
  moderate: 'Waits some',
  input_bound: 'Input-bound',
  idle: 'Idle',
  unknown: 'Too early',
};

const CONFIDENCE: Record<string, string> = {
  none: 'none yet',
  low: 'low: it was not seen twice yet',
  high: 'high',
};

/** The word of a verdict, and the class that colours it. */
export function levelOf(verdict: Verdict): { key: string; word: string } {
  const key = verdict.limit === 'idle' || verdict.limit === 'unknown' ? verdict.limit : verdict.level;
  return { key, word: LEVELS[key] ?? key };
}

export class VerdictView {
  private readonly root = byId('verdict');
  private readonly sentence = byId('verdict-sentence');
  private readonly level = byId('verdict-level');
  private readonly advice = byId('verdict-advice');
  private readonly bar = new Bar();
  private readonly utilization = new Figure('accelerators busy', 'The share of their time in which trainers compute');
  private readonly stall = new Figure('waiting');
  private readonly whatIf = new Figure('at most, without the limit');
  private readonly confidence = new Figure('confidence');
  private readonly window = new Figure('over');
  private readonly cost = new Figure('idle accelerators cost');
  private adviceShown = '';

  constructor() {
    const figures = [this.utilization, this.stall, this.whatIf, this.confidence, this.window, this.cost];
    byId('verdict-figures').append(...figures.map((figure) => figure.root));
    byId('verdict-bar').append(this.bar.root);
    this.utilization.root.classList.add('figure-large');
    attribute(this.utilization.value, 'data-testid', 'verdict-utilization');
    attribute(this.utilization.value, 'id', 'verdict-utilization');
    this.confidence.value.id = 'verdict-confidence';
    this.whatIf.value.id = 'verdict-what-if';
  }

  update({ verdict, cost }: Overview): void {
    const level = levelOf(verdict);
    attribute(this.root, 'data-level', level.key);
    text(this.level, level.word);
    // It is a live region: only what changed is spoken.
    text(this.sentence, verdict.sentence);
    const busy = level.key !== 'idle';
    show(this.bar.root, busy && verdict.shares !== null);
    this.bar.set(verdict.shares);
    this.utilization.set(percent(verdict.utilization));
    this.stall.set(percent(verdict.stall));
    show(this.whatIf.root, verdict.what_if !== null);
    if (verdict.what_if) {
      const { without, speedup, then } = verdict.what_if;
      this.whatIf.set(`${times(speedup)} without ${labelOf(without)}, then ${labelOf(then)}`);
    }
    show(this.confidence.root, busy);
    this.confidence.set(CONFIDENCE[verdict.confidence] ?? verdict.confidence);
    show(this.window.root, busy);
    this.window.set(`${duration(verdict.window_seconds)}, ${plural(verdict.sessions, 'session')}`);
    show(this.cost.root, cost !== null);
    if (cost) this.cost.set(`${money(cost.idle_per_hour)} an hour, ${money(cost.idle_total)} so far`);
    this.advise(verdict);
  }

  private advise(verdict: Verdict): void {
    const now = JSON.stringify(verdict.advice);
    if (now === this.adviceShown) return;
    this.adviceShown = now;
    const items = verdict.advice.map(({ setting, words }) => h('li', {}, h('code', {}, setting), ` ${words}`));
    this.advice.replaceChildren(...items);
    show(byId('verdict-advice-box'), items.length > 0);
  }
}
