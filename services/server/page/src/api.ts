// The server's answers, as /api/v1/openapi.json has them. What is not known is null.

import type { Bucket } from './buckets.ts';

export type Limit = Bucket | 'idle' | 'unknown';
export type Seconds = Record<Bucket, number>;

export interface Advice {
  setting: string;
  words: string;
}

export interface Verdict {
  limit: Limit;
  level: 'none' | 'moderate' | 'input_bound';
  sentence: string;
  confidence: 'none' | 'low' | 'high';
  utilization: number | null;
  stall: number | null;
  shares: Seconds | null;
  what_if: { without: string; speedup: number; then: string } | null;
  advice: Advice[];
  window_seconds: number;
  sessions: number;
}

export interface Stage {
  stage: string;
  bytes_per_second: number | null;
  rows_per_second: number | null;
  busy: number | null;
  active: number | null;
  queue: number | null;
  queue_limit: number | null;
  capacity_bytes_per_second: number | null;
  limiting: boolean;
}

export interface Tier {
  tier: string;
  resident_bytes: number;
  capacity_bytes: number;
  hits: number;
  misses: number;
  hit_bytes: number;
  miss_bytes: number;
  evictions: number | null;
  joins: number | null;
  saved_seconds: number | null;
  errors: number | null;
}

export interface Server {
  version: string;
  started_at: number;
  uptime_seconds: number;
  now: number;
  draining: boolean;
  grpc: string;
  admin: boolean;
}

export interface Overview {
  server: Server;
  verdict: Verdict;
  pipeline: Stage[];
  cache: Tier[];
  process: {
    resident_bytes: number | null;
    cpu_seconds: number | null;
    threads: number | null;
    open_files: number | null;
  } | null;
  cost: { gpu_hour_cost: number; idle_per_hour: number | null; idle_total: number | null } | null;
}

export interface Label {
  column: string;
  batches: number;
  mean: number | null;
  dataset_mean: number | null;
  spread: number | null;
  skewed: boolean;
}

export interface Session {
  id: string;
  job: string;
  dataset: string;
  snapshot: string;
  rank: number;
  world_size: number;
  lanes: number;
  started_at: number;
  wall_seconds: number;
  epoch: number | null;
  step: number | null;
  batches: number;
  batches_total: number | null;
  progress: number | null;
  eta_seconds: number | null;
  rows: number;
  bytes: number;
  rows_per_second: number | null;
  bytes_per_second: number | null;
  reports: boolean;
  client: { wait: number; compute: number; copy: number; gpu_utilization: number | null } | null;
  seconds: Seconds;
  verdict: Verdict;
  label: Label | null;
}

export interface Sessions {
  total: number;
  sessions: Session[];
}

export interface Stalls {
  interval_seconds: number;
  times: number[];
  wall: number[];
  seconds: Record<Bucket, number[]>;
  utilization: (number | null)[];
}

export interface Dataset {
  name: string;
  url: string;
  phase: 'opening' | 'open' | 'failed';
  files_done: number | null;
  files: number | null;
  error: string | null;
  snapshot: string | null;
  snapshot_age_seconds: number | null;
  blocks: number | null;
  rows: number | null;
  decoded_bytes: number | null;
  online: Online | null;
}

export interface Online {
  snapshot: string | null;
  keys: number | null;
  index_bytes: number | null;
  rows_indexed: number | null;
  rows_to_index: number | null;
  error: string | null;
}

export interface Datasets {
  datasets: Dataset[];
}

export interface Forecast {
  capacity_rows_per_second: number;
  utilization: number;
  batch_rows: number;
  batch_seconds: number;
  latency_seconds: number | null;
}

export interface Batching {
  max_batch_rows: number;
  max_queue_delay: string;
  idle: boolean;
  slo: string | null;
}

export interface Queue {
  name: string;
  batching: Batching;
  load: {
    workers: number;
    queued_requests: number;
    queued_rows: number;
    batches: number;
    requests_per_second: number | null;
    predicted_seconds: number | null;
  };
  outcomes: Record<string, number>;
  reasons: Record<string, number>;
  forecast: Forecast | null;
}

export interface Queues {
  queues: Queue[];
}

export interface Frontier {
  name: string;
  requests_per_second: number | null;
  slo_seconds: number | null;
  current: { max_batch_rows: number; max_queue_delay_seconds: number; forecast: Forecast | null };
  points: { max_batch_rows: number; forecast: Forecast }[];
}

export type Change = Partial<Pick<Batching, 'max_batch_rows' | 'max_queue_delay' | 'idle'>>;

