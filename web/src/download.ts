/** Gives files to the browser to download. */
export function saveBlob(name: string, blob: Blob): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export const saveText = (name: string, text: string): void => saveBlob(name, new Blob([text], { type: "application/json" }));
