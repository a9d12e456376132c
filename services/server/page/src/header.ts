// Which server this is, whether it is heard, and whether it is about to stop.

import type { Overview } from './api.ts';
import { attribute, byId, show, text } from './dom.ts';
import { bytes, clock, duration, number } from './format.ts';
import type { Link } from './link.ts';
import { labelOf } from './buckets.ts';

export class HeaderView {
  private readonly stale = byId('stale-banner');
  private readonly staleWords = byId('stale-words');
  private readonly drain = byId('drain-banner');
  private readonly pulse = byId('pulse');
  private at: number | null = null;

  update({ server, verdict, process }: Overview): void {
    this.at = Date.now() / 1000;
    text(byId('server-version'), server.version);
    text(byId('server-grpc'), server.grpc);
    text(byId('server-uptime'), `up ${duration(server.uptime_seconds)}`);
    show(this.drain, server.draining);
    const about = process
      ? `${bytes(process.resident_bytes)} of memory, ${duration(process.cpu_seconds)} of processor time, ${number(process.threads)} threads, ${number(process.open_files)} open files`
      : '';
    text(byId('process'), about);
    const waits = verdict.stall === null ? '' : `, waits ${Math.round(verdict.stall * 100)} %`;
    const title = `${labelOf(verdict.limit)}${waits} · Forebay`;
    if (document.title !== title) document.title = title;
  }

  /** Says how old everything below is, and dims it. */
  link(link: Link, why: string, now: number): void {
    const stale = link.stale;
    attribute(document.documentElement, 'data-stale', stale);
    show(this.stale, stale);
    text(byId('stale-spoken'), stale ? 'No word from the server' : '');
    text(this.pulse, stale ? 'no word' : link.heardAt === null ? 'connecting' : 'live');
    attribute(this.pulse, 'data-state', stale ? 'stale' : link.heardAt === null ? 'connecting' : 'live');
    if (!stale) return;
    const silent = Math.floor((now - (link.heardAt ?? link.openedAt)) / 1000);
    const below = this.at === null ? 'Nothing came yet.' : `What is below is from ${clock(this.at)}.`;
    text(this.staleWords, `No word from the server for ${number(silent)} s. ${below}${why ? ` ${why}` : ''}`);
  }
}