export interface Tuned {
  name: string;
  dry_run: boolean;
  batching: Batching;
  forecast: Forecast | null;
  forecast_before: Forecast | null;
}

export interface Event {
  id: number;
  at: number;
  kind: string;
  severity: 'info' | 'warning' | 'error';
  words: string;
  dataset: string | null;
  queue: string | null;
  session: string | null;
}

export interface Events {
  events: Event[];
}

export interface Job {
  id: string;
  job: string;
  dataset: string;
  snapshot: string;
  first_seen: number;
  last_seen: number;
  world_size: number;
  batch_size: number;
}

export interface Jobs {
  jobs: Job[];
}

/** Which batch is asked for. */
export interface Asked {
  job: string;
  epoch: number;
  step: number;
  rank: number;
}

/** What a cell holds; text too where JSON, or JavaScript, has no such number. */
export type Value = number | string | boolean | null;

export interface BatchColumn {
  name: string;
  type: string;
  nulls: number;
  nans: number | null;
  min: Value;
  max: Value;
  mean: Value;
}

export interface BatchPiece {
  dataset: string;
  file: string;
  url: string;
  row_group: number;
  first_row: number;
  row_count: number;
  rows: number[];
  batch_rows: number[];
}

export interface BatchLabel {
  column: string;
  nulls: number;
  min: Value;
  max: Value;
  mean: Value;
}

export interface Explanation extends Asked {
  id: string;
  dataset: string;
  snapshot: string;
  steps: number;
  world_size: number;
  batch_size: number;
  rows: number;
  padding: number;
  groups: number | null;
  batch_rows: number;
  position: number;
  mixed_positions: number[];
  hash: string | null;
  body_bytes: number;
  piece_count: number;
  pieces: BatchPiece[];
  columns: BatchColumn[];
  label: BatchLabel | null;
}

export interface State {
  overview: Overview;
  sessions: Sessions;
  stalls: Stalls;
  queues: Queues;
  datasets: Datasets;
}

/** The server said no; the message is in its words. */
export class Refused extends Error {
  readonly status: number;

  constructor(status: number, words: string) {
    super(words);
    this.status = status;
  }
}

const TIMEOUT_MS = 10_000;
/** A batch has the server's own limit (`limits.explain_timeout`), which it tells of in words. */
const EXPLAIN_TIMEOUT_MS = 600_000;

async function ask<T>(path: string, request: RequestInit, signal?: AbortSignal, timeout = TIMEOUT_MS, revive?: Reviver): Promise<T> {
  const limit = AbortSignal.timeout(timeout);
  const either = signal ? AbortSignal.any([signal, limit]) : limit;
  const response = await fetch(path, { ...request, signal: either, cache: 'no-store' });
  const text = await response.text();
  if (!response.ok) throw new Refused(response.status, wordsOf(text) || `the server answered ${response.status}`);
  return JSON.parse(text, revive) as T;
}

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;

/** Whole numbers that JavaScript would round stay as they were written: a column of ids has such. */
const exact: Reviver = (_key, value, context) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) ? (context?.source ?? value) : value;

function wordsOf(text: string): string {
  try {
    const { error } = JSON.parse(text) as { error?: unknown };
    return typeof error === 'string' ? error : '';
  } catch {
    return text.slice(0, 300);
  }
}

export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return ask<T>(`/api/v1/${path}`, { headers: { accept: 'application/json' } }, signal);
}

/** `query` is that of a summary. */
export function explain(query: string, signal: AbortSignal): Promise<Explanation> {
  return ask(`/api/v1/${query}`, { headers: { accept: 'application/json' } }, signal, EXPLAIN_TIMEOUT_MS, exact);
}

/** Asks what a change would bring, or makes it. `token` is an administrator's, where one was typed in. */
export function tune(
  queue: string,
  change: Change,
  options: { dryRun: boolean; token: string; signal?: AbortSignal },
): Promise<Tuned> {
  const path = `/api/v1/queues/${encodeURIComponent(queue)}${options.dryRun ? '?dry_run' : ''}`;
  const headers: Record<string, string> = { 'content-type': 'application/json' };
  if (options.token) headers['authorization'] = `Bearer ${options.token}`;
  // With a token of its own a request shall not make the browser ask for a password.
  const credentials = options.token ? 'omit' : 'same-origin';
  return ask<Tuned>(path, { method: 'PATCH', headers, credentials, body: JSON.stringify(change) }, options.signal);
}

/** What to show a person for anything that a request may throw. */
export function reason(error: unknown): string {
  if (error instanceof Refused) return error.message;
  if (error instanceof DOMException && error.name === 'TimeoutError') return 'the server does not answer';
  return 'the server can not be reached';
}
