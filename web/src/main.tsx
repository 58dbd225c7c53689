import { render } from "preact";
import { Model } from "./model";
import { keepPage } from "./offline";
import "./style.css";
import { App } from "./views/app";
import { ModelContext } from "./views/hooks";

const root = document.getElementById("app");
addEventListener("load", () => setTimeout(() => void keepPage().catch(() => undefined), 500));
if (root) render(<ModelContext.Provider value={new Model()}><App /></ModelContext.Provider>, root);
