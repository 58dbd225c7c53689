import type { SourceFile, Tessera } from "./tessera.js";

/** Both modules of the package, loaded and ready: no `prepare` is needed. */
export function load(): Promise<Tessera>;

/** The files of a folder (and up to three levels below it), or one file, for `Tessera.open(files, options)`. */
export function filesOf(target: string): {
  readonly files: SourceFile[];
  readonly options: { primary?: string };
  /** Closes the descriptors that were opened on the way. */
  close(): void;
};
