import type { Sink, SourceFile, Tessera } from "./tessera.js";

/** Loads both files of the module, so `prepare` is not needed. */
export function load(): Promise<Tessera>;

/** Lists the files of a directory and of the directories below it, or one file, for `Tessera.open(files, options)`. For a
 *  file that represents a set (an index, .metadata), the files next to it are listed too. Reading a file that has changed
 *  since then throws. */
export function filesOf(target: string): {
  readonly files: SourceFile[];
  readonly options: { primary?: string };
  /** Closes the descriptors that were opened. */
  close(): void;
};

/** Makes a sink that writes a directory or a file to disk. It is first written next to its destination, then synced and
 *  renamed, so that it appears completely or not at all. An existing destination is rejected unless `overwrite` is set,
 *  which keeps files that are not part of the old checkpoint. A checkpoint with directories (deepspeed-universal) is only
 *  written to a new destination. */
export function sinkOf(target: string, options?: { overwrite?: boolean | undefined }): Sink;
