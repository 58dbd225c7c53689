/** Names of formats for people, where the command's name is not the usual one. Pure. */
const NAMES: Readonly<Record<string, string>> = { dcp: "DCP", "dcp-safetensors": "DCP in safetensors", "torch-zip": "torch.save", "torch-ranks": "torch.save per rank", "torch-legacy": "torch.save (before 1.6)", "safetensors-index": "safetensors with index" };

export const formatText = (format: string): string => NAMES[format] ?? format;
