import { render } from "preact";
import { openingServed } from "./collect";
import { Model } from "./model";
import { keepPage } from "./offline";
import "./style.css";
import { App } from "./views/app";
import { ModelContext } from "./views/hooks";

const model = new Model();
void model.openServed(openingServed, () => { location.hash = "compare"; });
const root = document.getElementById("app");
addEventListener("load", () => void keepPage().catch(() => undefined));
if (root) render(<ModelContext.Provider value={model}><App /></ModelContext.Provider>, root);
