/** The program's paths: "/" separates names on every system. On Windows, Node's paths are theirs with either separator. */

/** A path for the program. */
export const toProgram = (path, isWindows) => (isWindows ? path.replaceAll("\\", "/") : path);

/** Whether a path does not depend on the working directory. On Windows, so do "/x" and "C:x", but not on a directory of ours. */
export const isAbsolute = (path, isWindows) => path.startsWith("/") || (isWindows && /^[a-z]:/i.test(path));

/** The path of `name` in a directory. */
export function within(directory, name, isWindows) {
  if (isAbsolute(name, isWindows)) return name;
  return directory === undefined || directory === "" ? name : directory.endsWith("/") ? directory + name : `${directory}/${name}`;
}

/** What became of `path` after `from` was renamed to `to`. */
export function renamed(path, from, to) {
  const [old, moved] = [from.replace(/(?<=.)\/+$/, ""), to.replace(/(?<=.)\/+$/, "")];
  return path === old ? moved : path.startsWith(`${old}/`) ? moved + path.slice(old.length) : path;
}

/** Whether `path` is `directory` or below it. */
export const isWithin = (path, directory) => path === directory || path.startsWith(`${directory}/`);

/** A text of the command line in which an argument may be a path: Windows' separators become the program's. A GLOB, a pattern or a
 *  text is not a path, so only those arguments are changed whose option takes one (`isPath`), and those without an option. Addresses stay. */
export function toArguments(words, isPath, isWindows) {
  if (!isWindows) return words;
  let takesNext = false, isOver = false;
  return words.map((word, i) => {
    const before = takesNext;
    takesNext = false;
    if (before !== false) return before === "path" ? toProgram(word, true) : word;
    if (i === 0 || isOver || !word.startsWith("-") || word === "-") return /^[a-z][a-z0-9+.-]+:\/\//i.test(word) ? word : toProgram(word, true);
    if (word === "--") isOver = true;
    const [, name, value] = /^(-[^-]|--[^=]+)=?(.*)$/s.exec(word) ?? [word, word, ""], kind = isPath(name);
    if (kind === "flag") return word;
    if (value === "" && !word.includes("=")) takesNext = kind;
    return kind === "path" && value !== "" ? word.slice(0, word.length - value.length) + toProgram(value, true) : word;
  });
}
