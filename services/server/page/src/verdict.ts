// The current bottleneck of all sessions, and advice.

import type { Overview, Verdict } from './schema.ts';
import { Bar } from './bar.ts';
import { labelOf } from './buckets.ts';
import { attribute, byId, Figure, h, show, text } from './dom.ts';
import { duration, money, number, percent, plural, times } from './format.ts';

const LEVELS: Record<string, string> = {
  none: 'Not input-bound',
  moderate: 'Some waiting',
  input_bound: 'Input-bound',
  idle: 'Idle',
  unknown: 'No verdict yet',
};

const CONFIDENCE: Record<string, string> = {
  none: 'none: too little data',
  low: 'low: no stage has half of the wait',
  high: 'high',
};

/** Label of a verdict, and the key that selects its colour. It is never calmer than the sessions that it is about. */
export function levelOf(verdict: Verdict): { key: string; word: string } {
  const { silent_seconds, input_bound_sessions, sessions } = verdict;
  if (silent_seconds !== null) return { key: 'input_bound', word: `No answer from the store for ${duration(silent_seconds)}` };
  if (sessions > 1 && input_bound_sessions > 0 && (verdict.level !== 'input_bound' || verdict.bottleneck === 'unknown')) {
    return { key: 'input_bound', word: `${number(input_bound_sessions)} of ${plural(sessions, 'session')} input-bound` };
  }
  const key = verdict.bottleneck === 'idle' || verdict.bottleneck === 'unknown' ? verdict.bottleneck : verdict.level;
  return { key, word: LEVELS[key] ?? key };
}

export class VerdictView {
  private readonly root = byId('verdict');
  private readonly summary = byId('verdict-summary');
  private readonly level = byId('verdict-level');
  private readonly advice = byId('verdict-advice');
  private readonly bar = new Bar();
  private readonly compute = new Figure('trainer compute share', 'Fraction of the time that trainers compute instead of waiting for batches');
  private readonly wait = new Figure('waiting', 'Fraction of the time that trainers wait for batches');
  private readonly whatIf = new Figure('without the bottleneck', 'Upper bound of the speedup from removing the bottleneck, and the next bottleneck');
  private readonly confidence = new Figure('confidence');
  private readonly window = new Figure('measured over', 'Time and sessions that the verdict is based on');
  private readonly cost = new Figure('cost of waiting', 'Cost of GPUs while their trainers wait');
  private adviceShown = '';

  constructor() {
    const figures = [this.compute, this.wait, this.whatIf, this.confidence, this.window, this.cost];
    byId('verdict-figures').append(...figures.map((figure) => figure.root));
    byId('verdict-bar').append(this.bar.root);
    this.compute.root.classList.add('figure-large');
    attribute(this.compute.value, 'data-testid', 'verdict-compute');
    attribute(this.compute.value, 'id', 'verdict-compute');
    this.confidence.value.id = 'verdict-confidence';
    this.whatIf.value.id = 'verdict-what-if';
  }

  update({ verdict, cost }: Overview): void {
    const level = levelOf(verdict);
    attribute(this.root, 'data-level', level.key);
    text(this.level, level.word);
    // A live region: screen readers announce only changes.
    text(this.summary, verdict.summary);
    const busy = level.key !== 'idle';
    show(this.bar.root, busy && verdict.sessions > 0);
    this.bar.set(verdict.bucket_fractions);
    this.compute.set(percent(verdict.compute_fraction));
    this.wait.set(percent(verdict.wait_fraction));
    show(this.whatIf.root, verdict.what_if !== null);
    if (verdict.what_if) {
      const { removed, speedup, next_bottleneck } = verdict.what_if;
      this.whatIf.set(`at most ${times(speedup)} without ${labelOf(removed)}; next: ${labelOf(next_bottleneck)}`);
    }
    // That a store does not answer is observed, not judged.
    show(this.confidence.root, busy && verdict.silent_seconds === null);
    this.confidence.set(CONFIDENCE[verdict.confidence] ?? verdict.confidence);
    show(this.window.root, busy);
    this.window.set(`${duration(verdict.window_seconds)}, ${plural(verdict.sessions, 'session')}`);
    show(this.cost.root, cost !== null);
    if (cost) this.cost.set(`${money(cost.idle_per_hour)} per hour, ${money(cost.idle_total)} since the start`);
    this.advise(verdict);
  }

  private advise(verdict: Verdict): void {
    const now = JSON.stringify(verdict.advice);
    if (now === this.adviceShown) return;
    this.adviceShown = now;
    const items = verdict.advice.map(({ setting, message }) => h('li', {}, h('code', {}, setting), ` ${message}`));
    this.advice.replaceChildren(...items);
    show(byId('verdict-advice-box'), items.length > 0);
  }
}
