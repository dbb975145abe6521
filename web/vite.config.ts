import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const server = process.env.CONTINUO_URL ?? 'http://127.0.0.1:8000';

export default defineConfig({
  base: './', // the page may be served under a path prefix
  build: {
    outDir: fileURLToPath(new URL('../realtime/server/assets', import.meta.url)),
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: 'es2022',
    license: { fileName: 'licenses.md' }, // of the packages that are bundled into the page
    rolldownOptions: { input: ['index.html', 'admin.html'] },
  },
  server: { proxy: { '/v1': { target: server, ws: true }, '/health': server } },
});
