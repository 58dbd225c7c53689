/** Writes documents.d.ts: the types of the JSON documents, made from the JSON Schemas of the command line.
 *  Usage: types.mjs [--check]   --check: only compare */
import fs from "node:fs";
import { fileURLToPath } from "node:url";

const schemas = fileURLToPath(new URL("../native/cli/schemas/", import.meta.url));
const target = fileURLToPath(new URL("documents.d.ts", import.meta.url));
const NAMES = ["inspect", "layout", "manifest", "findings", "diff", "plan", "fqn", "convert", "target", "storage", "modules", "flat-params"];
const PLAIN = { string: "string", integer: "number", number: "number", boolean: "boolean", null: "null" };

const isName = (key) => /^[A-Za-z_]\w*$/.test(key);
const indented = (text) => text.replaceAll("\n", "\n  ");

/** `absent` lists members that only other objects of the same union have. They become optional, so that callers can test for
 *  them. */
function objectType(schema, absent = []) {
  const required = new Set(schema.required ?? []);
  const members = Object.entries(schema.properties ?? {}).map(([key, value]) =>
    `readonly ${isName(key) ? key : JSON.stringify(key)}${required.has(key) ? "" : "?"}: ${indented(typeOf(value))};`);
  members.push(...absent.map((key) => `readonly ${isName(key) ? key : JSON.stringify(key)}?: undefined;`));
  const more = schema.additionalProperties;
  if (!members.length) return `Readonly<Record<string, ${more && typeof more === "object" ? typeOf(more) : "unknown"}>>`;
  return `{\n  ${members.join("\n  ")}\n}`;
}

function arrayType(schema) {
  const item = schema.items ? typeOf(schema.items) : "unknown";
  return `readonly ${/[|]/.test(item) && !item.startsWith("{") ? `(${item})` : item.startsWith("readonly") ? `(${item})` : item}[]`;
}

function unionType(schemas) {
  const keys = new Set(schemas.flatMap((one) => Object.keys(one.properties ?? {})));
  return schemas.map((one) => `(${one.properties ? objectType(one, [...keys].filter((key) => !(key in one.properties))) : typeOf(one)})`).join(" | ");
}

function typeOf(schema) {
  if (schema === true || schema === undefined) return "unknown";
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.oneOf) return unionType(schema.oneOf);
  if (Array.isArray(schema.type)) return schema.type.map((type) => typeOf({ ...schema, type })).map((type) => `(${type})`).join(" | ");
  if (schema.type === "object") return objectType(schema);
  if (schema.type === "array") return arrayType(schema);
  return PLAIN[schema.type] ?? "unknown";
}

/** Returns FlatParamsDocument for "flat-params". */
const typeName = (name) => `${name.split("-").map((part) => part[0].toUpperCase() + part.slice(1)).join("")}Document`;

const text = ["/* Made by wasm/types.mjs from the JSON Schemas in native/cli/schemas. */\n", ...NAMES.map((name) => {
  const schema = JSON.parse(fs.readFileSync(`${schemas}tessera.${name}-1.schema.json`, "utf8"));
  return `/** ${schema.$id}: ${schema.title}. */\nexport type ${typeName(name)} = ${typeOf(schema)};\n`;
})].join("\n");

if (!process.argv.includes("--check")) fs.writeFileSync(target, text);
else if (fs.readFileSync(target, "utf8") !== text) throw new Error("documents.d.ts is not what the schemas say; run wasm/types.mjs");
