/** A command to copy. */
import type { JSX } from "preact";
import { pythonText, shellText, type Command } from "../command";
import { visible } from "../text";
import { Copy } from "./parts";

/** The buttons that copy a command, for a shell and as Python. */
export const CopyCommand = ({ command, result }: { command: Command; result?: string }): JSX.Element =>
  <><Copy text={shellText(command)} what="as command" label="Copy as command" /> <Copy text={pythonText(command, result)} what="as Python" label="Copy as Python" /></>;

/** What a view does, as a command. */
export const SameCommand = ({ command }: { command: Command }): JSX.Element =>
  <><h2>The same on the command line</h2><p class="command"><code>{shellText(command).split(/(--[\w-]+)/).map((part, i) => i % 2 ? <span key={i}>{part}</span> : part && visible(part))}</code> <Copy text={shellText(command)} what="command" /> <Copy text={pythonText(command)} what="as Python" label="Copy as Python" /></p></>;
