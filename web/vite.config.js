import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  publicDir: ".samples",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  worker: { format: "es" },
  build: { target: "es2022", outDir: "dist", assetsInlineLimit: 0, modulePreload: { polyfill: false }, reportCompressedSize: false },
  server: { fs: { allow: [".."] } },
});
