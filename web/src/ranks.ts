/** Finds the rank that wrote a file, if the file's name states it. Pure. */
const PATTERNS: readonly RegExp[] = [/(?:^|\/)__(\d+)_\d+\.distcp$/, /(?:^|[_./-])rank_?(\d+)/];

export function rankOf(file: string): number | undefined {
  for (const pattern of PATTERNS) {
    const [, rank] = pattern.exec(file) ?? [];
    if (rank !== undefined) return Number(rank);
  }
  return undefined;
}
