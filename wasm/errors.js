/** An error of the core, with the name of its status and the byte position, if there is one. */
export class TesseraError extends Error {
  constructor(message, status, position) {
    super(message);
    this.name = "TesseraError";
    this.status = status;
    this.position = position;
  }
}
