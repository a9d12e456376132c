// Fixed names and no hashes: the server embeds exactly these files (docs/adr/0016-dashboard.md).
import { readFileSync } from 'node:fs';
import { defineConfig } from 'vite';

// uPlot's licence must accompany its code.
const uplot = readFileSync(new URL('node_modules/uplot/LICENSE', import.meta.url), 'utf8');

export default defineConfig({
  build: {
    target: 'es2022',
    outDir: 'dist',
    emptyOutDir: true,
    modulePreload: false,
    sourcemap: false,
    rollupOptions: {
      output: {
        entryFileNames: 'page.js',
        assetFileNames: 'page.[ext]',
        codeSplitting: false,
        postBanner: `/*! This file holds uPlot.\n${uplot.trim()}\n*/`,
      },
    },
  },
});
