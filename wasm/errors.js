/** What the core refused, with its status word and the byte where there is one. */
export class TesseraError extends Error {
  constructor(message, status, position) {
    super(message);
    this.name = "TesseraError";
    this.status = status;
    this.position = position;
  }
}
