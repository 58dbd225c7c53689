import type { Sink, SourceFile, Tessera } from "./tessera.js";

/** The module of the package, loaded and ready: no `prepare` is needed. */
export function load(): Promise<Tessera>;

/** The files of a directory and of those below it, or one file, for `Tessera.open(files, options)`. With a file that stands for a set
 *  (an index, .metadata) come the files next to it. A read of a file that changed since then throws. */
export function filesOf(target: string): {
  readonly files: SourceFile[];
  readonly options: { primary?: string };
  /** Closes the descriptors that were opened on the way. */
  close(): void;
};

/** A sink that writes a directory or a file on the disk: next to its place first, then synced and renamed, so that it is there
 *  completely or not at all. Refuses an existing destination unless `overwrite`, which keeps files that are not part of the old
 *  checkpoint. */
export function sinkOf(target: string, options?: { overwrite?: boolean | undefined }): Sink;
