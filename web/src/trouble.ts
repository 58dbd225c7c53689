import { Failure } from "./client";
import type { Trouble } from "./protocol";

export function troubleOf(e: unknown): Trouble {
  return e instanceof Failure ? e.trouble : { message: e instanceof Error ? e.message : String(e), status: "page" };
}
