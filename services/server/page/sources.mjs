// SHA-256 over the sources of dist/: for each file, sorted by path, `path + "\n" + length + "\n" + bytes`.
// A test of the server computes the same hash and fails if dist/ is out of date.
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const home = new URL('.', import.meta.url);
const files = ['index.html', 'public/icon.svg', 'package.json', 'package-lock.json', 'tsconfig.json', 'vite.config.ts'];

function below(folder) {
  const entries = readdirSync(new URL(`${folder}/`, home), { withFileTypes: true });
  return entries.flatMap((entry) => {
    const path = `${folder}/${entry.name}`;
    return entry.isDirectory() ? below(path) : [path];
  });
}

const hash = createHash('sha256');
const byBytes = (one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other));
for (const path of [...files, ...below('src')].sort(byBytes)) {
  const bytes = readFileSync(new URL(path, home));
  hash.update(`${path}\n${bytes.length}\n`).update(bytes);
}
const line = `${hash.digest('hex')}\n`;
if (process.argv.includes('--write')) {
  writeFileSync(fileURLToPath(new URL('dist/SOURCES', home)), line);
} else {
  process.stdout.write(line);
}
