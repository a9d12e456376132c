// Requests to the HTTP API. Types of the responses are generated into schema.ts from openapi.json.

import type { Explanation, QueueConfig, SettingsChange } from './schema.ts';

/** Settings of a queue in a response, where all fields are present. */
export type Settings = Required<QueueConfig>;

/** Settings of a queue that the dashboard can change. */
export type Change = Partial<Pick<Settings, 'max_batch_rows' | 'max_batch_delay' | 'eager_dispatch'>>;

/** Identifies one batch of a job. */
export interface BatchId {
  job_name: string;
  epoch: number;
  step: number;
  rank: number;
}

/** Error response of the server; the message is the server's. */
export class RequestError extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const TIMEOUT_MS = 10_000;
/** Longer than `limits.explain_timeout` of the server, so that its error message arrives. */
const EXPLAIN_TIMEOUT_MS = 600_000;

async function request<T>(path: string, init: RequestInit, signal?: AbortSignal, timeout = TIMEOUT_MS, revive?: Reviver): Promise<T> {
  const limit = AbortSignal.timeout(timeout);
  const either = signal ? AbortSignal.any([signal, limit]) : limit;
  const response = await fetch(path, { ...init, signal: either, cache: 'no-store' });
  const text = await response.text();
  if (!response.ok) throw new RequestError(response.status, errorOf(text) || `the server responded with status ${response.status}`);
  return JSON.parse(text, revive) as T;
}

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;

/** Keeps integers that JavaScript would round as text, for example in a column of ids. */
const exact: Reviver = (_key, value, context) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) ? (context?.source ?? value) : value;

function errorOf(text: string): string {
  try {
    const { error } = JSON.parse(text) as { error?: unknown };
    return typeof error === 'string' ? error : '';
  } catch {
    return text.slice(0, 300);
  }
}

export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return request<T>(`/api/v1/${path}`, { headers: { accept: 'application/json' } }, signal);
}

/** Returns the summary of a batch. */
export function explain(query: string, signal: AbortSignal): Promise<Explanation> {
  return request(`/api/v1/${query}`, { headers: { accept: 'application/json' } }, signal, EXPLAIN_TIMEOUT_MS, exact);
}

/** Changes settings of a queue, or returns the forecast for the change. `token` is an administrator's token, or empty. */
export function changeQueue(
  queue: string,
  change: Change,
  options: { dryRun: boolean; token: string; signal?: AbortSignal },
): Promise<SettingsChange> {
  const path = `/api/v1/queues/${encodeURIComponent(queue)}${options.dryRun ? '?dry_run' : ''}`;
  const headers: Record<string, string> = { 'content-type': 'application/json' };
  if (options.token) headers['authorization'] = `Bearer ${options.token}`;
  // A request with its own token must not make the browser prompt for a password.
  const credentials = options.token ? 'omit' : 'same-origin';
  return request<SettingsChange>(path, { method: 'PATCH', headers, credentials, body: JSON.stringify(change) }, options.signal);
}

/** Describes an error of a request. */
export function reason(error: unknown): string {
  if (error instanceof RequestError) return error.message;
  if (error instanceof DOMException && error.name === 'TimeoutError') return 'the server did not respond in time';
  return 'the server cannot be reached';
}
