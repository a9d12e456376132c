// Ranks of the jobs side by side: how long each waits, and which one the others wait for.

import type { JobRanks as Job, Rank } from './schema.ts';
import { attribute, byId, h, keyed, property, show, text } from './dom.ts';
import { number, percent, plural } from './format.ts';
import { labelOf } from './buckets.ts';

/** The label of a rank that waits, such as `85%, storage`; its bottleneck only if it waits noticeably. */
export function waitText({ wait_fraction, bottleneck }: Pick<Rank, 'wait_fraction' | 'bottleneck'>): string {
  const named = wait_fraction !== null && wait_fraction >= 0.05 && bottleneck !== 'unknown' && bottleneck !== 'idle';
  return named ? `${percent(wait_fraction)}, ${labelOf(bottleneck)}` : percent(wait_fraction);
}

/** Heading of a job, such as `ctr-v3, 4 of 8 ranks at this server`. */
export function jobText({ job_name, dataset, running_ranks, world_size }: Job): string {
  const name = job_name || `unnamed job on ${dataset}`;
  const here = running_ranks < world_size ? `${number(running_ranks)} of ${plural(world_size, 'rank')} at this server` : plural(world_size, 'rank');
  return `${name}, ${here}`;
}

class RankView {
  readonly root: HTMLElement;
  private readonly name = h('span', { class: 'rank-name' });
  private readonly fill = h('span', { class: 'meter-fill' });
  private readonly wait = h('span', { class: 'number' });
  private readonly step = h('span', { class: 'muted' });

  constructor() {
    this.root = h('li', { class: 'rank' }, this.name, h('span', { class: 'meter', 'aria-hidden': 'true' }, this.fill), this.wait, this.step);
  }

  set(rank: Rank, straggler: boolean): void {
    attribute(this.root, 'data-testid', `rank-${rank.session}`);
    attribute(this.root, 'data-straggler', straggler);
    text(this.name, straggler ? `rank ${rank.rank}, straggler` : `rank ${rank.rank}`);
    property(this.fill, 'width', `${(Math.min(1, rank.wait_fraction ?? 0) * 100).toFixed(1)}%`);
    text(this.wait, waitText(rank));
    text(this.step, `epoch ${number(rank.epoch)}, step ${number(rank.step)}`);
  }
}

class JobView {
  readonly root: HTMLElement;
  private readonly title = h('h3');
  private readonly summary = h('p', { class: 'straggler-summary' });
  private readonly more = h('p', { class: 'muted' });
  private readonly list = h('ul', { class: 'ranks' });
  private readonly ranks = new Map<string, RankView>();

  constructor() {
    this.root = h('section', {}, this.title, this.summary, this.list, this.more);
  }

  set(job: Job): void {
    text(this.title, jobText(job));
    text(this.summary, job.summary ?? 'No straggler: the ranks wait about equally.');
    attribute(this.summary, 'data-straggler', job.straggler !== null);
    keyed(this.list, this.ranks, job.ranks, (rank) => rank.session, () => new RankView(), (view, rank) => view.set(rank, rank.rank === job.straggler));
    const left = job.running_ranks - job.ranks.length;
    show(this.more, left > 0);
    text(this.more, `and ${number(left)} more that wait less`);
  }
}

export class RanksView {
  private readonly section = byId('ranks');
  private readonly list = byId('ranks-jobs');
  private readonly jobs = new Map<string, JobView>();

  update(jobs: Job[]): void {
    show(this.section, jobs.length > 0);
    keyed(this.list, this.jobs, jobs, (job) => job.ranks[0]?.session ?? job.job_name, () => new JobView(), (view, job) => view.set(job));
  }
}
