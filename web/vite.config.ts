import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const server = process.env.CONTINUO_URL ?? 'http://127.0.0.1:8000';

export default defineConfig({
  build: {
    outDir: fileURLToPath(new URL('../realtime/server/assets', import.meta.url)),
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: 'es2022',
    rolldownOptions: { input: ['index.html', 'admin.html'] },
  },
  server: { proxy: { '/v1': { target: server, ws: true }, '/health': server } },
});
